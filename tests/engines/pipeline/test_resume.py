"""A run cut anywhere and resumed ends as an undisturbed one, and pays for nothing twice."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import orjson
import pytest

from engines.core.codec import digest_bytes, to_dict
from engines.core.events import DurableEvent, RunResumed, RunStarted
from engines.core.text.prompts import load_prompt
from engines.core.types import Decision, Operation
from engines.record import lines
from engines.record.journal import Entry, Journal
from tests.support.harness import Practised, ScriptedPerson, practised

TWO_STEPS = (
    "practice.epochs=1",
    "practice.batch_size=3",
    "practice.group_size=3",
    "data.truncate=6",
    "practice.experiences_per_query=2",
    "evaluation.do_eval=true",
    "evaluation.limit=2",
)


def chosen(operation: Operation) -> Decision:
    """Approve, edit and reject in turn, by the number of the operation."""
    number = int(operation.id.rpartition(".")[2])
    match number % 3:
        case 0:
            return Decision(operation.id, "reject", reason="not needed", reviewer="person")
        case 1:
            return Decision(operation.id, "approve", reviewer="person")
        case _:
            text = f"{operation.text} (edited)"
            return Decision(operation.id, "edit", text=text, reviewer="person")


class Photographed(Journal):
    """Copies the workspace before and after each event reaches the disk.

    Each copy is what a `kill -9` at that moment would have left behind.
    """

    workspace: Path
    album: Path
    pictures = 0

    async def append(self, event: DurableEvent, request: str = "") -> Entry:
        self._take(f"before-{type(event).__name__}")
        entry = await super().append(event, request)
        self._take(f"after-{type(event).__name__}")
        return entry

    def _take(self, name: str) -> None:
        type(self).pictures += 1
        shutil.copytree(self.workspace, self.album / f"{self.pictures:04d}-{name}", symlinks=True)


class PhotographedChanges(Photographed):
    """Keeps one copy of what did not change, under its last name: most equal the one before.

    Copying costs more than the practice between two events.
    """

    last: Path | None = None
    last_seen: object = None

    def _take(self, name: str) -> None:
        cls = type(self)
        seen = [
            (path, (facts := path.stat()).st_ino, facts.st_mtime_ns, facts.st_size)
            for path in sorted(self.workspace.rglob("*"))
        ]
        if cls.last is None or seen != cls.last_seen:
            super()._take(name)
        else:
            cls.pictures += 1
            cls.last.rename(self.album / f"{cls.pictures:04d}-{name}")
        cls.last, cls.last_seen = self.album / f"{cls.pictures:04d}-{name}", seen


def _mark(folder: Path) -> bytes:
    """Of all files below a folder, by name and content."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [(str(path.relative_to(folder)), digest_bytes(path.read_bytes())) for path in paths]
    return repr(files).encode()


def recorded(run_folder: Path) -> Counter[str]:
    """How often each key and request stands in the records."""
    found: Counter[str] = Counter()
    for path in sorted((run_folder / "records").glob("*.jsonl")):
        for line in lines.read(path, chained=False).lines:
            data = orjson.loads(line.body)
            found[f"{data['key']}{data['request']}"] += 1
    return found


