"""A library as a list and one experience of it in detail, as lines. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.core.events import LibraryCommitted
from engines.core.library import Experience, Library
from engines.core.library_notes import NO_USES, Effect, UseCounts
from engines.core.text.similarity import word_count, word_diff
from engines.core.types import Operation
from studio.facts.library import ListedLibrary, prompt_tokens
from studio.library.citations import Citation
from studio.render.words import count_text, prompt_tokens_text
from studio.review.wording import Near
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, fit, pad, wrap
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.lines import Line, Row, Span, labelled_lines, line, paragraph, spread
from studio.tui.pages.diff.view import change_spans
from studio.tui.pages.text import count_spans, display_text, holds_words

Sort = Literal["id", "uses", "worth", "length"]
SORTS: tuple[Sort, ...] = ("id", "uses", "worth", "length")


MARKS = {"+": "added", "-": "removed", "~": "flag", "?": "flag", " ": ""}
MARK_WORDS = {"?": "to decide", "+": "added", "~": "reworded", "-": "deleted"}
History = Sequence[tuple[Library, LibraryCommitted | None]]


@dataclass(frozen=True, slots=True)
class LibraryState:
    """What is known of one library; `draft` is None where no decision waits for a commit."""

    library: Library
    draft: Library | None = None
    open: tuple[Operation, ...] = ()
    # {}: nothing cites, or it is not known.
    uses: Mapping[str, tuple[Citation, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Item:
    """One experience with what a commit would make of it.

    `mark`: "+" is added, "~" reworded and "-" deleted by the draft, "?" an undecided operation
    is about it, " " nothing waits.
    """

    id: str
    text: str  # as it stands in the library; of an addition, as it would
    drafted: str | None  # the wording the draft gives it, None where it gives no other
    mark: str
    words: int
    waiting: tuple[Operation, ...] = ()
    uses: tuple[Citation, ...] = ()
    pinned: bool = False  # as the draft has it
    counts: UseCounts = NO_USES  # of the wording in the library, over all runs
    effect: Effect | None = None  # of that wording; None: it was not measured

    @property
    def won_count(self) -> int:
        return sum(use.sign == "+" for use in self.uses)

    @property
    def lost_count(self) -> int:
        return sum(use.sign == "-" for use in self.uses)


def items(contents: LibraryState, sort: Sort = "id", words: str = "") -> tuple[Item, ...]:
    """The experiences, those the draft adds included; of a filter, what holds all its words.

    Sorted by id, most uses first, most worth first, or longest first.
    """
    library, draft = contents.library, contents.draft
    before = {e.id: e.text for e in library.experiences}
    after = {e.id: e.text for e in (draft or library).experiences}
    pinned = (draft or library).pinned_ids
    waiting: dict[str | None, list[Operation]] = {}
    for operation in contents.open:
        waiting.setdefault(operation.target, []).append(operation)
    found = []
    for name, text in (*before.items(), *((n, t) for n, t in after.items() if n not in before)):
        drafted = None if name not in before or after.get(name) == text else after.get(name)
        asked = tuple(waiting.get(name, ()))
        mark = "?" if asked else " "
        if draft is not None and name not in before:
            mark = "+"
        elif name not in after:
            mark = "-"
        elif drafted is not None:
            mark = "~"
        if holds_words(f"{name} {text} {drafted or ''}", words):
            uses = contents.uses.get(name, ())
            words_of, pin = word_count(text), name in pinned
            counts = library.notes.uses.get(name, NO_USES)
            worth = library.notes.effects.get(name)
            found.append(Item(name, text, drafted, mark, words_of, asked, uses, pin, counts, worth))
    # By id: the order of a library is that of birth.
    if sort == "uses":
        found.sort(key=lambda one: (-one.counts.used, -len(one.uses), -one.won_count))
    elif sort == "worth":
        found.sort(key=lambda one: -one.effect.difference if one.effect else 2.0)
    elif sort == "length":
        found.sort(key=lambda one: -one.words)
    return tuple(found)


def item_rows(
    found: Sequence[Item],
    width: int,
    height: int = 0,
    *,
    cited: bool,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Row]:
    """The list; each wording takes as many lines as `height` has for all of them.

    `cited` says whether anything is cited at all, and uses are to be told.
    """
    name = min(12, max((cells(display_text(one.id)) for one in found), default=0))
    counted = any(one.counts != NO_USES for one in found)
    wide, priced = width >= 56, any(one.effect is not None for one in found)
    figures = [
        _figures_text(one, cited=cited, counted=counted, wide=wide) + _worth_cell(one) * priced
        for one in found
    ]
    room = max(4, width - name - 6 - max(map(len, figures), default=0))
    pieces = [[display_text(one.drafted or one.text)] for one in found]
    if len(found) < height:  # else one line each, and no long list is wrapped in vain
        pieces = [wrap(" ".join(text.split()), room) for (text,) in pieces]
    counts = [len(each) for each in pieces]
    tries = range(min(height, max(counts, default=1)), 1, -1)
    most = next((n for n in tries if sum(min(n, m) for m in counts) <= height), 1)
    out = []
    for one, of, texts in zip(found, figures, pieces, strict=True):
        texts[most - 1 :] = [fit(" ".join(texts[most - 1 :]), room)] * (len(texts) >= most)
        style = MARKS[one.mark] if one.mark in "+-" else ""
        pin = signs.pinned if one.pinned else " "
        head = f"{one.mark} {pad(display_text(one.id), name)}{pin} "
        left = line((head, MARKS[one.mark]), (texts[0], style))
        more = tuple(line(" " * cells(head), (text, style)) for text in texts[1:])
        out.append(Row(one.id, spread(left, line((of, "dim")), width), more))
    return out


def _figures_text(one: Item, *, cited: bool, counted: bool, wide: bool) -> str:
    words = f"{one.words:>4} word{'s' if one.words != 1 else ' '}"
    if counted:
        uses = f"{f'+{one.counts.used}':>4} {f'-{one.counts.misled}':>3}"  # used, misled
        return f"{words} {uses}" if wide else uses
    if not cited:
        return words
    if wide:
        return f"{words}  cited {len(one.uses):>2}  won {one.won_count:>2}"
    return f" won {one.won_count:>2} of {len(one.uses):>2}"


def _worth_cell(one: Item) -> str:
    """Its effect in points, and whether that is sure: `  +10 +`, `   -3 ?`."""
    if one.effect is None:
        return " " * 7
    sure = {"helps": "+", "hurts": "-"}.get(one.effect.verdict, "?")
    return f"{100 * one.effect.difference:>+5.0f} {sure}"


def title_text(contents: LibraryState, total: int, listed: int, labels: str = "") -> str:
    """`lib v13  prod v9  34 experiences  748 tokens a call`; with a draft's version, if any."""
    library, draft = contents.library, contents.draft
    version = f"v{library.version}"
    if draft is not None and draft.version != library.version:
        version += f" -> v{draft.version} drafted"
    n = f"{listed} of {total}" if listed != total else f"{total}"
    what = "experience" if total == 1 else "experiences"
    tokens = prompt_tokens_text(library.guidance_tokens, total)
    return "  ".join(filter(None, (f"{library.name} {version}", labels, f"{n} {what}", tokens)))


