"""What a curator rejects stays away, and the loop is told why; lint speaks before review."""

from __future__ import annotations

import re
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core import types as names
from engines.core.errors import ConfigError, PolicyError
from engines.core.library import Library
from engines.core.types import NO_USAGE, Decision, Flag, Lesson, Operation, Problem
from engines.data.dataset import read_problems
from engines.pipeline.reviewers import AutoReviewer
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.lint import OperationLinter
from engines.training_free.settings import LintSettings
from studio.config.loading import load_run
from studio.evaluation.try_problem import without_lessons
from studio.run.held_out import open_run_embedder
from studio.run.models import check_budget, embedding_endpoint, open_budget
from tests.engines.pipeline.test_settings import prompt_of, requests
from tests.support.builders import a_library, an_operation
from tests.support.fake_endpoint import answers, fake_endpoint, refuses
from tests.support.harness import Practised, ScriptedPerson, practised
from tests.support.usage import read_usage

TWO_EPOCHS = (
    "practice.epochs=2",
    "practice.batch_size=4",
    "practice.group_size=4",
    "data.truncate=4",
    "data.shuffle=false",
)
ONE_EPOCH = ("practice.epochs=1", *TWO_EPOCHS[1:])


def rejecting(operation: Operation) -> Decision:
    return Decision(operation.id, "reject", reason=f"no: {operation.kind}", reviewer="person")


def lessons(run: RunDir) -> list[Lesson]:
    return [e.event.lesson for e in run.entries() if isinstance(e.event, ev.LessonProposed)]


def texts(operations: tuple[Operation, ...]) -> set[str]:
    return {operation.text for operation in operations}


def head(workspace: Path, name: str = "rehearsal") -> Library:
    return Workspace(workspace).library(name).head()


async def rejected(workspace: Path, *overrides: str) -> Practised:
    return await practised(workspace, *overrides, reviewers=[ScriptedPerson(rejecting)])


async def test_a_rejected_idea_is_not_proposed_again_and_its_reason_is_shown(
    tmp_path: Path,
) -> None:
    done = await rejected(tmp_path, *TWO_EPOCHS)
    first, second = lessons(done.run)
    assert len(first.operations) > 1
    assert second.operations == ()  # the same problems support the same ideas
    assert texts(second.withheld) <= texts(first.operations)
    assert done.state.withheld == len(second.withheld) > 1
    for purpose in ("extraction", "consolidation"):
        before, after = (
            [prompt_of(r) for r in requests(done.run, purpose) if r["key"]["step"] == step]  # type: ignore[index]
            for step in (1, 2)
        )
        assert all("no: add" not in prompt for prompt in before)
        assert all("| because: no: add" in prompt for prompt in after)


async def test_what_was_rejected_is_remembered_by_copies_and_forks(tmp_path: Path) -> None:
    await rejected(tmp_path, *ONE_EPOCH)
    ideas = head(tmp_path).notes.curated
    assert head(tmp_path).version == 0 and len(ideas) > 1

    fork = await practised(tmp_path, *TWO_EPOCHS, restart_step=1)
    assert fork.library.name == "rehearsal-2"
    assert fork.library.notes.curated == ideas
    assert fork.state.withheld > 0 and fork.texts == []

    copy = await practised(
        tmp_path, *ONE_EPOCH, "exp_id=copy", "library.name=copy", "library.start=rehearsal@0"
    )
    assert copy.library.notes.curated == ideas
    assert (copy.state.withheld, copy.texts) == (len(ideas), [])

    fresh = await practised(tmp_path, *ONE_EPOCH, "exp_id=fresh")
    assert fresh.library.notes.curated == () and len(fresh.texts) > 1