def library_commits(workspace: Path) -> list[object]:
    """The library's journal without times."""
    rows = []
    for entry in Journal(workspace / "libraries/rehearsal/journal.jsonl").entries:
        data = to_dict(entry.event)
        for pair in data.get("reviewed", []):
            pair[1].pop("at")
        rows.append(data)
    return rows


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A workspace of an undisturbed run, and a folder of its photographs."""
    root = tmp_path_factory.mktemp("undisturbed")
    workspace, photographs = root / "practice", root / "album"
    photographs.mkdir()
    camera = type("Camera", (PhotographedChanges,), {"workspace": workspace, "album": photographs})
    asyncio.run(
        practised(workspace, *TWO_STEPS, reviewers=[ScriptedPerson(chosen)], open_journal=camera)
    )
    return workspace, photographs


async def resumed(photograph: Path, tmp_path: Path) -> tuple[Practised, ScriptedPerson, Path]:
    workspace = tmp_path / photograph.name
    shutil.copytree(photograph, workspace, symlinks=True)
    person = ScriptedPerson(chosen)
    return await practised(workspace, *TWO_STEPS, reviewers=[person]), person, workspace


async def test_a_run_cut_at_any_event_and_resumed_ends_as_if_it_had_not_been(
    album: tuple[Path, Path], tmp_path: Path
) -> None:
    undisturbed, photographs = album
    wanted = await practised(undisturbed, *TWO_STEPS)  # nothing left to do: reads its end
    everything = recorded(undisturbed / "runs/rehearsal")
    assert wanted.asked == 0
    assert set(everything.values()) == {1}
    commits, decisions = library_commits(undisturbed), wanted.decisions()
    taken = sorted(photographs.iterdir())
    assert (
        int(taken[-1].name[:4]) > 100
    )  # two steps of 3 × 3 rollouts, judged, reflected on, decided
    # Events that wait together reach the disk together: most equal one before.
    cuts = {_mark(photograph): photograph for photograph in taken}
    assert len(cuts) > 30
    for cut in cuts.values():
        before = recorded(cut / "runs/rehearsal")
        got, person, workspace = await resumed(cut, tmp_path)
        where = cut.name
        assert got.texts == wanted.texts, where
        assert library_commits(workspace) == commits, where
        assert got.decisions() == decisions, where
        assert recorded(workspace / "runs/rehearsal") == everything, where
        # Whatever had been recorded was taken from there, named by the journal or not.
        assert got.asked == len(everything) - len(before), where
        decided_before = {d["operation_id"] for d in _decided_at(cut)}
        assert not decided_before & set(person.asked), where


def _decided_at(cut: Path) -> list[dict[str, str]]:
    path = cut / "runs/rehearsal/journal.jsonl"
    if not path.exists():
        return []
    contents = lines.read(path, chained=True)
    events = [orjson.loads(line.body) for line in contents.lines]
    return [e["decision"] for e in events if e["kind"] == "OperationDecided"]


async def test_a_finished_run_goes_on_when_epochs_grow_and_reuses_its_library(
    tmp_path: Path,
) -> None:
    first = await practised(tmp_path, *TWO_STEPS)
    more = await practised(tmp_path, *TWO_STEPS, "practice.epochs=2")
    assert first.run == more.run
    assert more.state.steps_finished == 4
    assert [step.epoch for step in more.state.steps.values()] == [1, 1, 2, 2]
    assert more.library.version >= first.library.version


async def test_a_start_and_a_resume_name_the_prompt_files_that_a_run_may_send(
    tmp_path: Path,
) -> None:
    await practised(tmp_path, "practice.epochs=1")
    again = await practised(tmp_path, "practice.epochs=2")
    opened = [entry.event for entry in again.run.entries()]
    begun = [e for e in opened if isinstance(e, RunStarted | RunResumed)]
    assert [type(event) for event in begun] == [RunStarted, RunResumed]
    for event in begun:
        extract = load_prompt("engines.training_free", "extract")
        assert event.prompts["training_free/extract"] == extract.hash
        assert {"core/guidance", "verifiers/rubric", "config/instructions"} <= event.prompts.keys()


async def test_restart_at_step_n_adopts_the_steps_before_and_leaves_the_old_run_whole(
    tmp_path: Path,
) -> None:
    old = await practised(tmp_path, *TWO_STEPS)
    journal = old.run.journal.read_bytes()
    fork = await practised(tmp_path, *TWO_STEPS, restart_step=1)
    assert fork.run.run == "rehearsal-2"
    assert fork.state.started is not None
    assert fork.state.started.forked_from == "rehearsal"
    assert list(fork.state.steps) == [2]
    assert old.run.journal.read_bytes() == journal
    # Same seed, same start: the second step comes out as it did the first time.
    assert fork.texts == old.texts


async def test_restart_at_step_0_starts_a_new_run_with_an_empty_library(tmp_path: Path) -> None:
    old = await practised(tmp_path, *TWO_STEPS)
    fresh = await practised(tmp_path, *TWO_STEPS, restart_step=0)
    assert fresh.run.run == "rehearsal-2"
    assert fresh.library.name == "rehearsal-2"
    # Nothing of what the old run practised is used; held-out results are found by content.
    measured = sum(e.reused for e in fresh.state.evaluations)
    assert fresh.asked + measured == old.asked + sum(e.reused for e in old.state.evaluations)
    assert measured > 0


GATED = (
    "practice.epochs=1",
    "practice.batch_size=3",
    "practice.group_size=3",
    "data.truncate=12",
    "data.shuffle=false",
    "evaluation.do_eval=false",
    "review.gate={problems: 9, k: 4, error: 0.5}",
    "seed=5",
)


async def test_a_run_that_tries_its_operations_can_be_cut_at_any_event_too(tmp_path: Path) -> None:
    workspace, photographs = tmp_path / "undisturbed", tmp_path / "album"
    photographs.mkdir()
    camera = type("Camera", (PhotographedChanges,), {"workspace": workspace, "album": photographs})
    first = await practised(workspace, *GATED, open_journal=camera)
    everything = recorded(workspace / "runs/rehearsal")
    wanted = [(e.operations, e.effect, e.error) for e in first.state.effects]
    worth = {e.effect for e in first.state.effects if e.effect.verdict == "helps"}
    assert set(first.library.notes.effects.values()) == worth
    step = first.state.effects[0].step
    together = sum(e.step == step for e in first.state.effects)
    assert first.state.effects[0].error == pytest.approx(0.5 / (5 - step) / together)  # of 4 steps
    assert wanted and {e.verdict for _, e, _ in wanted} >= {"helps"}
    cuts = {_mark(photograph): photograph for photograph in sorted(photographs.iterdir())}
    tried = [cut for cut in cuts.values() if "Effect" in cut.name or "Lesson" in cut.name]
    assert len(tried) > 3
    for cut in tried:
        again = tmp_path / cut.name
        shutil.copytree(cut, again, symlinks=True)
        before = recorded(cut / "runs/rehearsal")
        got = await practised(again, *GATED)
        found = [(e.operations, e.effect, e.error) for e in got.state.effects]
        assert (found, got.texts) == (wanted, first.texts), cut.name
        assert got.asked == len(everything) - len(before), cut.name
        assert recorded(again / "runs/rehearsal") == everything, cut.name


async def test_only_what_was_tried_alone_and_let_in_as_it_was_has_its_worth_noted(
    tmp_path: Path,
) -> None:
    person = ScriptedPerson(chosen)  # approves op1.1, edits op1.2, rejects op1.3
    found = await practised(tmp_path / "alone", *GATED, reviewers=[person])
    approved = {d["operation_id"] for d in found.decisions() if d["action"] == "approve"}
    tried = {name: e.effect for e in found.state.effects for name in e.operations}
    assert approved & tried.keys() and tried.keys() - approved
    noted = set(found.library.notes.effects.values())
    assert noted and noted <= {tried[name] for name in approved & tried.keys()}
    lesson = "review.gate={problems: 9, k: 4, error: 0.5, unit: lesson}"
    whole = await practised(tmp_path / "whole", *GATED, lesson)
    assert any(len(e.operations) > 1 for e in whole.state.effects)
    alone = {e.effect for e in whole.state.effects if len(e.operations) == 1}
    assert set(whole.library.notes.effects.values()) <= alone
