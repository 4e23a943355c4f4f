"""A group and one of its rollouts as lines: parts that fold, text that is searched.

Pure. Long texts are wrapped once for each width and kept, so that a key wraps nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from engines.core.frozen import frozen
from engines.core.text import tool_text
from studio.render.words import acted_text, count_text, metrics_text
from studio.secrets.sanitize import one_line
from studio.tui.drawing.cells import fit, pad, wrap_pieces
from studio.tui.drawing.lines import Line, Row, Span, display_text, labelled_lines, line, paragraph
from studio.tui.pages.live.view import RolloutStatus

if TYPE_CHECKING:
    from studio.facts.step import ModelCall, RolloutFacts
    from studio.review.divergence import Divergence, PartingStep

LABEL = 10
LIVE_TAIL_CHARS = 20_000
"""Shown of a text under way: it is wrapped anew with every frame."""
TOOLS = ("calls", "tool")
"""Labels of tool calls and their results."""
FOLDED = ("system", "think", *TOOLS)
"""Labels of parts that begin folded."""
_SHORT = {"planner_main": "planner", "planner_fixed": "analysis"}  # labels


@frozen
class GroupSummary:
    id: str
    problem: str
    epoch: int
    library_version: int
    members: tuple[RolloutStatus, ...]
    policy_version: int | None = None  # of a run that trains weights
    question: str = ""  # where a record of it was read
    rollouts: Mapping[str, RolloutFacts] = field(default_factory=dict)  # those that have ended
    target: str = ""  # the rollout that was asked for, if one was

    @property
    def ids(self) -> list[str]:
        return [member.id for member in self.members]

    @property
    def version_text(self) -> str:
        if self.policy_version is not None:
            return f"policy v{self.policy_version}"
        return f"library v{self.library_version}"


@frozen
class Part:
    """A piece of a rollout; `text` is inert and settled. `note` stands beside its label."""

    key: str
    label: str
    text: str
    style: str = ""
    note: str = ""


@frozen
class Hit:
    """Where a searched text stands, or words that differ: characters of a part."""

    part: str
    start: int
    end: int
    style: str = "flag"


@frozen
class MarkedParts:
    """Parts with the words that only this rollout says between signs, and where those are."""

    parts: tuple[Part, ...]
    hits: tuple[Hit, ...] = ()
    step: Hit | None = None  # at which it parts from the other


def mark_parting(parts: tuple[Part, ...], at: PartingStep, kind: str) -> MarkedParts:
    """`kind` is "added" of a winner, whose words stand in `{+ +}`, else "removed"."""
    left, right = ("{+", "+}") if kind == "added" else ("[-", "-]")
    part = next(one for one in parts if one.key == at.key)
    text, done, hits = "", 0, []
    for start, end in at.marked:
        text += part.text[done:start]
        done = end
        hits.append(Hit(at.key, len(text), len(text) + end - start + 4, kind))
        text += left + part.text[start:end] + right
    step = Hit(at.key, at.start, at.end + 4 * len(hits))
    marked = replace(part, text=text + part.text[done:])
    return MarkedParts(tuple(marked if one is part else one for one in parts), tuple(hits), step)


Pair = tuple[str, str, "Divergence"]
"""A winner and a loser, and where they part."""
Side = tuple[tuple[str, tuple[Part, ...]], ...]
"""Rollouts of one outcome, each with its parts."""


@lru_cache(maxsize=8)
def compare_sides(winners: Side, losers: Side, question: str) -> Pair | None:
    """Return those that part latest; they are compared once, however often they are drawn."""
    from studio.review.divergence import choose_pair

    won = {name: said_pieces(parts) for name, parts in winners}
    lost = {name: said_pieces(parts) for name, parts in losers}
    return choose_pair(won, lost, question)


def said_pieces(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """What of a rollout is compared with another: all but its prompt and its verdict."""
    said = ("thinkm", "answerm", "callm", "toolm")
    return [(part.key, part.text) for part in parts if part.key.startswith(said)]


_MARKS = {"won": "+", "lost": "-", "error": "!", "open": "?", "streaming": ">", "queued": "."}


def group_rows(group: GroupSummary, width: int, live: Collection[str] = ()) -> list[Row]:
    """A row a rollout: its sign, reward, tokens, turns and calls, and what went wrong.

    `live` are those of which a text streams now.
    """
    words = {"streaming": "under way", "queued": "queued"}
    states = ["streaming" if each.id in live else each.state for each in group.members]
    texts = [
        words.get(state, each.said.removeprefix("reward "))
        for each, state in zip(group.members, states, strict=True)
    ]
    room = max(map(len, texts), default=0)
    rows = []
    for member, state, text in zip(group.members, states, texts, strict=True):
        row = f"r{member.index:<2} {_MARKS[state]} {text:<{room}}"
        if member.tokens:
            row += f" {member.tokens:>4}t"
        if member.acted:
            row += f" {member.acts}"
        style = "flag" if state in ("open", "error") else state
        rows.append(Row(member.id, line((fit(row.rstrip(), width), style))))
    return rows


def answer_lines(
    whole: RolloutFacts | None, truth: str | None, group: GroupSummary, width: int
) -> list[Line]:
    """The true answer, where the data has it, and what was stated: else the reply's last line."""
    facts: dict[str, str] = {"expected": truth or ""}
    if whole is not None:
        replies = [m.content for m in whole.messages if m.role == "assistant"]
        text = whole.finished.answer or "\n".join(replies)
        facts["got"] = next((row for row in reversed(text.splitlines()) if row.strip()), "")
    facts["problem"] = one_line(group.question or group.problem, 60)
    if whole is not None:
        facts["acted"] = acted_text(whole.finished)
    won = sum(member.state == "won" for member in group.members)
    facts["group"] = f"epoch {group.epoch}, {won} of {len(group.members)} won"
    out: list[Line] = []
    for label, text in facts.items():
        if text:
            out += labelled_lines(label, one_line(text, 300), width)
    return out


