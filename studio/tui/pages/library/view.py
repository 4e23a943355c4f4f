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
from studio.tui.drawing.lines import (
    Line,
    Row,
    Span,
    change_spans,
    count_spans,
    display_text,
    holds_words,
    labelled_lines,
    line,
    paragraph,
    spread,
)

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
    def wording(self) -> str:
        """As it would stand after the commit."""
        return self.drafted or self.text

    @property
    def has_counts(self) -> bool:
        return self.counts != NO_USES

    def holds(self, words: str) -> bool:
        return holds_words(f"{self.id} {self.text} {self.drafted or ''}", words)

    @property
    def won_count(self) -> int:
        return sum(use.sign == "+" for use in self.uses)


def items(contents: LibraryState, sort: Sort = "id") -> tuple[Item, ...]:
    """The experiences, those the draft adds included.

    Sorted by id, most uses first, most worth first, or longest first.
    """
    library, after = contents.library, contents.draft or contents.library
    before, drafted = ({e.id: e.text for e in each.experiences} for each in (library, after))
    pinned = after.pinned_ids
    waiting: dict[str | None, list[Operation]] = {}
    for operation in contents.open:
        waiting.setdefault(operation.target, []).append(operation)
    listed = []
    for name in dict.fromkeys((*before, *drafted)):
        text, new = before.get(name), drafted.get(name)
        mark = "?" if name in waiting else " "
        if text is None:
            mark = "+"
        elif new is None:
            mark = "-"
        elif new != text:
            mark = "~"
        item = Item(
            id=name,
            text=text or new or "",
            drafted=new if mark == "~" else None,
            mark=mark,
            words=word_count(text or new or ""),
            waiting=tuple(waiting.get(name, ())),
            uses=contents.uses.get(name, ()),
            pinned=name in pinned,
            counts=library.notes.uses.get(name, NO_USES),
            effect=library.notes.effects.get(name),
        )
        listed.append(item)
    match sort:  # by id: the order of a library is that of birth
        case "uses":
            listed.sort(key=lambda item: (-item.counts.used, -len(item.uses), -item.won_count))
        case "worth":
            listed.sort(key=lambda item: -item.effect.difference if item.effect else 2.0)
        case "length":
            listed.sort(key=lambda item: -item.words)
    return tuple(listed)


def item_rows(
    listed: Sequence[Item],
    width: int,
    height: int = 0,
    *,
    cited: bool,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Row]:
    """The list, with whole wordings where `height` has the lines for all of them.

    `cited` says whether anything is cited at all, and uses are to be told.
    """
    name = min(12, max((cells(display_text(item.id)) for item in listed), default=0))
    counted = any(item.has_counts for item in listed)
    priced = any(item.effect is not None for item in listed)
    figures = [_figures_text(item, cited, counted) + _worth_cell(item) * priced for item in listed]
    room = max(4, width - name - 6 - max(map(len, figures), default=0))
    texts = [display_text(" ".join(item.wording.split())) for item in listed]
    pieces = [[fit(text, room)] for text in texts]
    if len(listed) < height:  # else no long list is wrapped in vain
        wrapped = [wrap(text, room) for text in texts]
        pieces = wrapped if sum(map(len, wrapped)) <= height else pieces
    out = []
    for item, of, (first, *further) in zip(listed, figures, pieces, strict=True):
        style = MARKS[item.mark] if item.mark in "+-" else ""
        pin = signs.pinned if item.pinned else " "
        head = f"{item.mark} {pad(display_text(item.id), name)}{pin} "
        left = line((head, MARKS[item.mark]), (first, style))
        more = tuple(line(" " * cells(head), (text, style)) for text in further)
        out.append(Row(item.id, spread(left, line((of, "dim")), width), more))
    return out


def _figures_text(item: Item, cited: bool, counted: bool) -> str:
    if counted:
        return f"{f'+{item.counts.used}':>4} {f'-{item.counts.misled}':>3}"  # used, misled
    if cited:
        return f" won {item.won_count:>2} of {len(item.uses):>2}"
    return f"{item.words:>4} word{'s' if item.words != 1 else ' '}"


def _worth_cell(item: Item) -> str:
    """Its effect in points, and whether that is sure: `  +10 +`, `   -3 ?`."""
    if item.effect is None:
        return " " * 7
    sure = {"helps": "+", "hurts": "-"}.get(item.effect.verdict, "?")
    return f"{100 * item.effect.difference:>+5.0f} {sure}"


def title_text(contents: LibraryState, total: int, listed: int, labels: str = "") -> str:
    """`lib v13  prod v9  34 experiences  748 tokens a call`; with a draft's version, if any."""
    library, draft = contents.library, contents.draft
    version = f"v{library.version}"
    if draft is not None and draft.version != library.version:
        version += f" -> v{draft.version} drafted"
    held = count_text(total, "experience")
    if listed != total:
        held = f"{listed} of {held}"
    tokens = prompt_tokens_text(library.guidance_tokens, total)
    return "  ".join(filter(None, (f"{library.name} {version}", labels, held, tokens)))


def detail_lines(
    one: Item,
    experience: Experience | None,
    near: Sequence[Near] | None,
    width: int,
    *,
    cited: bool,
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
        parts.append(("pinned", "nothing may change or delete it (p unpins it)"))
    wordings = experience.history if experience is not None else ()
    if experience is not None:
        parts.append(("since", _birth_text(experience)))
        tokens = prompt_tokens(one.text)
        parts.append(("length", f"{one.words} words, about {tokens} tokens a prompt"))
    if one.has_counts:
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
    if not one.uses:
        return "none of this run"
    lost = sum(use.sign == "-" for use in one.uses)
    unknown = len(one.uses) - one.won_count - lost
    more = f", {unknown} not judged" if unknown else ""
    return f"{count_text(len(one.uses), 'rollout')}: {one.won_count} won, {lost} lost{more}"
