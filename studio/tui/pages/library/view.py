"""A library as a list and one experience of it in detail, as lines.

Pure: from a version, the draft that the standing decisions would make of it, what waits to be
decided, and the citations that were counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.core.events import LibraryCommitted
from engines.core.ids import digest
from engines.core.library import Experience, Library
from engines.core.text.similarity import similarity_above, word_count, word_diff
from engines.core.types import Operation
from studio.library.citations import Citation
from studio.tui.drawing.cells import cell_width as cells
from studio.tui.drawing.cells import fit, pad
from studio.tui.drawing.lines import Line, Row, Span, line, paragraph, spread
from studio.tui.pages.diff.view import change_spans, display_text

Sort = Literal["id", "uses", "length"]
SORTS: tuple[Sort, ...] = ("id", "uses", "length")

NEAR_FROM = 0.30
"""Similarity from which another experience is worth a look; duplicates begin at 0.70."""
NEAR_MOST = 5

LABEL = 10
MARKS = {"+": "added", "-": "removed", "~": "flag", "?": "flag", " ": ""}
History = Sequence[tuple[Library, LibraryCommitted | None]]


@dataclass(frozen=True, slots=True)
class LibraryState:
    """What is known of one library; `draft` is None where no decision waits for a commit."""

    library: Library
    draft: Library | None = None
    open: tuple[Operation, ...] = ()
    uses: Mapping[str, tuple[Citation, ...]] = field(
        default_factory=dict
    )  # {}: nothing cites, or unknown


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

    @property
    def won_count(self) -> int:
        return sum(use.sign == "+" for use in self.uses)

    @property
    def lost_count(self) -> int:
        return sum(use.sign == "-" for use in self.uses)


def items(shelf: LibraryState, sort: Sort = "id", words: str = "") -> tuple[Item, ...]:
    """The experiences, those the draft adds included.

    Args:
        shelf: what is known.
        sort: by id, most uses first, or longest first.
        words: a filter; all of its words must stand in the id or in a text.
    """
    library, draft = shelf.library, shelf.draft
    after = {e.id: e.text for e in (draft or library).experiences}
    waiting: dict[str, list[Operation]] = {}
    for operation in shelf.open:
        if operation.target is not None:
            waiting.setdefault(operation.target, []).append(operation)
    before = {e.id: e.text for e in library.experiences}
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
        uses = shelf.uses.get(name, ())
        found.append(Item(name, text, drafted, mark, word_count(text), asked, uses))
    if wanted := words.casefold().split():
        found = [one for one in found if _matches(one, wanted)]
    match sort:
        case "uses":
            found.sort(key=lambda one: (-len(one.uses), -one.won_count))
        case "length":
            found.sort(key=lambda one: -one.words)
        case "id":
            pass  # the order of a library is that of birth
    return tuple(found)


def item_rows(found: Sequence[Item], width: int, *, cited: bool) -> list[Row]:
    """The list.

    Args:
        found: see `items`.
        width: in cells.
        cited: whether anything is cited at all; else there is nothing to tell of uses.
    """
    name = min(12, max((cells(display_text(one.id)) for one in found), default=0))
    out = []
    for one in found:
        told = f"{one.words:>4}w"
        if cited and width >= 56:
            told += f"  used {len(one.uses):>2}  win {one.won_count:>2}"
        elif cited:
            told += f" {one.won_count:>2}/{len(one.uses)}"
        head = f"{one.mark} {pad(display_text(one.id), name)} "
        text = fit(
            display_text(one.drafted or one.text), max(4, width - cells(head) - cells(told) - 2)
        )
        left = line((head, MARKS[one.mark]), (text, MARKS[one.mark] if one.mark in "+-" else ""))
        out.append(Row(one.id, spread(left, line((told, "dim")), width)))
    return out


def title_text(shelf: LibraryState, total: int, listed: int) -> str:
    """`lib v13  34 experiences  748 tokens a call`; with the draft's version where there is one."""
    library, draft = shelf.library, shelf.draft
    version = f"v{library.version}"
    if draft is not None and draft.version != library.version:
        version += f" -> v{draft.version} drafted"
    n = f"{listed} of {total}" if listed != total else f"{total}"
    what = "experience" if total == 1 else "experiences"
    return f"{library.name} {version}  {n} {what}  {library.guidance_tokens} tokens a call"


