"""What a reflector can read out of its prompt.

Owns the reading of headings, quoted attempts, the quoted library and the quoted
proposals. Knows nothing of the problems themselves: what is not in the text is not
known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SECTION = re.compile(r"^## (.+)$")
_ATTEMPT = re.compile(r"^### Attempt (\d+)\b(.*)$")
_REWARD = re.compile(r"\breward (-?\d+(?:\.\d+)?)")
_PROPOSAL = re.compile(
    r"^### Proposal (\d+)\b.*·\s*(add|modify|delete|keep)\b\s*(?:\[?([A-Za-z]*\d+)\]?)?"
)
_EXPERIENCE = re.compile(r"^\[([A-Za-z]*\d+)\]\s*(\S.*)$")
_SPEAKER = re.compile(r"^\[(?:assistant|tool)\]\s*")
_NOTE = re.compile(r"^\((?:verifier: .*|cut off .*)\)$")  # about the attempt, not of it
_ANY_OF = "any one of:"  # above several expected answers, each on a line of its own
_NUMBERED = re.compile(r"^(?:[-*]\s+)?(?:\d+[.)]\s+)?")
_LABELLED = re.compile(
    r"^(?:\w+\s+\d+\s*)?(?:\(([^)]{1,40})\)|\*\*([^*]{1,40}?):?\*\*)\s*:?\s*(.*)$"
)
_FINAL = re.compile(
    r"^(?:####\s*(?P<hash>.+)|A:\s*(?P<a>.+)|.*\\boxed\{(?P<box>[^{}]*)\}.*"
    r"|(?:the )?(?:final )?answer(?: is)?\s*:?\s*(?P<word>.+))$",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an attempt. `label` is empty where the line has none."""

    label: str
    body: str


@dataclass(frozen=True, slots=True)
class Shown:
    """An attempt as the prompt shows it; `reward` is None where it is not told."""

    number: int
    reward: float | None
    lines: tuple[Line, ...]
    final: str


@dataclass(frozen=True, slots=True)
class Told:
    """A proposal as the prompt shows it."""

    number: int
    kind: str
    target: str | None
    text: str
    reason: str


def sections(prompt: str) -> dict[str, list[str]]:
    """The lines below each `## ` heading; of headings that occur twice the last one."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in prompt.splitlines():
        if heading := _SECTION.match(line):
            lines = found[heading[1].strip()] = []
        else:
            lines.append(line)
    return found


def quoted(lines: Sequence[str]) -> list[str]:
    """The quoted lines without their mark, blank ones left out."""
    bare = (line[1:].strip() for line in lines if line.startswith("|"))
    return [line for line in bare if line]


def library(lines: Sequence[str]) -> dict[str, str]:
    """Id → text of the experiences shown."""
    found = (_EXPERIENCE.match(line) for line in quoted(lines))
    return {match[1]: match[2].strip() for match in found if match}


def attempts(lines: Sequence[str]) -> list[Shown]:
    shown: list[Shown] = []
    for heading, block in _blocks(lines, _ATTEMPT):
        reward = _REWARD.search(heading[2])
        steps, final = read_attempt(quoted(block))
        shown.append(Shown(int(heading[1]), float(reward[1]) if reward else None, steps, final))
    return shown


def read_attempt(texts: Sequence[str]) -> tuple[tuple[Line, ...], str]:
    """Steps and final answer of one attempt; the answer's own line is no step."""
    steps: list[Line] = []
    final = ""
    for text in texts:
        bare = _NUMBERED.sub("", _SPEAKER.sub("", text, count=1), count=1)
        if not bare or _NOTE.match(bare):
            continue
        if match := _FINAL.match(bare):
            final = plain(next(g for g in match.groups() if g is not None))
        elif match := _LABELLED.match(bare):
            steps.append(Line((match[1] or match[2]).strip(), match[3].strip()))
        else:
            steps.append(Line("", bare.strip()))
    if not final and steps:
        numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", steps[-1].body)
        final = plain(numbers[-1]) if numbers else ""
    return tuple(steps), final


def plain(answer: str) -> str:
    """An answer so that 1,200 and $1200.0 are the same."""
    bare = answer.strip().rstrip(".").replace(",", "").replace("$", "").strip().lower()
    return re.sub(r"\.0+$", "", bare)


def proposals(lines: Sequence[str]) -> list[Told]:
    told: list[Told] = []
    for heading, block in _blocks(lines, _PROPOSAL):
        texts, reasons = [], []
        for text in quoted(block):
            if text.lower().startswith("because:"):
                reasons.append(text[len("because:") :].strip())
            else:
                texts.append(text)
        told.append(
            Told(int(heading[1]), heading[2], heading[3], " ".join(texts), " ".join(reasons))
        )
    return told


def _blocks(
    lines: Sequence[str], heading: re.Pattern[str]
) -> list[tuple[re.Match[str], list[str]]]:
    blocks: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := heading.match(line):
            blocks.append((match, []))
        elif blocks:
            blocks[-1][1].append(line)
    return blocks


def expected(lines: Sequence[str]) -> tuple[str, ...]:
    """The answers that count as right; none where the prompt tells none."""
    told = quoted(lines) or [line.strip() for line in lines if line.strip()]
    if told and told[0] == _ANY_OF:
        return tuple(told[1:])
    truth = " ".join(told)
    return (truth,) if truth and not truth.startswith("(") else ()  # as in "(not shown)"


def sides(shown: Sequence[Shown], truth: Sequence[str]) -> tuple[list[Shown], list[Shown]]:
    """Winners and losers.

    By reward where any is told (an attempt without one is on neither side), else by
    the expected answers where those are told, else by what most attempts answer; both
    are empty where that leaves no contrast.
    """
    known: Mapping[int, float] = {s.number: s.reward for s in shown if s.reward is not None}
    if not known:
        right = {plain(text) for text in truth} or _majority([s.final for s in shown])
        known = {s.number: float(s.final in right) for s in shown if right and s.final}
    best = max(known.values(), default=0.0)
    winners = [s for s in shown if known.get(s.number) == best]
    losers = [s for s in shown if s.number in known and known[s.number] < best]
    return (winners, losers) if losers else ([], [])


def _majority(answers: Sequence[str]) -> set[str]:
    """The answer that more attempts give than any other; none where two are level."""
    counts = {a: answers.count(a) for a in dict.fromkeys(answers) if a}
    best = max(counts.values(), default=0)
    leading = [a for a, n in counts.items() if n == best]
    return set(leading) if len(leading) == 1 else set()
