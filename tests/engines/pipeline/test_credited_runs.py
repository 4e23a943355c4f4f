"""Uses are counted once a step, whatever is cut, and shown as they were when the step began."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.library import Library
from engines.core.library_notes import UseCounts
from engines.core.protocols import Earlier, Engine, OnText, Policy
from engines.core.types import Completion, Credit, Group, Lesson, Message, Reflection, Sampling
from engines.pipeline.context import RunContext
from engines.record.journal import read_journal
from engines.record.run_dir import Workspace
from tests.engines.pipeline.test_curation import TWO_EPOCHS, head
from tests.engines.pipeline.test_settings import prompt_of, requests
from tests.support.harness import Practised, practised

THREE = (*TWO_EPOCHS, "practice.epochs=3")
ASKED = "cite its id in square brackets"


@dataclass(frozen=True)
class Citing:
    """A policy that cites the first experience where it is asked to, the answer's line included."""

    inner: Policy

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        reply = await self.inner.complete(messages, sampling, on_text)
        asked = any(ASKED in message.content for message in messages)
        return replace(reply, text=f"{reply.text} [E1]") if asked else reply

    async def ping(self) -> None:
        await self.inner.ping()

    async def aclose(self) -> None:
        await self.inner.aclose()


class Crediting:
    """An engine whose reader says of every group that its first try used E1."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.seen: dict[int, list[object]] = {}  # counts that each step's reading was shown

    async def reflect(self, group: Group, library: Library, earlier: Earlier = ()) -> Reflection:
        self.seen.setdefault(group.step, []).append(library.notes.uses)
        found = await self.inner.reflect(group, library, earlier)
        return replace(found, credits=(Credit("E1", "used", (group.rollouts[0].id,)),))

    async def consolidate(
        self, batch: Sequence[Group], reflections: Sequence[Reflection], library: Library
    ) -> Lesson:
        return await self.inner.consolidate(batch, reflections, library)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


async def credited(workspace: Path, *overrides: str, **more: int) -> Practised:
    def change(practice: RunContext) -> RunContext:
        rollouts = replace(practice.rollouts, policy=Citing(practice.rollouts.policy))
        engine: Engine = Crediting(practice.engine)  # type: ignore[assignment]
        return replace(practice, rollouts=rollouts, engine=engine)

    return await practised(workspace, *overrides, change=change, **more)  # type: ignore[arg-type]


def library_events(workspace: Path, name: str = "rehearsal") -> list[ev.DurableEvent]:
    return [entry.event for entry in read_journal(Workspace(workspace).library(name).journal_path)]


def lines_of(workspace: Path) -> list[ev.LibraryCredited]:
    return [event for event in library_events(workspace) if isinstance(event, ev.LibraryCredited)]


def begun_with(workspace: Path, name: str) -> Mapping[str, UseCounts]:
    created = library_events(workspace, name)[0]
    assert isinstance(created, ev.LibraryCreated)
    return created.uses


async def test_each_step_is_counted_once_and_citations_are_not_judged(tmp_path: Path) -> None:
    plain = await practised(tmp_path / "plain", *THREE)
    done = await credited(tmp_path, *THREE)
    assert [(one.run, one.step) for one in lines_of(tmp_path)] == [
        ("rehearsal", 2),
        ("rehearsal", 3),
    ]  # before the first step there was nothing to use
    # Four groups, four tries each: one of each group was credited, and all of them cite.
    assert lines_of(tmp_path)[0].credits == {"E1": UseCounts(used=4, cited=16)}
    assert head(tmp_path).notes.uses["E1"] == UseCounts(used=8, cited=32)
    assert done.state.rewards_by_epoch() == plain.state.rewards_by_epoch()
    assert head(tmp_path).content_hash == head(tmp_path / "plain").content_hash

    (two, three) = (
        [prompt_of(r) for r in requests(done.run, "consolidation") if r["key"]["step"] == step]  # type: ignore[index]
        for step in (2, 3)
    )
    assert not any("attempts so far" in prompt for prompt in two)
    assert all("(attempts so far: used 4, ignored 0, misled 0, cited 16)" in p for p in three)


@pytest.mark.parametrize(
    ("kind", "later"), [("LessonCommitted", 1), ("StepStarted", 1), ("LessonProposed", 2)]
)
async def test_a_step_that_is_cut_anywhere_counts_once_and_sees_what_it_saw(
    tmp_path: Path, kind: str, later: int
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = await credited(whole, *THREE)
    shutil.copytree(whole, cut)
    journal = cut / "runs/rehearsal/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line][later]
    journal.write_bytes(b"".join(lines[:at]))
    # As a repair leaves it: versions that the run no longer tells of are gone, counts are not.
    library = cut / "libraries/rehearsal/journal.jsonl"
    known = library.read_bytes().splitlines(keepends=True)
    assert b'"version":2' in known[-1]
    if later < 2:
        library.write_bytes(b"".join(known[:-1]))
    resumed = await credited(cut, *THREE)
    assert resumed.asked == 0  # every prompt is the recorded one
    assert lines_of(cut) == lines_of(whole)
    assert resumed.library.notes.uses == done.library.notes.uses


async def test_a_copy_carries_counts_over_and_a_fork_those_that_stood_at_its_step(
    tmp_path: Path,
) -> None:
    done = await credited(tmp_path, *THREE)
    fork = await credited(tmp_path, *THREE, restart_step=2)
    assert fork.library.name == "rehearsal-2"
    assert begun_with(tmp_path, "rehearsal-2") == {"E1": UseCounts(used=4, cited=16)}
    assert (
        fork.library.notes.uses == done.library.notes.uses
    )  # it practises the third step as the run did
    start = f"library.start=rehearsal@{done.library.version}"
    await credited(tmp_path, *TWO_EPOCHS[1:], "practice.epochs=1", "exp_id=copy", start)
    assert begun_with(tmp_path, "copy") == done.library.notes.uses


async def test_an_agent_that_is_not_asked_cites_nothing(tmp_path: Path) -> None:
    done = await credited(tmp_path, *TWO_EPOCHS, "agent.cite=false")
    assert not any(ASKED in prompt_of(r) for r in requests(done.run, "rollout"))
    assert head(tmp_path).notes.uses["E1"] == UseCounts(used=4)
