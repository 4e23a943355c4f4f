"""The rollouts behind an operation and the experiences like it, as rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from studio.review.wording import Near
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, fit, wrap
from studio.tui.drawing.lines import Line, Row, line, paragraph, spread, width_of
from studio.tui.pages.diff.view import change_spans
from studio.tui.pages.review.view import excerpt
from studio.tui.pages.text import display_text

if TYPE_CHECKING:
    from studio.review.evidence import EvidenceRollout, GroupEvidence, PartingWords

_SHOWN = 2
"""Winners and losers of a group that are shown before it is opened."""
_WHOLE_CHARS = 4_000
_EDGE = 2
"""Cells that a list draws before each of its rows."""


def rollout_of(key: str) -> str:
    """The rollout that a row belongs to: `s1p0r2` of `s1p0r2/3`."""
    return key.partition("/")[0]


def evidence_rows(
    groups: Sequence[GroupEvidence],
    width: int,
    *,
    opened: bool = False,
    answers: Mapping[str, str] | None = None,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Row]:
    """Per group its question, how many won and where they part, then winners, then losers.

    With `opened` every rollout is shown with its last words, or with its whole reply where
    `answers` has that by the rollout's id.
    """
    out: list[Row] = []
    for group in groups:
        right = f"{group.won} of {group.n} won"
        asked = display_text(" ".join(group.question[:2_000].split()))
        name = f"{group.id}  "
        if opened:
            key = f"{group.witnesses[0].id if group.witnesses else f'{group.id}r0'}/q"
            out.append(Row(key, line((name, "title"), (right, "title"))))
            pieces = wrap(asked, max(8, width - _EDGE - 2))
            out += [Row(f"{key}{n}", line("  ", piece)) for n, piece in enumerate(pieces)]
        else:
            room = max(8, width - len(name) - len(right) - 6)
            head = line((name, "title"), fit(asked, room, signs.ellipsis))
            out.append(Row("", spread(head, line((right, "title")), width - 2)))
        out += _parting_rows(group.parting, width, signs)
        winners = [each for each in group.witnesses if each.sign == "+"]
        others = [each for each in group.witnesses if each.sign != "+"]
        few = len(group.witnesses) if opened else _SHOWN
        for witness in (*winners[:few], *others[:few]):
            out += _witness_rows(witness, width, opened, (answers or {}).get(witness.id), signs)
        counts = (len(winners) - few, "winner"), (len(others) - few, "loser")
        if left := ", ".join(f"{n} more {what}{'s' * (n > 1)}" for n, what in counts if n > 0):
            out.append(Row("", line((f"  and {left} (enter)", "dim"))))
    return out


def _parting_rows(parting: Sequence[PartingWords], width: int, signs: Glyphs) -> list[Row]:
    """The step at which a winner and a loser part, its words marked."""
    out: list[Row] = []
    for sign, name, words in parting:
        won = sign == "+"
        lead = f" {signs.won if won else signs.lost} r{name.rpartition('r')[2]} parts: "
        spans = change_spans((kind, display_text(text)) for kind, text in words)
        lines = paragraph(spans, max(8, width - _EDGE - len(lead)))
        for n, each in enumerate(lines):
            first = (lead, "won" if won else "lost") if not n else (" " * len(lead), "")
            out.append(Row(f"{name}/p{n}", (first, *each)))
    return out


def _witness_rows(
    witness: EvidenceRollout, width: int, opened: bool, answer: str | None, signs: Glyphs
) -> list[Row]:
    sign = {"+": signs.won, "-": signs.lost}.get(witness.sign, "?")
    style = {"+": "won", "-": "lost"}.get(witness.sign, "flag")
    rollout, verdict = witness.rollout, witness.verdict
    reward = "  ? " if verdict is None or verdict.reward is None else f"{verdict.reward:4.2f}"
    tokens = f"{rollout.usage.completion_tokens:>6}t"
    lead: Line = line(" ", (f"{sign} r{rollout.index}", style), f" {reward}{tokens}  ")
    said = rollout.tail or rollout.error or "(said nothing)"
    last = display_text(said.strip().rsplit("\n", 1)[-1][-400:])
    if rollout.status == "truncated":
        last = f"{last} (cut at max tokens)"
    if not opened:
        judged = _verdict_text(witness)
        room = max(8, width - 21)
        tail = fit(judged, room // 2, signs.ellipsis) if judged else ""
        words = fit(last, max(8, room - len(tail) - 2), signs.ellipsis)
        return [Row(witness.id, (*lead, (words, ""), *(((f"  {tail}", "dim"),) if tail else ())))]
    edge = " " * width_of(lead)
    reason = wrap(_verdict_text(witness, whole=True), max(8, width - _EDGE - len(edge)))
    rows = [Row(witness.id, (*lead, (reason[0], "dim")))]
    for n, each in enumerate(reason[1:]):
        rows.append(Row(f"{witness.id}/v{n}", line(edge, (each, "dim"))))
    body = answer if answer is not None else said
    if len(body) > _WHOLE_CHARS:
        body = f"… {body[-_WHOLE_CHARS:]}"
    pieces = wrap(display_text(body.strip()), max(8, width - _EDGE - 5))
    return rows + [Row(f"{witness.id}/{n}", line("     ", each)) for n, each in enumerate(pieces)]


def _verdict_text(witness: EvidenceRollout, *, whole: bool = False) -> str:
    verdict = witness.verdict
    if verdict is None:
        return "not judged"
    said = verdict.critique or verdict.error or ""
    if witness.doubt:
        said = f"doubted: {witness.doubt}" + (f" ({said})" if said else "")
    return display_text(said[:_WHOLE_CHARS]) if whole else excerpt(said)


def record_files_text(groups: Sequence[GroupEvidence]) -> str:
    """Where the rollouts are recorded: `records/step-0001.jsonl`."""
    files = dict.fromkeys(
        f"records/{ref.file}"
        for group in groups
        for witness in group.witnesses
        for ref in witness.rollout.refs
    )
    more = f" and {len(files) - 2} more" if len(files) > 2 else ""
    return ", ".join(list(files)[:2]) + more


def similar_rows(
    near: Sequence[Near],
    width: int,
    pinned: Collection[str] = (),
    pin: str = "",
    deleting: Mapping[str, str] | None = None,
) -> list[Row]:
    """Each on as many lines as it takes; `pin` is the sign of those that are `pinned`.

    `deleting` are the experiences that an open operation deletes, with its id.
    """
    out: list[Row] = []
    for name, score, text in near:
        lead = f"{excerpt(name)[:8]:<5} {score:.2f}  " + f"{pin} " * (name in pinned)
        first, *further = wrap(display_text(text), max(8, width - len(lead) - 2))
        more = [line(" " * len(lead), piece) for piece in further]
        if by := (deleting or {}).get(name):
            more.append(line((" " * len(lead) + f"{excerpt(by)} deletes it", "flag")))
        out.append(Row(name, line((lead, "title"), first), tuple(more)))
    return out