def rollout_parts(whole: RolloutFacts, *, calls: bool = False) -> tuple[Part, ...]:
    """A rollout from prompt to verdict; with `calls`, tokens and times of each call."""
    out: list[Part] = []
    for number, message in enumerate(whole.messages):
        key = f"m{number}"
        match message.role:
            case "system":
                out.append(_make_part("system" + key, "system", message.content, "dim"))
            case "assistant":
                if message.reasoning:
                    out.append(_make_part("think" + key, "think", message.reasoning, "dim"))
                if (said := tool_text.said_text(message)) or not message.tool_calls:
                    out.append(_make_part("answer" + key, message.speaker or "answer", said))
                for at, tool_call in enumerate(message.tool_calls):
                    asked = tool_text.call_text(tool_call.name, tool_call.arguments)
                    out.append(_make_part(f"call{key}.{at}", "calls", asked))
            case "tool":
                style = "" if tool_text.split_status(message.content)[0] == "ok" else "failed"
                out.append(_make_part("tool" + key, "tool", message.content.rstrip("\n"), style))
            case role:
                out.append(_make_part(role + key, role, message.content))
    if whole.finished.cited:
        out.append(_make_part("cites", "cites", ", ".join(whole.finished.cited)))
    out += _verdict_parts(whole)
    for number, call in enumerate(whole.calls if calls else ()):
        label = f"turn {call.turn}"
        out.append(_make_part(f"calls{number}", label, _call_text(call)))
    return tuple(out)


def _call_text(call: ModelCall) -> str:
    usage = call.usage
    texts = [
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        f"{call.elapsed_s:.2f} s",
        f"finish {call.finish}",
        call.model,
    ]
    if usage.cost_usd is not None:
        texts.insert(2, f"${usage.cost_usd:.4f}")
    if call.temperature is not None:
        texts.append(f"temperature {call.temperature:g}")
    return "  ".join([*texts, call.record])


def live_parts(text: str) -> tuple[Part, ...]:
    cut = len(text) > LIVE_TAIL_CHARS
    note = f"(under way; its last {LIVE_TAIL_CHARS:,} characters)" if cut else "(under way)"
    out: list[Part] = []
    for number, part in enumerate(
        tool_text.split_marks(tool_text.last_chars(text, LIVE_TAIL_CHARS))
    ):
        key, about = f"live{number}", note if not out else ""
        if isinstance(part, str):
            out.append(_make_part(key, "answer", part.strip("\n"), "", about))
        elif isinstance(part, tool_text.CallMark):
            out.append(
                _make_part(key, "calls", tool_text.call_text(part.name, part.arguments), "", about)
            )
        else:
            style = "" if part.status == "ok" else "failed"
            out.append(
                _make_part(key, "tool", tool_text.model_text(part.status, part.text), style, about)
            )
    return tuple(out) or (_make_part("live", "answer", "", "", note),)


def _verdict_parts(whole: RolloutFacts) -> list[Part]:
    verdict, rollout = whole.verdict, whole.finished
    reward, style = "not judged yet", "flag"
    if verdict is not None and verdict.reward is None:
        reward = f"none: {verdict.error or 'no opinion'}"
    elif verdict is not None and verdict.reward is not None:
        style = "won" if verdict.reward >= 0.5 else "lost"
        reward = f"{verdict.reward:g} {style}{metrics_text(verdict.metrics)}"
    out = [_make_part("reward", "reward", reward, style)]
    if verdict is not None and verdict.critique:
        out.append(_make_part("critique", "critique", verdict.critique))
    if rollout.error:
        out.append(_make_part("error", "error", rollout.error, "failed"))
    spent = f"{rollout.usage.prompt_tokens} + {rollout.usage.completion_tokens} tokens"
    finish = f", finish {whole.finish_reason}" if whole.finish_reason else ""
    ended = f"{rollout.status}{finish}; {spent}; {rollout.elapsed_s:.2f} s; seed {rollout.seed}"
    return [*out, _make_part("ended", "ended", ended)]


