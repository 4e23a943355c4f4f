"""A task with three house rules that no model can know, and the parts that practise it.

A delivery note is right when it rounds its weight as the house does, ends it with the house's
unit, and dates it in the house's order. The solver knows of a rule only what an experience in
its prompt states, and hits one by chance now and then. The reflector reads nothing but its
prompt: what the verifier says, or the expected answer beside the others.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.core.codec import digest
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Problem, Rollout, Sampling, Usage, Verdict
from engines.pipeline.context import RunContext
from engines.policies.rehearsal.reply import read_request, write_reply
from engines.training_free.consolidation import TrainingFreeEngine

RULES = {
    "weight": "Weight: when a note gives a weight, round it down to whole tens.",
    "unit": "Unit: when a note gives a weight, end it with the letters hu.",
    "date": "Date: when a note gives a date, write day/year/month.",
}
CRITIQUES = {
    "weight": "The note is wrong, because when a note gives a weight, it must go down to tens.",
    "unit": "The note is wrong, because when a note gives a weight, it must end with hu.",
    "date": "The note is wrong, because when a note gives a date, it must be day/year/month.",
}
STATED = {
    "weight": re.compile(r"\bdown to (?:whole )?tens\b"),
    "unit": re.compile(r"\bend (?:it )?with (?:the letters )?hu\b"),
    "date": re.compile(r"\bday/year/month\b"),
}
"""What a wording must hold for the solver to follow the rule."""
_QUESTION = re.compile(r"(\d+) grams of \w+ on (\d+)-(\d+)-(\d+)")
_GOODS = ("flour", "salt", "rice", "sugar", "coffee", "tea")


def write_problems(path: Path, n: int, seed: int, *, answers: bool = True) -> Path:
    chance = random.Random(seed)
    rows = []
    for _ in range(n):
        day = f"{chance.randint(2001, 2029)}-{chance.randint(1, 12)}-{chance.randint(13, 28)}"
        question = f"Note {chance.randint(1001, 9989)} grams of {chance.choice(_GOODS)} on {day}."
        row = {"question": question}
        rows.append({**row, "answer": write_note(question, RULES)} if answers else row)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_note(question: str, followed: Sequence[str] | dict[str, str]) -> str:
    """The note as it is with these rules, and with a plain form for the others."""
    found = _QUESTION.search(question)
    assert found is not None
    grams, year, month, day = found.groups()
    weight = str(int(grams) // 10 * 10) if "weight" in followed else grams
    unit = "hu" if "unit" in followed else "g"
    date = f"{day}/{year}/{month}" if "date" in followed else f"{year}-{month}-{day}"
    return f"{weight} {unit}, {date}"


def rules_kept(question: str, note: str) -> set[str]:
    """Which rules a note keeps."""
    parts = re.fullmatch(r"(\d+) (\w+), (\S+)", note.strip())
    right = re.fullmatch(r"(\d+) (\w+), (\S+)", write_note(question, RULES))
    if parts is None or right is None:
        return set()
    pairs = zip(RULES, parts.groups(), right.groups(), strict=True)
    return {name for name, given, wanted in pairs if given == wanted}


def stated_rules(text: str) -> set[str]:
    """The rules that experiences in a prompt state."""
    known = "\n".join(re.findall(r"^(?:\| )?\[E\d+\] (.*)$", text, re.M))
    return {name for name, pattern in STATED.items() if pattern.search(known)}


@dataclass
class Solver:
    luck: float = 0.0  # how often it keeps a rule that nothing states
    name: str = "house:solver"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        system = "\n".join(m.content for m in messages if m.role == "system")
        question = messages[-1].content
        # Another prompt gives other luck, so that useless experiences move nothing but by chance.
        chance = random.Random(f"{sampling.seed} {digest(system)}")
        lucky = {name for name in RULES if chance.random() < self.luck}
        note = write_note(question, sorted(lucky | stated_rules(system)))
        return Completion(f"{question}\n{note}", usage=Usage(9, 9, 1), model="solver")

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Reflector:
    """Extracts by comparing notes; all else is the rehearsal's."""

    useless: bool = False  # its lessons hold nothing of the rules
    name: str = "house:reflector"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        text = "\n\n".join(message.content for message in messages)
        if text.startswith("# Task: extract"):
            reply = json.dumps(self._rows(text))
        else:
            plain = [{"role": m.role, "content": m.content} for m in messages]
            reply = write_reply(read_request({"model": "m", "messages": plain, "seed": 1})).text
        return Completion(f"Let me see.\n{reply}", usage=Usage(99, 9, 1), model="reflector")

    def _rows(self, text: str) -> list[dict[str, Any]]:
        problem = _section(text, "Problem")
        if self.useless:
            number = int(digest(problem), 16) % 3
            name = ("Care", "Calm", "Neat")[number]
            lesson = f"{name}: when a note is written, be {name.lower()} and look at it twice."
            return [{"operation": "add", "experience": lesson, "reason": "hope"}]
        missing = sorted(self._wanted(text, problem) - stated_rules(_section(text, "Library now")))
        if not missing:
            return []
        # Another group tells of another rule.
        name = missing[int(digest(problem), 16) % len(missing)]
        return [{"operation": "add", "experience": RULES[name], "reason": "it was wanted"}]

    def _wanted(self, text: str, problem: str) -> set[str]:
        attempts = _section(text, "Attempts")
        said = {n for n, pattern in CRITIQUES.items() if f"(verifier: {pattern})" in attempts}
        truth = _section(text, "Expected answer")
        if not truth.startswith("("):
            return said | rules_kept(problem, truth)
        notes = re.findall(r"· reward ([\d.]+)\n(?:.*\n)?(\d+ \w+, \S+)", attempts)
        rewards = [float(reward) for reward, _ in notes]
        if len(set(rewards)) < 2:
            return said
        best = next(note for reward, note in notes if float(reward) == max(rewards))
        worst = next(note for reward, note in notes if float(reward) == min(rewards))
        return said | (rules_kept(problem, best) - rules_kept(problem, worst))

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class HouseVerifier:
    """Says right or wrong, or how many of the rules are kept; why only where it speaks."""

    graded: bool = False
    speaks: bool = False

    async def check(self) -> None: ...

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        return [self._judge(problem, rollout) for rollout in rollouts]

    def _judge(self, problem: Problem, rollout: Rollout) -> Verdict:
        kept = rules_kept(problem.question, (rollout.attempt.answer or "").rsplit("\n", 1)[-1])
        reward = len(kept) / len(RULES) if self.graded else float(len(kept) == len(RULES))
        missed = "\n".join(text for name, text in CRITIQUES.items() if name not in kept)
        return Verdict(reward, (missed or None) if self.speaks else None)

    async def aclose(self) -> None: ...


def practising(verifier: HouseVerifier, reflector: Any = None, luck: float = 0.0) -> Any:
    """A change of a practice that puts these parts in; the rehearsal reflects without one."""

    def change(practice: RunContext) -> RunContext:
        rollouts = replace(practice.rollouts, policy=Solver(luck))
        if reflector is not None:
            assert isinstance(practice.engine, TrainingFreeEngine)
            practice.engine.reflector.policy = reflector
        evaluation = practice.evaluation
        if evaluation is not None:
            held_out = replace(evaluation.measuring.rollouts, policy=Solver(luck))
            measuring = replace(evaluation.measuring, rollouts=held_out, verifier=verifier)
            evaluation = replace(evaluation, measuring=measuring)
        return replace(practice, rollouts=rollouts, verifier=verifier, evaluation=evaluation)

    return change


def _section(prompt: str, name: str) -> str:
    """The quoted lines below a heading, without their marks."""
    body = prompt.partition(f"\n## {name}\n")[2].partition("\n## ")[0].strip()
    return "\n".join(line.removeprefix("| ") for line in body.splitlines())
