"""Whether two rules about the same thing may say opposite things. A heuristic, and said to be.

Owns the words it goes by: negations, and pairs of opposites. It takes two texts that are alike
but for those words and that differ in them; or that swap what stands before and after a word of
order ("add before multiplying" against "multiply before adding"). Two that differ in them in
their leading condition ("When adding, …" against "When subtracting, …") hold in different cases.
"""

from __future__ import annotations

import re
from functools import lru_cache

from engines.core.text.similarity import MOST_CHARS, is_similar, similarity

ALIKE = 0.6
"""Similarity without the words of polarity from which two rules are about the same thing."""
_TURNED = 0.15  # by how much the swapped halves must be more alike than the halves in place

_NEGATION = re.compile(
    r"\b(?:not|no|never|without|cannot|avoid|don[’']?t|doesn[’']?t|isn[’']?t|can[’']?t|mustn[’']?t"
    r"|shouldn[’']?t|won[’']?t|nicht|kein\w*|nie(?:mals)?|ohne|pas|jamais|sans|nunca|sin|não)\b"
    r"|[不没勿别莫無无]|ない|ません|하지",
    re.IGNORECASE,
)
_FILLERS = re.compile(
    r"\b(?:always|do|does|must|should|immer|toujours|siempre|ne)\b|\bn[’']|总是|始终|必须|要",
    re.IGNORECASE,
)
_TWICE = re.compile(
    r"\b(?:do not|don[’']?t|never) (?:ever )?(?:forget|fail|neglect|omit) to\b"
    r"|\b(?:vergiss|vergessen sie|vergesst)(?: es)? (?:nicht|nie(?:mals)?),?"
    r"|\b(?:nicht|nie(?:mals)?) (?:zu )?vergessen,?"
    r"|\bn[’']oublie[zr]? (?:pas|jamais) (?:de |d[’'])|\bne (?:pas|jamais) oublier (?:de |d[’'])",
    re.IGNORECASE,
)
"""Orders to do what follows, by way of two negations."""
_MOST = re.compile(
    r"\b(?:no|not|never) more than\b|\b(?:nicht|nie(?:mals)?) mehr als\b|\bhöchstens\b"
    r"|\bmaximal\b|\b(?:pas|jamais) plus (?:de|que)\b|\bau plus\b|不超过|最多",
    re.IGNORECASE,
)
_LEAST = re.compile(
    r"\b(?:no|not|never) (?:less|fewer) than\b|\b(?:nicht|nie(?:mals)?) weniger als\b"
    r"|\bmindestens\b|\b(?:pas|jamais) moins (?:de|que)\b|\bau moins\b|不少于|至少",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\s*(?:when(?:ever)?|where|if|for|in|on|with|while|to|after|before|wenn|falls|bei[m]?|für|um"
    r"|nach|vor|quand|lorsque|si|pour|dans|cuando|para|当|如果)\b[^,:;，：；]*[,:;，：；]"
    r"|\s*(?:当|如果)[^,:;，：；]*[,:;，：；]",
    re.IGNORECASE,
)
_PAIRS = tuple(
    (re.compile(rf"(?:{one})", re.IGNORECASE), re.compile(rf"(?:{other})", re.IGNORECASE))
    for one, other in (
        (
            r"\bbefore\b|\bvor(?:her)?\b|\bavant\b|之前|先",
            r"\bafter\b|\bnach(?:her)?\b|\baprès\b|之后|后",
        ),
        (r"\badd(?:s|ed|ing)?\b|\baddition\b|加", r"\bsubtract(?:s|ed|ing|ion)?\b|减"),
        (r"\bmultipl(?:y|ies|ied|ying|ication)\b|乘", r"\bdivi(?:de|des|ded|ding|sion)\b|除"),
        (r"\bfirst\b|\bzuerst\b|首先", r"\blast\b|\bzuletzt\b|最后"),
        (r"\bmore\b|\bmehr\b|\bplus\b|更多", r"\b(?:less|fewer)\b|\bweniger\b|\bmoins\b|更少"),
        (
            r"\b(?:larger|bigger|greater|largest|biggest)\b|较大|最大",
            r"\b(?:smaller|smallest)\b|较小|最小",
        ),
        (r"\bup\b|向上", r"\bdown\b|向下"),
        (r"\bleft\b|左", r"\bright\b|右"),
        (r"\binclud(?:e|es|ing)\b|包括", r"\bexclud(?:e|es|ing)\b|排除"),
        (r"\bincreas(?:e|es|ing)\b|增加", r"\bdecreas(?:e|es|ing)\b|减少"),
        (r"\bkeep(?:s|ing)?\b|保留", r"\b(?:remove|removes|drop|drops|discard)\b|去掉"),
        (r"\beven\b|偶数", r"\bodd\b|奇数"),
        (r"\bcarry\b", r"\bborrow\b"),
        (r"\bmaximum\b", r"\bminimum\b"),
        (r"\bat most\b", r"\bat least\b"),
        (r"\ball\b|\balle\b|全部", r"\bnone\b"),
    )
)  # fmt: skip
_ORDER = re.compile(
    r"\b(?:before|after|instead of|rather than|bevor|nachdem|avant|après)\b|之前|之后"
)

_CLAUSE = re.compile(r"[,;.:，；。：]")


def contradiction(one: str, other: str) -> float | None:
    """How alike two texts are that may contradict each other; None where nothing says so."""
    one, other = one[:MOST_CHARS], other[:MOST_CHARS]
    opposed = _opposed(_signs(one), _signs(other))
    if not opposed and (_around(one) is None or _around(other) is None):
        return None  # most pairs end here, before anything is compared
    a, b = _bare(one), _bare(other)
    if not a or not b or min(len(a), len(b)) * 3 < max(len(a), len(b)):
        return None
    alike = is_similar(a, b, ALIKE)
    if alike is None or _of_other_cases(one, other):
        return None
    return alike if opposed or _swapped(one, other) else None


@lru_cache(maxsize=1024)
def _bare(text: str) -> str:
    """The text without its words of polarity: what it is about."""
    text = _FILLERS.sub(" ", _NEGATION.sub(" ", _plain(text)))
    for one, other in _PAIRS:
        text = other.sub(" ", one.sub(" ", text))
    return " ".join(text.split())


@lru_cache(maxsize=1024)
def _signs(text: str) -> tuple[int, ...]:
    """Whether it is negated (0, 1), then for each pair the side it takes: -1, 1, or 0 for both."""
    text = _plain(text)
    sides = (bool(one.search(text)) - bool(other.search(text)) for one, other in _PAIRS)
    return (len(_NEGATION.findall(text)) % 2, *sides)


def _opposed(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    turned = one[0] != other[0]
    for a, b in zip(one[1:], other[1:], strict=True):
        # Two turns cancel: "never before" says what "always after" says.
        turned ^= a * b == -1
    return turned


def _of_other_cases(one: str, other: str) -> bool:
    """Whether both begin with a condition, and words of polarity tell these apart."""
    here, there = _CONDITION.match(_said(one)), _CONDITION.match(_said(other))
    if here is None or there is None:
        return False
    signs, others = _signs(here[0]), _signs(there[0])
    return signs[0] != others[0] or any(
        a * b == -1 for a, b in zip(signs[1:], others[1:], strict=True)
    )


def _swapped(one: str, other: str) -> bool:
    here, there = _around(one), _around(other)
    if here is None or there is None or here[1] != there[1]:
        return False  # another word of order: turned twice
    (a, _, b), (c, _, d) = here, there
    in_place = similarity(a, c) + similarity(b, d)
    return similarity(a, d) + similarity(b, c) > in_place + 2 * _TURNED


@lru_cache(maxsize=1024)
def _around(text: str) -> tuple[str, str, str] | None:
    """The clause up to the word of order, that word, and what follows it in its clause."""
    said = _said(text).casefold()
    match = _ORDER.search(said)
    if match is None:
        return None
    before, after = said[: match.start()], said[match.end() :]
    return _CLAUSE.split(before)[-1], match.group(), _CLAUSE.split(after)[0]


def _plain(text: str) -> str:
    """What is said, with what says it by a detour put straight."""
    text = _TWICE.sub(" ", _said(text))
    return _LEAST.sub(" at least ", _MOST.sub(" at most ", text))


def _said(text: str) -> str:
    """Without the name in front: it is the same for a rule and its opposite, or tells nothing."""
    name, colon, rest = text.partition(": ")
    condition = _CONDITION.match(text)
    return rest if colon and condition is None and len(name.split()) <= 6 else text
