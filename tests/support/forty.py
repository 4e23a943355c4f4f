"""A run whose step is held with 38 open operations, and what one person makes of it: 42 decisions.

Every face that decides gets the same choices in the same order, so that the libraries it leaves
can be held against each other: `outcome` has all of one but its times.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engines.core.codec import to_dict
from engines.core.types import Operation
from engines.record.run_dir import Workspace
from studio.library.curation import commit_changes
from studio.process import login_name
from studio.review.review_run import open_session
from studio.session.requests import Propose
from tests.support.made_once import made_once
from tests.support.processes import SMALL, studio

RUN = "forty"
PERSON = login_name()
TOPICS = (
    "fractions", "signs", "units", "carrying", "borrowing", "brackets", "primes", "angles",
    "ratios", "percentages", "roots", "powers",
)  # fmt: skip
THINGS = (
    "a sum of money", "the age of a child", "trains that meet", "a leaking tank", "mixed coffee",
    "clock hands", "a garden fence", "shared sweets", "falling stones", "a row of seats",
    "playing cards", "a staircase", "painted cubes", "mirror images",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """What the person decides; "merge" is an edit into the experience `target`."""

    operation: str
    action: Literal["approve", "edit", "reject", "defer", "merge", "open"]
    text: str = ""
    target: str = ""
    reason: str = ""


def _proposals() -> Iterator[Operation]:
    """36 of somebody else's: 14 additions, 4 near duplicates, 10 changes, 8 deletions."""
    for thing in THINGS:
        yield Operation("", "add", text=f"Where the question is about {thing}, draw it first.")
    for number in (1, 2, 3, 4):
        topic = TOPICS[number - 1]
        text = f"Before you answer, check the {topic} of the question once more, slowly."
        yield Operation("", "add", text=text, rationale="said twice")
    for number in (5, 6, 7, 8, 9, 10, 1, 2, 3, 4):
        wording = f"Check the {TOPICS[number - 1]} twice; write each step."
        yield Operation("", "modify", f"E{number}", wording)
    for number in (11, 12, 5, 6, 7, 8, 9, 10):
        yield Operation("", "delete", f"E{number}", rationale="of no use")


def forty_workspace(folder: Path) -> Workspace:
    """A copy of the workspace, nothing decided."""
    shutil.copytree(made_once("forty", _make) / "practice", folder / "practice")
    return Workspace(folder / "practice")


def _make(folder: Path) -> None:
    place = folder / "practice"
    held = ("headless", "rehearsal", "--name", RUN, "--review", "wait", "review.hold_s=0.001")
    done = studio(place, *held, *SMALL, "data.truncate=4")
    assert done.returncode == 3, done.stderr
    workspace = Workspace(place)
    texts = [f"Before you answer, check the {topic} of the question once more." for topic in TOPICS]
    commit_changes(
        workspace, RUN, lambda _: [("add", None, text) for text in texts], person="eve", reason=""
    )
    with open_session(workspace, workspace.run(RUN), "ann") as (session, wait_for):
        for operation in _proposals():
            wait_for(session.send(Propose(operation, session.who)))


def rounds(workspace: Workspace) -> tuple[tuple[Choice, ...], ...]:
    """What is decided between two looks at the queue, in its order; the second takes one back."""
    names = [op.id for op in workspace.run(RUN).state().open_operations]
    own, adds, twins = names[:-36], names[-36:-22], names[-22:-18]
    changes, deletes = names[-18:-8], names[-8:]
    choices = [Choice(name, "approve") for name in own]
    for number, name in enumerate(adds):
        text = f"Draw {THINGS[number]} before you reckon."
        choices.append(
            (
                Choice(name, "approve"),
                Choice(name, "edit", text),
                Choice(name, "reject", reason="vague"),
                Choice(name, "reject"),
                Choice(name, "defer"),
            )[number % 5]
        )
    first = (*choices, Choice(twins[0], "approve"))
    rest = [Choice(twins[0], "reject", reason="no")]
    for number, name in enumerate(twins[1:], 2):
        text = f"Check the {TOPICS[number - 1]} of the question once more, slowly and aloud."
        rest.append(Choice(name, "merge", text, f"E{number}"))
    for number, name in enumerate(changes):
        text = f"Write each step of it, number {number}."
        change = Choice(name, "edit", text) if number % 2 else Choice(name, "approve")
        rest.append(Choice(name, "reject", reason="no") if number >= 7 else change)
    rest += [Choice(name, "approve" if n < 5 else "reject") for n, name in enumerate(deletes)]
    return first, (Choice(twins[0], "open"),), tuple(rest)


OWN = ("Say what is asked for.", "Name the unit of the answer.")
"""Typed by the person at the end of the third round."""


def commit(workspace: Workspace) -> None:
    """Let the run go on, which commits what is decided."""
    done = studio(workspace.path, "headless", "--resume", RUN)
    assert done.returncode == 3, done.stderr  # some were put off


def outcome(workspace: Workspace) -> tuple[dict[str, bytes], dict[str, Any], list[str]]:
    """Version files byte for byte, the library with its history and memory, and what is open."""
    folder = workspace.library(RUN)
    files = {path.name: path.read_bytes() for path in sorted(folder.path.glob("v*.yaml"))}
    head = to_dict(folder.head())
    for experience in head["experiences"]:
        for origin in experience["history"]:
            origin.pop("at")
    for one in head["notes"]["curated"]:
        one.pop("at", None)
    left = [op.id for op in workspace.run(RUN).state().open_operations]
    return files, head, left
