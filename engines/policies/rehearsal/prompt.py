"""What a reflector can read out of its prompt.

Knows nothing of the problems themselves: what is not in the text is not known here.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SECTION = re.compile(r"^## (.+)$")
_ATTEMPT = re.compile(r"^### Attempt (\d+)\b(.*)$")
_REWARD = re.compile(r"\breward (-?\d+(?:\.\d+)?)")
_PROPOSAL = re.compile(
    r"^### Proposal (\d+)\b.*·\s*(add|modify|delete|keep)\b\s*(?:\[?([A-Za-z]*\d+)\]?)?"
)
_EXPERIENCE = re.compile(r"^\[([A-Za-z]*\d+)\]\s*(\S.*)$")
_SPEAKER = re.compile(r"^\[(?:assistant|planner_\w+|executor|verifier|generator)\]\s*(?:\w+: )?")
"""Who says it and, in a team, the key of what is said."""
_TOOL = re.compile(r"^\[(?:tool|calls [^\]]*)\]")  # a call or its result: no step of an attempt
_NOTE = re.compile(r"^\((?:verifier: .*|cut off .*|rests on .*)\)$")  # about the attempt, not of it
_CRITIQUE = re.compile(r"^\(verifier: (.*)\)$")
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
class AttemptLine:
    """One line of an attempt. `label` is empty where the line has none."""

    label: str
    body: str


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """An attempt as the prompt shows it; `reward` is None where it is not told."""

    number: int
    reward: float | None
    lines: tuple[AttemptLine, ...]
    final: str
    critique: tuple[str, ...] = ()  # what the verifier says of it, line by line


@dataclass(frozen=True, slots=True)
class ShownProposal:
    number: int
    kind: str
    target: str | None
    text: str
    reason: str


def fence(json: str, fenced: bool) -> str:
    return f"```json\n{json}\n```" if fenced else json


def parse_sections(prompt: str) -> dict[str, list[str]]:
    """The lines below each `## ` heading; of headings that occur twice the last one."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in prompt.splitlines():
        if heading := _SECTION.match(line):
            lines = found[heading[1].strip()] = []
        else:
            lines.append(line)
    return found


def unquote_lines(lines: Sequence[str]) -> list[str]:
    """The quoted lines without their mark, blank ones left out."""
    bare = (line[1:].strip() for line in lines if line.startswith("|"))
    return [line for line in bare if line]


def parse_library(lines: Sequence[str]) -> dict[str, str]:
    """Id → text of the experiences shown."""
    found = (_EXPERIENCE.match(line) for line in unquote_lines(lines))
    return {match[1]: match[2].strip() for match in found if match}


def parse_attempts(lines: Sequence[str]) -> list[ShownAttempt]:
    shown: list[ShownAttempt] = []
    for heading, block in _split_blocks(lines, _ATTEMPT):
        found = _REWARD.search(heading[2])
        reward = float(found[1]) if found else None
        texts = unquote_lines(block)
        critique = tuple(match[1] for text in texts if (match := _CRITIQUE.match(text)))
        shown.append(ShownAttempt(int(heading[1]), reward, *parse_attempt(texts), critique))
    return shown


def parse_attempt(texts: Sequence[str]) -> tuple[tuple[AttemptLine, ...], str]:
    """Steps and final answer of one attempt; the answer's own line is no step."""
    steps: list[AttemptLine] = []
    final = ""
    for text in texts:
        bare = _NUMBERED.sub("", _SPEAKER.sub("", text, count=1), count=1)
        if not bare or _NOTE.match(bare) or _TOOL.match(bare):
            continue
        if match := _FINAL.match(bare):
            final = normalise_answer(next(g for g in match.groups() if g is not None))
        elif match := _LABELLED.match(bare):
            steps.append(AttemptLine((match[1] or match[2]).strip(), match[3].strip()))
        else:
            steps.append(AttemptLine("", bare.strip()))
    if not final and steps:
        numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", steps[-1].body)
        final = normalise_answer(numbers[-1]) if numbers else ""
    return tuple(steps), final


def normalise_answer(answer: str) -> str:
    """An answer so that 1,200 and $1200.0 are the same."""
    bare = answer.strip().rstrip(".").replace(",", "").replace("$", "").strip().lower()
    return re.sub(r"\.0+$", "", bare)


def parse_proposals(lines: Sequence[str]) -> list[ShownProposal]:
    proposals: list[ShownProposal] = []
    for heading, block in _split_blocks(lines, _PROPOSAL):
        texts = unquote_lines(block)
        reasons = [text for text in texts if text.lower().startswith("because:")]
        said = " ".join(text for text in texts if text not in reasons)
        reason = " ".join(text[len("because:") :].strip() for text in reasons)
        number, kind, target = heading.groups()
        proposals.append(ShownProposal(int(number), kind, target, said, reason))
    return proposals


def _split_blocks(
    lines: Sequence[str], heading: re.Pattern[str]
) -> list[tuple[re.Match[str], list[str]]]:
    blocks: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := heading.match(line):
            blocks.append((match, []))
        elif blocks:
            blocks[-1][1].append(line)
    return blocks


def parse_expected_answers(lines: Sequence[str]) -> tuple[str, ...]:
    """The answers that count as right; none where the prompt tells none."""
    texts = unquote_lines(lines) or [line.strip() for line in lines if line.strip()]
    if texts and texts[0] == _ANY_OF:
        return tuple(texts[1:])
    truth = " ".join(texts)
    return (truth,) if truth and not truth.startswith("(") else ()  # as in "(not shown)"


def split_winners(
    shown: Sequence[ShownAttempt], truth: Sequence[str]
) -> tuple[list[ShownAttempt], list[ShownAttempt]]:
    """Winners and losers; both are empty where there is no contrast.

    By reward where any is told (an attempt without one is on neither side), else by
    the expected answers where those are told, else by what most attempts answer.
    """
    known: Mapping[int, float] = {s.number: s.reward for s in shown if s.reward is not None}
    if not known:
        right = {normalise_answer(text) for text in truth}
        right = right or _majority_answer([s.final for s in shown])
        known = {s.number: float(s.final in right) for s in shown if right and s.final}
    best = max(known.values(), default=0.0)
    winners = [s for s in shown if known.get(s.number) == best]
    losers = [s for s in shown if s.number in known and known[s.number] < best]
    return (winners, losers) if losers else ([], [])


def _majority_answer(answers: Sequence[str]) -> set[str]:
    """The answer that more attempts give than any other; none where two are level."""
    counts = Counter(answer for answer in answers if answer)
    best = max(counts.values(), default=0)
    leading = {answer for answer, count in counts.items() if count == best}
    return leading if len(leading) == 1 else set()
