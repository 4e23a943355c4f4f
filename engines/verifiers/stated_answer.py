r"""Where a response states its final answer, and the verdicts that every verifier words alike.

Finds `#### 42`, `\boxed{42}`, `<answer>42</answer>`, `Answer: 42`, `A: 42` on the last line, "the
answer is 42", and the same words in other languages. What stands in `<think>` is never an answer.
Every search is linear in the text or bounded by `TAIL_CHARS`, so that hostile text is cheap.

The many ways to write one answer become the one that math-verify reads: signs and digits that are
no ASCII (√3, ½, x², ３, an en dash for a minus), digits in groups, words for powers of ten.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Literal

from engines.core.frozen import frozen
from engines.core.types import NO_ANSWER, Verdict
from engines.process.pool import Trouble

Marker = Literal["boxed", "marked", "none"]

TAIL_CHARS = 16_000
"""How far back from the end a marker in words is looked for."""

GAP_CHARS = 70
"""Boxes further apart are two statements. Source: math-verify joins up to the same distance."""

MANY_BOXES = 100
"""More of them at the end of a response are no list: the whole tail stands as the answer."""

_NAME = r"(?:think|thinking|thought|reasoning)"
_THOUGHT = re.compile(
    rf"(?<!`)(?:<{_NAME}>.*?(?:</{_NAME}>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z))",
    re.IGNORECASE | re.DOTALL,
)
_THOUGHT_END = re.compile(rf"\A.*(?:</{_NAME}>|\[/THINK\])", re.IGNORECASE | re.DOTALL)
_TAGGED = re.compile(r"<(?:final[_ ]?)?answer>", re.IGNORECASE)
_TAG_END = re.compile(r"</(?:final[_ ]?)?answer>", re.IGNORECASE)
# Only blanks of one line are repeated: `\s*` would cross a megabyte of newlines from each.
_ANSWER = (
    r"(?:(?:the[ \t]+)?(?:final[ \t]+|correct[ \t]+)?answer|ответ|정답|답"
    r"|(?:最终|最終|正确|正確)?(?:答案|答え|答)|(?:(?:die|la|a)[ \t]+)?"
    r"(?:antwort|r[ée]ponse|respuesta|resposta|risposta)(?:[ \t]+(?:finale?|correct[ea]))?)"
)
_COLON = r"[ \t\u00a0\u202f*_]*[:：]"
_LINE = re.compile(rf"^[ \t>*_#`-]*{_ANSWER}{_COLON}", re.IGNORECASE | re.MULTILINE)
_LAST_LINE = re.compile(rf"^[ \t>*_#`-]*(?:A|{_ANSWER}){_COLON}", re.IGNORECASE)
_PHRASE = re.compile(
    r"(?:\banswer[ \t]+(?:is|equals)\b|\bantwort[ \t]+(?:ist|lautet)\b|答案(?:是|为|為)|答えは"
    r"|\br[ée]ponse(?:[ \t]+finale)?[ \t]+est\b|\brisposta[ \t]+è"
    r"|\b(?:respuesta|resposta)(?:[ \t]+(?:final|correcta))?[ \t]+(?:es\b|é))[ \t*_]*[:：]?",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\bfinal[ \t]+answer[ \t]+is\b[ \t*_]*:?[ \t*_]*", re.IGNORECASE)
_WORD_FIRST = re.compile(r"[ \t*_]*[A-Za-z]{3}")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
# Between boxes of one answer stands "and", "or" or no word at all (a command is none).
_COMMAND = re.compile(r"\\[A-Za-z]+")
_JOINED = re.compile(r"\b(?:and|or)\b")
_NEXT_THOUGHT = re.compile(
    r"\.\s|[!?:]|\n\s*\n|\b(?:wait|no|not|but|so|then|thus|hence|actually|rather|instead"
    r"|therefore|finally|gives?|which|total)\b",
    re.IGNORECASE,
)
# A full stop ends the sentence after a long word or a symbol, not after "St" or "Mr".
_SENTENCE_END = re.compile(r"(?:(?<=[^A-Za-z.])|(?<=[a-z]{4}))\.\s+(?=[A-Z\W])|。")
_LONE_CODE = re.compile(
    r"(?:^|\n)[ \t*_]*(?:```\w{0,20}\n([^`\n]{1,200})\n```|`([^`\n]{1,200})`)[ \t*_.]*\Z"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@frozen
class StatedAnswer:
    """The text that states the answer; with marker "none" it is the whole response."""

    text: str
    marker: Marker


def find_stated_answer(response: str, *, join_boxes: bool = False) -> StatedAnswer:
    r"""Find the last statement of the answer.

    With `join_boxes` several boxes that state one answer (`\boxed{1} and \boxed{2}`) become
    "1, 2"; else the last of them is the answer.

    A box, a `####` and a marker on the last line are deliberate and win over a
    sentence about "the answer" ("I am sure this answer is correct" often follows).
    """
    response = strip_thoughts(response).rstrip()
    found = max(_deliberate_statements(response, join_boxes), default=None) or max(
        _passing_statements(response), default=None
    )
    if found:
        return StatedAnswer(found[1], found[2])
    if code := _LONE_CODE.search(response, max(0, len(response) - TAIL_CHARS)):
        return StatedAnswer((code[1] or code[2]).strip(), "marked")
    return StatedAnswer(response.strip(), "none")


def strip_thoughts(response: str) -> str:
    """A response without its `<think>…</think>`.

    One that is never closed was cut: all that follows is thought. One that is never opened was
    opened by the prompt: all before it is.
    """
    kept = _THOUGHT.sub("", response)
    return kept if kept != response else _THOUGHT_END.sub("", kept)


def short_text(text: str, limit: int = 40) -> str:
    """One short line of a text for the screen and the journal.

    Control characters and lone surrogates go: JSON writers refuse the latter.
    """
    text = _CONTROL.sub(" ", text[: 4 * limit]).encode("utf-8", "replace").decode("utf-8")
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _deliberate_statements(response: str, join_boxes: bool) -> Iterator[tuple[int, str, Marker]]:
    if (boxed := _last_box(response, join_boxes)) is not None:
        yield *boxed, "boxed"
    if tags := list(_TAGGED.finditer(response)):
        # A reply that a stop sequence ended lacks the closing tag.
        closed = _TAG_END.search(response, tags[-1].end())
        text = response[tags[-1].end() : closed.start() if closed else len(response)]
        if text := _strip_markup(find_stated_answer(text, join_boxes=join_boxes).text):
            yield tags[-1].start(), text, "marked"
    end = len(response.rstrip())
    last_line = response.rfind("\n", 0, end) + 1
    at = response.rfind("####")
    if at >= 0:
        line_end = response.find("\n", at)
        rest = response[at + 4 : end if line_end < 0 else line_end]
        # "#### Step 2" above the last line is a heading, not an answer.
        if _strip_markup(rest) and (at >= last_line or not _WORD_FIRST.match(rest)):
            yield at, _strip_markup(rest), "marked"
    # "= \boxed{41} … The final answer is 42." may stand on one line.
    for final in _FINAL.finditer(response, max(0, end - TAIL_CHARS)):
        rest = response[final.end() : end].split("\n", 1)[0]
        text = _strip_markup(_SENTENCE_END.split(rest, 1)[0])
        if text and not _WORD_FIRST.match(rest):
            yield final.start(), text, "marked"
    line = response[last_line:end]
    if (match := _LAST_LINE.match(line)) and _strip_markup(line[match.end() :]):
        yield last_line, _strip_markup(line[match.end() :]), "marked"


def _passing_statements(response: str) -> Iterator[tuple[int, str, Marker]]:
    tail = response[-TAIL_CHARS:]
    for pattern in (_LINE, _PHRASE):
        *_, match = [None, *pattern.finditer(tail)]
        if match is None:
            continue
        rest = tail[match.end() :].lstrip(" \t*_")
        # "Answer:" alone on its line announces what follows.
        text = rest.strip() if rest[:1] in ("\n", "\r") else rest.split("\n", 1)[0]
        if pattern is _PHRASE:
            text = _SENTENCE_END.split(text, 1)[0]
        if _strip_markup(text):
            yield match.start(), _strip_markup(text), "marked"


def _last_box(response: str, join: bool) -> tuple[int, str] | None:
    """Start and content of the last box, if its braces balance; cut at `TAIL_CHARS`."""
    at = _box_before(response, len(response), 0)
    if at < 0:
        return None
    tail = max(0, len(response) - TAIL_CHARS)
    if join and response.count("\\boxed{", tail) > MANY_BOXES:
        return at, response[tail:]
    start = response.index("{", at) + 1
    end = _closing_brace(response, start)
    if end is None:
        cut = start + TAIL_CHARS
        return (at, response[start:cut]) if cut < len(response) else None
    contents, first = [response[start:end].strip().removesuffix(".")], at
    while join and (before := _box_before(response, first, max(0, at - TAIL_CHARS))) >= 0:
        start = response.index("{", before) + 1
        end = _closing_brace(response, start)
        if end is None or end >= first or not _is_one_answer(response[end + 1 : first]):
            break
        contents.append(response[start:end].strip().removesuffix("."))
        first = before
    return at, ", ".join(dict.fromkeys(reversed(contents)))


def _box_before(response: str, end: int, start: int) -> int:
    return max(response.rfind(box, start, end) for box in ("\\boxed{", "\\fbox{"))


def _closing_brace(response: str, start: int) -> int | None:
    """Where the brace that was opened just before `start` is closed."""
    depth = 1
    for brace in _BRACES.finditer(response, start, start + TAIL_CHARS):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _is_one_answer(gap: str) -> bool:
    """Do two boxes with this between them state one answer, or was the first put right?"""
    if len(gap) >= GAP_CHARS or _NEXT_THOUGHT.search(gap):
        return False
    return bool(_JOINED.search(gap)) or not re.search(r"[A-Za-z]{2}", _COMMAND.sub("", gap))


def _strip_markup(text: str) -> str:
    text = text.strip().strip("*_`").strip()
    return text[:-1].rstrip(" *_`") if text.endswith((".", "。")) else text


def wrong_verdict(got: str, expected: Iterable[str]) -> Verdict:
    """The verdict on another answer; names the first few expected ones, each once."""
    wanted = " or ".join([*dict.fromkeys(short_text(text) for text in expected)][:3])
    found = f"got {short_text(got)}" if short_text(got) else NO_ANSWER
    return Verdict(0.0, f"expected {wanted}, {found}")


def trouble_verdict(
    trouble: Trouble, limit: int = 120, *, timeout_score: float | None = None, what: str = ""
) -> Verdict:
    """The verdict where a checking process gave no answer, on `what`.

    None as `timeout_score` leaves unjudged what took too long.
    """
    text = f"{trouble.kind}: {short_text(trouble.text, limit)}"
    if trouble.kind == "timeout" and timeout_score is not None:
        return Verdict(timeout_score, f"{text}{what}", {"timeout": 1.0})
    return Verdict(None, error=text)


_MINUS = re.compile("[\u2212\ufe63\uff0d]")
_DASHES = "[\u2010\u2011\u2012\u2013]"
_DASH_OF_NUMBER = re.compile(rf"(?<![\w)}}\]])-?{_DASHES}(?=[\d.])")
_DASH = re.compile(rf"(?<!\d)\s*{_DASHES}\s*|{_DASHES}(?!\s*\d)")  # 3 to 5 keeps its dash
_LONE_SIGN = re.compile(rf"\s*(?:-|{_DASHES})\s+(?=[\d.][\d.,]*\s*$)")
_FULLWIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]{1,80})\)|\{([^{}]{1,80})\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_FRACTION = re.compile("[¼½¾⅐-⅞]")
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|~|\\q?quad\b")
_MIXED_PLAIN = re.compile(r"(?<![\w./,])(\d{1,9})\s+(?:and\s+)?(\d{1,9})/(\d{1,9})(?![\d/]|\.\d)")
_MIXED = re.compile(r"([-+]?\d+)\s*\\frac\{(\d+)\}\{(\d+)\}")
_THIN = re.compile(r"(?<=\d)(?:\\[,;!:]|\{,\}|[\u00a0\u2007\u2009\u202f])(?=\d{3}(?!\d))")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_POWERS = enumerate(("thousand", "million", "billion", "trillion"), start=1)
_SCALES = {"dozen": 12, "hundred": 100, **{name: 1000**power for power, name in _POWERS}}
_SCALED = re.compile(
    rf"(?<![\w.,/^])(\d{{1,12}}(?:,\d{{3}}){{0,4}}(?:\.\d{{1,12}})?)(?:\s|\\,|~)*"
    rf"(?:\\text\{{\s*)?\b({'|'.join(_SCALES)})s?\b(?:\s*\}})?",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:[\s,;:(]*\b(?:and|but|or))?[\s,;:]*(?:(?:\b(?:can)?[Nn]ot|n't|\bnicht|\bpas)\s+|不是\s*)"
    r"(?:equal\s+to\s+|be\s+|option\s+)?(?:[$*(\\{\[]*[A-Z][$*)}\]]*|[^\s]*\d[^\s]*)[\s.!*]*$"
)
_BARE = re.compile(r"[\s$\\]*[-+]?\d[\d.,]*(?:\\?%)?[\s$]*")
_DIGITS = r"\d[\d,]*(?:\.\d+)?"
_LAST = re.compile(rf"(?<![\d.,]){_DIGITS}(?=\D*\Z)")
# 3 is said, and "3 out of 5" or "at least 3" meant. A unit behind it is no such word.
_ALTERS = re.compile(
    rf"(?:\A\D*|(?<![\d.,]){_DIGITS}\s+)(?:\b(?:at\s+(?:least|most)|(?:more|less|fewer|greater|other)"
    r"\s+than|(?:any|every)thing\s+but|negative|minus|half\s+of|root\s+of|out\s+of|times"
    r"|to\s+the\s+power(?:\s+of)?)|\\neq?)[\s$({\\]*\Z"
    rf"|\b(?:between|either)\s+{_DIGITS}\s+and\s+\Z|{_DIGITS}\s+or\s+\Z",
    re.IGNORECASE,
)
_ALTERED = re.compile(
    r"\s*(?:squared|factorial|lakhs?|crores?|bn|mn|Mio|Mrd|(?:is|was)\s+(?:not|wrong))\b"
)


def ascii_notation(text: str, *, marked: bool) -> str:
    """An answer with ASCII digits and operators.

    Where it is not `marked` but a whole response, a dash between words stays.
    """
    if not text.isascii():
        text = _convert_unicode(text, marked)
    text = _LONE_SIGN.sub("-", text, count=1) if _LONE_SIGN.match(text) else text
    text = _THIN.sub("", text)
    if _GROUPED.fullmatch(text.strip()):
        text = text.replace(" ", "")
    return _SCALED.sub(_expand_scale, _MIXED_PLAIN.sub(_expand_mixed, text))


def strip_tex(text: str) -> str:
    """A text without TeX's wrappers of words and its spacing."""
    return _SPACING.sub(" ", WRAPPED.sub(r"\1", text))