def detail_lines(
    one: Item,
    experience: Experience | None,
    near: Sequence[tuple[str, float]] | None,
    width: int,
    *,
    cited: bool,
) -> list[Line]:
    """One experience: what it says and would say, where it comes from, what it did.

    Args:
        one: the experience.
        experience: as the library holds it; None of one that the draft adds.
        near: similar ones with their similarity; None while they are looked for.
        width: in cells.
        cited: whether anything is cited at all.
    """
    out = _labelled_lines("text", ((display_text(one.text), ""),), width)
    if one.drafted is not None:
        changed = change_spans(word_diff(display_text(one.text), display_text(one.drafted)))
        out += _labelled_lines("draft", changed, width)
    elif one.mark == "+":
        out += _labelled_lines("draft", (("it is added with the next commit", "added"),), width)
    elif one.mark == "-":
        out += _labelled_lines("draft", (("it is deleted with the next commit", "removed"),), width)
    for operation in one.waiting:
        what = f"{operation.id} {operation.kind}" + (" flagged" if operation.flags else "")
        out += _labelled_lines("waits", ((f"{what} (2 Review)", "flag"),), width)
    history = experience.history if experience is not None else ()
    if experience is not None:
        born = f"v{experience.born}"
        if history and history[0].version == experience.born:
            mark = history[0]
            where = f"step {mark.step} of {mark.run}" if mark.run else "by hand"
            edited = ", edited" if mark.edited else ""
            reviewer = display_text(mark.reviewer)
            born += f", {mark.operation_id}, {where} (approved by {reviewer}{edited})"
        elif not history:
            born += ", it came with the library"
        out += _labelled_lines("born", ((born, ""),), width)
        short = digest([one.id, one.text], 4)
        out += _labelled_lines("hash", ((f"{short}  {one.words} words", ""),), width)
    if cited:
        out += _labelled_lines("cited by", ((_citations_text(one), ""),), width)
    if len(history) > 0:
        told = ", ".join(f"v{mark.version} {mark.kind}" for mark in history)
        out += _labelled_lines("history", ((f"{told} (H in full, D the last)", ""),), width)
        last = history[-1]
        if last.rationale:
            out += _labelled_lines("why", ((display_text(last.rationale), ""),), width)
        if last.evidence:
            told = f"{', '.join(last.evidence)} (enter)"
            out += _labelled_lines("evidence", ((display_text(told), ""),), width)
    if near is None:
        out += _labelled_lines("near", (("comparing …", "dim"),), width)
    else:
        told = "  ".join(f"{display_text(name)} {alike:.2f}" for name, alike in near)
        out += _labelled_lines("near", ((told or "none", ""),), width)
    return out


def find_similar(
    name: str, text: str, others: Iterable[tuple[str, str]]
) -> tuple[tuple[str, float], ...]:
    """The most similar of the others, by wording."""
    found = [
        (other, alike)
        for other, said in others
        if other != name and (alike := similarity_above(text, said, NEAR_FROM)) is not None
    ]
    return tuple(sorted(found, key=lambda pair: -pair[1])[:NEAR_MOST])


def use_rows(
    one: Item,
    experience: Experience | None,
    run: str,
    width: int,
    *,
    known: Mapping[str, Citation] | None = None,
    unread: int = 0,
) -> list[Row]:
    """The rollouts that cite an experience, then those of this run that it was drawn from.

    Args:
        one: the experience.
        experience: as the library holds it, with its history.
        run: the open run; evidence of others cannot be opened from here.
        width: in cells.
        known: rollouts of the run by id, for the rewards of the evidence.
        unread: rollouts whose records could not be read.
    """
    known = known or {}
    out = [
        Row(
            "",
            line(
                (
                    _citations_text(one)
                    if one.uses
                    else f"no rollout cites {display_text(one.id)}",
                    "dim",
                )
            ),
        )
    ]
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
    if unread:
        out.append(Row("", line((f"{unread} rollouts could not be read: studio doctor", "failed"))))
    return [
        Row(row.key, tuple((fit(text, width), style) for text, style in row.line)) for row in out
    ]


def _use_row(rollout: str, use: Citation | None) -> Row:
    if use is None:
        return Row(rollout, line(f"  {display_text(rollout)}"))
    reward = "not judged" if use.reward is None else f"{use.reward:.2f}"
    style = {"+": "won", "-": "lost", "?": "queued"}[use.sign]
    return Row(
        rollout,
        line((f"{use.sign} {pad(display_text(rollout), 10)} {reward}  epoch {use.epoch}", style)),
    )


def history_text_lines(told: Iterable[str], width: int) -> list[Line]:
    """Lines as `studio library history` prints them, wrapped; the sign gives the style."""
    out: list[Line] = []
    for text in told:
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
        out: list[Line] = [
            line((f"v{older.version} -> v{newer.version}", "title"), (f"  {where}", "dim")),
            (),
        ]
        old, new = (
            display_text(before.text) if before else "",
            display_text(after.text) if after else "",
        )
        if before and after:
            out += paragraph(change_spans(word_diff(old, new)), width)
        else:
            sign = "+" if after else "-"
            out += paragraph(((f"{sign} {new or old}", MARKS[sign]),), width)
        return out
    return []


def library_rows(found: Sequence[Mapping[str, object]], words: str, width: int) -> list[Row]:
    """The libraries of a workspace; `found` as `studio library list --json` gives them."""
    wanted = words.casefold().split()
    out = []
    for one in found:
        name = str(one["library"])
        if not all(word in name.casefold() for word in wanted):
            continue
        told = (
            f"v{one['version']}  {one['experiences']:>3} experiences  "
            f"{one['tokens_per_call']:>5} tokens a call"
            if "version" in one
            else display_text(str(one["trouble"]))
        )
        style = "dim" if "version" in one else "failed"
        out.append(
            Row(name, spread(line(display_text(name)), line((fit(told, width - 8), style)), width))
        )
    return out


def _citations_text(one: Item) -> str:
    n = len(one.uses)
    what = "rollout" if n == 1 else "rollouts"
    unknown = n - one.won_count - one.lost_count
    more = f", {unknown} not judged" if unknown else ""
    return (
        f"{n} {what}: {one.won_count} won, {one.lost_count} lost{more}" if n else "none of this run"
    )


def _matches(one: Item, wanted: Sequence[str]) -> bool:
    told = f"{one.id} {one.text} {one.drafted or ''}".casefold()
    return all(word in told for word in wanted)


def _labelled_lines(label: str, spans: Iterable[Span], width: int) -> list[Line]:
    rows = paragraph(spans, max(1, width - LABEL))
    heads = (label.ljust(LABEL), "dim"), (" " * LABEL, "")
    return [(heads[number > 0], *row) for number, row in enumerate(rows)]