def detail_lines(
    one: Item,
    experience: Experience | None,
    near: Sequence[Near] | None,
    width: int,
    *,
    cited: bool,
    history: History = (),
) -> list[Line]:
    """One experience: what it says and would say, where it comes from, what it did.

    `experience` is None of one that the draft adds, `near` while similar ones are looked for.
    """
    parts: list[tuple[str, str | Iterable[Span]]] = [("text", display_text(one.text))]
    if one.drafted is not None:
        words = word_diff(display_text(one.text), display_text(one.drafted))
        parts.append(("draft", change_spans(words)))
    elif one.mark == "+":
        parts.append(("draft", [("it is added with the next commit", "added")]))
    elif one.mark == "-":
        parts.append(("draft", [("it is deleted with the next commit", "removed")]))
    for operation in one.waiting:
        what = f"{operation.id} {operation.kind}" + (" flagged" if operation.is_flagged else "")
        parts.append(("open", [(f"{what} (2 Review)", "flag")]))
    if one.pinned:
        pinned = f"nothing may change or delete it (p unpins it){_pin_text(history, one.id)}"
        parts.append(("pinned", pinned))
    wordings = experience.history if experience is not None else ()
    if experience is not None:
        parts.append(("since", _birth_text(experience)))
        tokens = prompt_tokens(one.text)
        parts.append(("length", f"{one.words} words, about {tokens} tokens a prompt"))
    if one.counts != NO_USES:
        parts.append(("attempts", count_spans(one.counts)))
    if one.effect is not None:
        style = {"helps": "won", "hurts": "lost"}.get(one.effect.verdict, "queued")
        parts.append(("worth", [(one.effect.worth, style)]))
    if cited:
        parts.append(("cited by", _citations_text(one)))
    if wordings:
        changes = ", ".join(f"v{mark.version} {mark.kind}" for mark in wordings)
        parts.append(("history", f"{changes} (H in full, D the last)"))
        last = wordings[-1]
        if last.rationale:
            parts.append(("why", display_text(last.rationale)))
        if last.evidence:
            parts.append(("evidence", display_text(f"{', '.join(last.evidence)} (enter)")))
    if near is None:
        parts.append(("similar", [("comparing …", "dim")]))
    else:
        alike = "  ".join(f"{display_text(name)} {score:.2f}" for name, score, _ in near)
        parts.append(("similar", alike or "none"))
    return [row for label, spans in parts for row in labelled_lines(label, spans, width)]