@lru_cache(maxsize=512)  # sanitized once, not with every key
def _make_part(key: str, label: str, text: str, style: str = "", note: str = "") -> Part:
    return Part(key, _SHORT.get(label, label), display_text(text), style, note)


def rollout_rows(
    parts: Sequence[Part],
    width: int,
    turned: Collection[str] = (),
    hits: Sequence[Hit] = (),
    step: Hit | None = None,
) -> list[Row]:
    """The parts wrapped under their labels, a row of the list each; `>` stands beside `step`.

    System, think and tools begin folded; `turned` are keys of parts that a person unfolded, or
    folded. A part with a hit, which is highlighted, is never folded.
    """
    by_part: dict[str, list[Hit]] = {}
    for hit in hits:
        by_part.setdefault(hit.part, []).append(hit)
    out: list[Row] = []
    for part in parts:
        found = by_part.get(part.key, [])
        folded = (part.label in FOLDED) != (part.key in turned)
        here = step if step is not None and step.part == part.key else None
        out += _part_rows(part, width, folded and not (found or here), found, here)
    return out


def _part_rows(
    part: Part, width: int, folded: bool, hits: Sequence[Hit], step: Hit | None = None
) -> list[Row]:
    room = max(1, width - LABEL)
    pieces = _wrap_text(part.text, room)
    label: Span = (pad(part.label, LABEL), "key")
    indent: Span = (" " * LABEL, "")
    if folded and len(pieces) > 1:
        more = f"  [fold {count_text(len(pieces) - 1, 'line')}]"
        text = fit(" ".join(part.text[:1_000].split()), max(1, room - len(more)))
        return [Row(f"{part.key}:0", (label, (text, part.style), (more, "dim")))]
    rows: list[Row] = []
    if part.note:
        for note in paragraph([(part.note, "dim")], room):
            rows.append(Row(f"{part.key}:", (label, *note)))
            label = indent
    at = 0
    for number, piece in enumerate(pieces):
        spans = _highlight_hits(piece, at, part.style, hits)
        if step is not None and step.start < at + len(piece) and at < step.end:
            label = (f"{label[0][: LABEL - 2]}> ", "flag")
        rows.append(Row(f"{part.key}:{number}", (label, *spans)))
        label = indent
        at += len(piece)
    return rows


def _highlight_hits(piece: str, at: int, style: str, hits: Sequence[Hit]) -> Line:
    """A row of a part, which begins at its character `at`, with what was searched for marked."""
    text = piece.rstrip(" \n")
    out: list[Span] = []
    done = 0
    for hit in hits[bisect_right(hits, at, key=lambda hit: hit.end) :]:
        start, end = max(hit.start - at, 0), min(hit.end - at, len(text))
        if start >= len(text):
            break
        out += [(text[done:start], style), (text[start:end], hit.style)]
        done = end
    return tuple(span for span in (*out, (text[done:], style)) if span[0])


@lru_cache(maxsize=64)
def _wrap_text(text: str, width: int) -> tuple[str, ...]:
    return tuple(wrap_pieces(text, width))


def part_key(key: str) -> str:
    """Of a row's key, which part it belongs to."""
    return key.rpartition(":")[0]


def find_hits(parts: Sequence[Part], wanted: str) -> tuple[Hit, ...]:
    """Where a text stands, whatever its case and however its words are spaced."""
    words = display_text(wanted).split()
    if not words:
        return ()
    pattern = re.compile(r"\s+".join(re.escape(word) for word in words), re.IGNORECASE)
    return tuple(
        Hit(part.key, match.start(), match.end())
        for part in parts
        for match in pattern.finditer(part.text)
    )


def find_hit_row(hit: Hit, parts: Sequence[Part], width: int) -> str:
    part = next(one for one in parts if one.key == hit.part)
    ends = list(accumulate(len(piece) for piece in _wrap_text(part.text, max(1, width - LABEL))))
    return f"{part.key}:{bisect_right(ends, hit.start)}"


def winners_and_losers(
    members: Sequence[RolloutStatus], chosen: str
) -> tuple[list[str], list[str]]:
    """Both, best winners and worst losers first; of the chosen one's side it alone."""
    ranked = sorted(members, key=lambda one: (one.reward or 0, -one.index))
    winners = [one.id for one in reversed(ranked) if one.state == "won"]
    losers = sorted((one for one in members if one.state == "lost"),
                    key=lambda one: (one.reward or 0, one.index))  # fmt: skip

    def keep_chosen(side: list[str]) -> list[str]:
        return [chosen] if chosen in side else side

    return keep_chosen(winners), keep_chosen([one.id for one in losers])


def whole_text(parts: Sequence[Part]) -> str:
    return "\n\n".join(
        f"[{part.label}]{f' {part.note}' if part.note else ''}\n{part.text}" for part in parts
    )