def alters_number(gold: str, answer: str) -> bool:
    """Whether words beside the last number of an answer say that it is not the bare number."""
    number = _LAST.search(answer := strip_tex(answer)[-200:])
    if number is None or not _BARE.fullmatch(gold):
        return False
    return bool(_ALTERS.search(answer[: number.start()]) or _ALTERED.match(answer, number.end()))


def strip_denial(text: str) -> str:
    """Leave out a closing "not 42", "and not (B)": what is denied is not the answer."""
    found = _DENIED.search(text[-200:])
    return text[: len(text) - len(found[0])] if found else text


def _convert_unicode(text: str, marked: bool) -> str:
    text = _MINUS.sub("-", text).translate(_FULLWIDTH)
    text = _POWER.sub(lambda run: f"^{{{run[0].translate(_RAISED)}}}", text)
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2] or found[3]}}}", text)
    if _FRACTION.search(text):
        text = _MIXED.sub(r"\1 \2/\3", _FRACTION.sub(_fraction_latex, text))
    text = "".join(str(unicodedata.decimal(c, c)) for c in text).replace("π", "\\pi ")
    return _DASH.sub("-", text) if marked else _DASH_OF_NUMBER.sub("-", text)


def _fraction_latex(found: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", found[0]).split("\u2044")
    return f"\\frac{{{above}}}{{{below}}}"


def _expand_mixed(found: re.Match[str]) -> str:
    whole, above, below = map(int, found.groups())
    return f"{whole * below + above}/{below}" if above < below else found[0]


def _expand_scale(found: re.Match[str]) -> str:
    number = Decimal(found[1].replace(",", "")) * _SCALES[found[2].lower()]
    return f"{number.normalize():f}"