def _pin_text(history: History, name: str) -> str:
    """Since when it is pinned, and by whom; "" of a pin that waits for its commit."""
    for library, commit in reversed(history):
        for operation, decision in commit.reviewed if commit is not None else ():
            if (operation.kind, operation.target, decision.action) == ("pin", name, "approve"):
                return f"; since v{library.version}, by {display_text(decision.reviewer)}"
    return ""


def _birth_text(experience: Experience) -> str:
    if not experience.history:
        return f"v{experience.born}, it came with the library"
    first = experience.history[0]
    if first.version != experience.born:
        return f"v{experience.born}"
    where = f"step {first.step} of {first.run}" if first.run else "by hand"
    reviewer = f"{display_text(first.reviewer)}{', edited' if first.edited else ''}"
    return f"v{experience.born}, {first.operation_id}, {where} (approved by {reviewer})"


def use_rows(
    one: Item,
    experience: Experience | None,
    run: str,
    width: int,
    *,
    known: Mapping[str, Citation] | None = None,
) -> list[Row]:
    """The rollouts that cite an experience, then those of this run that it was drawn from.

    `known` are rollouts of the run by id, for the rewards of the evidence. Evidence of other runs
    cannot be opened from here.
    """
    known = known or {}
    head = _citations_text(one) if one.uses else f"no rollout cites {display_text(one.id)}"
    out = [Row("", line((head, "dim")))]
    out += [_use_row(use.rollout, use) for use in one.uses]
    cited = {use.rollout for use in one.uses}
    drawn = dict.fromkeys(
        name
        for mark in (experience.history if experience is not None else ())
        if mark.run == run
        for name in mark.evidence
        if name not in cited
    )
    if drawn:
        out.append(Row("", line(("drawn from", "dim"))))
        out += [_use_row(name, known.get(name)) for name in drawn]
    return [
        Row(row.key, tuple((fit(text, width), style) for text, style in row.line)) for row in out
    ]


def _use_row(rollout: str, use: Citation | None) -> Row:
    if use is None:
        return Row(rollout, line(f"  {display_text(rollout)}"))
    reward = "not judged" if use.reward is None else f"{use.reward:.2f}"
    style = {"+": "won", "-": "lost", "?": "queued"}[use.sign]
    text = f"{use.sign} {pad(display_text(rollout), 10)} {reward}  epoch {use.epoch}"
    return Row(rollout, line((text, style)))


def history_text_lines(texts: Iterable[str], width: int) -> list[Line]:
    """Lines as `studio library history` prints them, wrapped; the sign gives the style."""
    out: list[Line] = []
    for text in texts:
        indent = " " * (len(text) - len(text.lstrip()))
        sign = text.lstrip()[:1]
        style = MARKS.get(sign, "") if sign.strip() and indent else "title" if not indent else ""
        style = "removed" if sign == "x" and indent == "  " else style
        wrapped = paragraph(((display_text(text.lstrip()), style),), max(1, width - len(indent)))
        out += [((indent, ""), *row) for row in wrapped]
    return out


def last_change_lines(history: History, name: str, width: int) -> list[Line]:
    """What the last change of an experience changed, word by word; [] where there was none."""
    for number in range(len(history) - 1, 0, -1):
        (older, _), (newer, commit) = history[number - 1], history[number]
        before, after = older.get(name), newer.get(name)
        if (before and before.text) == (after and after.text):
            continue
        where = f"step {commit.step} of {commit.run}" if commit and commit.run else "by hand"
        out = [line((f"v{older.version} -> v{newer.version}", "title"), (f"  {where}", "dim")), ()]
        old, new = (display_text(each.text) if each else "" for each in (before, after))
        if before and after:
            return out + paragraph(change_spans(word_diff(old, new)), width)
        sign = "+" if after else "-"
        return out + paragraph([(f"{sign} {new or old}", MARKS[sign])], width)
    return []


def library_rows(listed: Sequence[ListedLibrary], words: str, width: int) -> list[Row]:
    """The libraries of a workspace."""
    rows = []
    for facts in listed:
        if not holds_words(facts.library, words):
            continue
        if facts.trouble:
            text, style = display_text(facts.trouble), "failed"
        else:
            held = count_text(facts.experiences, "experience")
            tokens = prompt_tokens_text(f"{facts.tokens_per_call:>5}", facts.experiences)
            text, style = f"v{facts.version}  {held:>15}  {tokens}", "dim"
        about = line((fit(text, width - 8), style))
        name = line(display_text(facts.library))
        rows.append(Row(facts.library, spread(name, about, width)))
    return rows


def _citations_text(one: Item) -> str:
    n = len(one.uses)
    if not n:
        return "none of this run"
    unknown = n - one.won_count - one.lost_count
    more = f", {unknown} not judged" if unknown else ""
    return f"{n} rollout{'s' * (n != 1)}: {one.won_count} won, {one.lost_count} lost{more}"