async def test_a_rejection_outlives_a_crash_between_the_two_journals(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = await rejected(whole, *TWO_EPOCHS)
    shutil.copytree(whole, cut)
    _cut_before(cut / "runs/rehearsal/journal.jsonl", "LessonCommitted")
    resumed = await rejected(cut, *TWO_EPOCHS)
    assert resumed.asked == 0  # every request is the recorded one
    assert head(cut).notes.curated == head(whole).notes.curated
    assert head(cut).notes.mark.decisions == len(done.decisions())
    assert (resumed.state.withheld, lessons(resumed.run)) == (
        done.state.withheld,
        lessons(done.run),
    )


def _cut_before(journal: Path, kind: str) -> None:
    raw = journal.read_bytes()
    found = re.search(rf'\n[^\n]*"kind":"{kind}"'.encode(), raw)
    assert found is not None
    journal.write_bytes(raw[: found.start() + 1])


@pytest.mark.parametrize("below", ["nobody", "others"])
async def test_a_run_that_was_cut_back_is_withheld_nothing_by_its_own_later_rejections(
    below: str, tmp_path: Path
) -> None:
    done = await rejected(tmp_path, *ONE_EPOCH)
    _cut_before(tmp_path / "runs/rehearsal/journal.jsonl", "StepStarted")
    if below == "others":
        with Workspace(tmp_path).library("rehearsal").lock_for_commit() as library:
            idea = an_operation("add", None, "Elsewhere: an odd idea.")
            library.commit([(idea, replace(rejecting(idea), at=5.0))], run="other", step=1)
    resumed = await rejected(tmp_path, *ONE_EPOCH)
    assert resumed.state.withheld == 0
    if below == "others":  # what they rejected meanwhile is shown, as to any step that begins
        (lesson,) = lessons(resumed.run)
        assert texts(lesson.operations) == texts(lessons(done.run)[0].operations)
    else:
        assert (resumed.asked, lessons(resumed.run)) == (0, lessons(done.run))


async def test_a_fork_takes_no_rejection_that_came_after_its_last_adopted_step(
    tmp_path: Path,
) -> None:
    await practised(tmp_path, *TWO_EPOCHS)
    run = Workspace(tmp_path).run("rehearsal").state()
    version = run.steps[1].committed_version
    assert version == run.library_version  # so that only what is remembered has moved since
    with Workspace(tmp_path).library("rehearsal").lock_for_commit() as library:
        idea = an_operation("add", None, "Later: an odd idea.")
        library.commit([(idea, replace(rejecting(idea), at=5.0))], run="other", step=1)
    fork = await practised(tmp_path, *TWO_EPOCHS, restart_step=1)
    assert fork.library.name == "rehearsal-2"
    assert fork.library.notes.curated == ()


async def test_rejections_from_elsewhere_change_no_request_of_a_step_that_is_resumed(
    tmp_path: Path,
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = await practised(whole, *ONE_EPOCH)
    shutil.copytree(whole, cut)
    _cut_before(cut / "runs/rehearsal/journal.jsonl", "GroupReflected")
    shutil.copy(_first_line(cut / "libraries/rehearsal/journal.jsonl"), cut)
    with Workspace(cut).library("rehearsal").lock_for_commit() as library:
        idea = an_operation("add", None, lessons(done.run)[0].operations[0].text, id="op9.9")
        library.commit([(idea, replace(rejecting(idea), at=5.0))], run="other", step=1)
    resumed = await practised(cut, *ONE_EPOCH)
    assert resumed.asked == 0
    assert lessons(resumed.run) == lessons(done.run)
    assert [c.run for c in resumed.library.notes.curated] == ["other"]


def _first_line(journal: Path) -> Path:
    """Leave only the library's beginning: its commits belong to what was cut."""
    raw = journal.read_bytes()
    journal.write_bytes(raw[: raw.index(b"\n") + 1])
    return journal


async def test_a_step_that_begins_later_is_shown_what_others_rejected_meanwhile(
    tmp_path: Path,
) -> None:
    await practised(tmp_path, *ONE_EPOCH, review="auto")
    with Workspace(tmp_path).library("rehearsal").lock_for_commit() as library:
        idea = an_operation("add", None, "Elsewhere: an odd idea.")
        library.commit([(idea, replace(rejecting(idea), at=5.0))], run="other", step=1)
    done = await practised(tmp_path, *TWO_EPOCHS)
    second = [r for r in requests(done.run, "extraction") if r["key"]["step"] == 2]  # type: ignore[index]
    assert second
    assert all("Elsewhere: an odd idea." in prompt_of(r) for r in second)


async def test_an_ordinary_rehearsal_leaks_nothing_and_an_edit_that_leaks_is_flagged(
    learned: Practised, tmp_path: Path
) -> None:
    problems = read_problems(Path(str(files("sample_data"))) / "arithmetic.jsonl")
    story = next(p for p in problems if p.source == "two-step story")

    def leaking(operation: Operation) -> Decision:
        text = f"Story {operation.id}: {story.question}"
        return Decision(operation.id, "edit", text=text, reviewer="person")

    raised = [f.name for le in lessons(learned.run) for op in le.operations for f in op.flags]
    assert len(learned.texts) == 4
    assert not {names.LEAK, names.HELD_OUT_LEAK} & set(raised)

    person = ScriptedPerson(leaking)
    edited = await practised(tmp_path / "edited", *ONE_EPOCH, reviewers=[person])
    decided = [d for d in edited.decisions() if d["action"] == "edit"]
    assert decided
    assert all(names.LEAK in {f["name"] for f in d["flags"]} for d in decided)


async def test_bundled_lessons_leak_none_of_the_bundled_problems(learned: Practised) -> None:
    folder = Path(str(files("sample_data")))
    sets = [
        read_problems(folder / f"{name}.jsonl")
        for name in ("arithmetic", "arithmetic-heldout", "arithmetic-larger")
    ]
    every = [problem for problems in sets for problem in problems]
    linter = OperationLinter(practised=every, held_out=sets[1])
    for _, text in learned.texts:
        operation = replace(an_operation("add", None, text), problems=tuple(p.id for p in every))
        assert await linter.flags_of((operation,), a_library()) == ((),)
    planted = an_operation("add", None, f"{learned.texts[0][1]} {sets[1][2].question}")
    (found,) = await linter.flags_of((planted,), a_library())
    assert names.HELD_OUT_LEAK in [flag.name for flag in found]


async def test_auto_leaves_a_held_out_question_to_a_person() -> None:
    leak = Flag(names.HELD_OUT_LEAK, 1.0, "repeats 9 words in a row of a held-out question")
    held = replace(an_operation(id="op1.1"), flags=(leak,))
    near = replace(an_operation(id="op1.2"), flags=(Flag(names.ONE_GROUP, None, "x"),))
    decided = [d async for d in AutoReviewer().review([held, near], a_library())]
    assert [(d.action, d.reason) for d in decided] == [("defer", leak.detail), ("approve", "")]


@pytest.mark.parametrize(
    ("flag", "action"),
    [
        (Flag(names.LEAK, 0.5, "names 42"), "reject"),
        (Flag(names.INJECTION, None, "ignore all"), "reject"),
        (Flag(names.TOO_LONG, 0.2, "80 words"), "approve"),
        (Flag(names.CONFLICT, None, "contradicts E1: it says otherwise"), "reject"),
        (Flag(names.CONFLICT, None, "contradicts E7: it says otherwise"), "approve"),  # it is gone
        (Flag(names.DUPLICATE, 0.95, "has nearly the wording of E1: one"), "reject"),
        (Flag(names.DUPLICATE, 0.85, "has nearly the wording of E1: one"), "approve"),
        (Flag(names.DUPLICATE, None, "the reflector says that it repeats E1"), "reject"),
        (Flag(names.DUPLICATE, 0.95, "has nearly the wording of op1.3: one"), "approve"),
    ],
)
async def test_auto_rejects_what_is_surely_bad_with_the_reason(flag: Flag, action: str) -> None:
    operation = replace(an_operation("add", None, "three"), flags=(flag,))

    async def decided(reviewer: AutoReviewer) -> Decision:
        (made,) = [d async for d in reviewer.review([operation], a_library("one", "two"))]
        return made

    made = await decided(AutoReviewer())
    reason = f"{flag.name}: {flag.detail}" if action == "reject" else ""
    assert (made.action, made.reason) == (action, reason)
    assert (await decided(AutoReviewer(()))).action == "approve"


@pytest.mark.parametrize(
    ("setting", "flag"),
    [("lint.max_words=5", names.TOO_LONG), ("lint.duplicate_at=0.2", names.DUPLICATE)],
)
async def test_lint_settings_reach_the_lessons_flags(
    tmp_path: Path, setting: str, flag: str
) -> None:
    def raised(done: Practised) -> set[str]:
        return {f.name for le in lessons(done.run) for op in le.operations for f in op.flags}

    assert flag not in raised(await practised(tmp_path / "plain", *ONE_EPOCH))
    assert flag in raised(await practised(tmp_path / "set", *ONE_EPOCH, setting))


async def test_eight_words_in_a_row_give_a_question_away() -> None:
    problem = Problem("p1", "How many of the seventeen red apples are left at noon?", "5")
    near = an_operation("add", None, "Apples: count how many of the seventeen red apples went.")

    async def flagged(**settings: int) -> bool:
        linter = OperationLinter(LintSettings(**settings), practised=[problem])
        (found,) = await linter.flags_of((near,), a_library())
        return names.LEAK in [flag.name for flag in found]

    assert not await flagged()  # seven words in a row, and eight are wanted
    assert await flagged(leak_words=5)


async def test_an_embedding_model_is_asked_at_the_start_and_rehearsal_needs_none(
    tmp_path: Path,
) -> None:
    done = await practised(tmp_path / "offline", *ONE_EPOCH, "lint.embedding=rehearsal")
    assert len(done.texts) > 1
    async with fake_endpoint(refuses(401, "bad key")) as fake:
        with pytest.raises(PolicyError, match="openai:e"):
            await practised(
                tmp_path / "refused",
                *ONE_EPOCH,
                "lint.embedding={model: openai:e, api_key: k-1}",
                f"lint.embedding.base_url={fake.base_url}",
            )
    assert not (tmp_path / "refused/runs/rehearsal/journal.jsonl").exists()


POLICY = "policy={model: openai:m, base_url: http://127.0.0.1:9/v1, api_key: k-1}"


async def test_embeddings_use_the_policy_s_endpoint_unless_they_name_one(tmp_path: Path) -> None:
    base = load_run("api", [POLICY, "lint.embedding=openai:e"], tmp_path, {})
    own = load_run(
        "api",
        [POLICY, "lint.embedding={model: openai:e, base_url: http://127.0.0.1:7/v1}"],
        tmp_path,
        {},
    )
    async with AsyncExitStack() as stack:
        for loaded, address, key in ((base, ":9", "k-1"), (own, ":7", None)):
            with pytest.raises(PolicyError, match=re.escape(f"127.0.0.1{address}")):
                await open_run_embedder(loaded, Workspace(tmp_path), stack)
            assert loaded.config.lint.embedding is not None
            assert embedding_endpoint(loaded.config, loaded.config.lint.embedding).api_key == key


async def test_a_budget_in_dollars_needs_the_price_of_embeddings(tmp_path: Path) -> None:
    priced = [f"{role}.price_{way}_usd_per_mtok=1" for role in ("policy",) for way in ("in", "out")]
    settings = [POLICY, *priced, "lint.embedding={model: openai:e}", "budget.cost_usd=1"]
    loaded = load_run("api", settings, tmp_path, {})
    with pytest.raises(ConfigError, match=r"Set lint\.embedding\.price_in"):
        check_budget(loaded, loaded.config)
    own = load_run("api", [*settings, "lint.embedding.price_in_usd_per_mtok=1"], tmp_path, {})
    check_budget(own, own.config)
    # What asks no embeddings needs no price of theirs.
    check_budget(loaded, without_lessons(loaded.config))


async def test_what_embeddings_cost_is_counted_by_a_budget_after_a_resume(tmp_path: Path) -> None:
    embeds = answers(
        {
            "data": [{"index": at, "embedding": [1.0, at]} for at in range(64)],
            "usage": {"prompt_tokens": 5000},
        }
    )
    async with fake_endpoint(embeds) as fake:
        model = "lint.embedding={model: openai:e, api_key: k-1}"
        run = (*ONE_EPOCH, model, f"lint.embedding.base_url={fake.base_url}")
        done = await practised(tmp_path, *run, "budget.tokens=10000000")
        asked = len(fake.requests) - 1  # the ping is not counted
        again = await practised(tmp_path, *run, "budget.tokens=10000000")
    assert asked > 0 and again.asked == 0
    embedded = [usage for name, usage in read_usage(done.run.records) if name == "openai:e"]
    assert (len(embedded), sum(usage.tokens for usage in embedded)) == (asked, 5000 * asked)
    total = sum((usage for _, usage in read_usage(done.run.records)), NO_USAGE)
    assert done.state.total_usage == again.state.total_usage == total
    loaded = load_run("rehearsal", [*run, "budget.tokens=10000000"], tmp_path, {})
    budget = open_budget(loaded, loaded.config, done.run.records, lambda _: None)
    assert budget is not None and budget.spent.tokens == total.tokens


async def test_the_twin_of_a_proposal_that_is_put_off_names_it_when_it_comes_again(
    tmp_path: Path,
) -> None:
    """Known defect: the second one looked new, and approving both made two of one lesson."""
    later = ScriptedPerson(lambda op: Decision(op.id, "defer", reason="not now", reviewer="ann"))
    done = await practised(tmp_path, *TWO_EPOCHS, reviewers=(later,))
    assert set(done.state.notes.values()) == {"not now"}
    first = [op for op in done.state.operations.values() if op.id.startswith("op1.")]
    twins = [op for op in done.state.operations.values() if op.id.startswith("op2.")]
    assert first and twins
    for twin in twins:
        (flag,) = [flag for flag in twin.flags if flag.name == "duplicate"]
        same = next(op for op in first if op.text == twin.text)
        assert f"of {same.id}: " in flag.detail
    assert not any(flag.name == "duplicate" for op in first for flag in op.flags)
