"""What a run file says has an effect that can be seen in the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pytest
import yaml

from engines.core import events as ev
from engines.core.errors import CallFailed, ConfigError, ConflictError, PolicyError
from engines.core.protocols import OnText
from engines.core.types import Completion, Message, Sampling
from engines.pipeline.context import RunContext
from engines.policies.rehearsal.server import background_server
from engines.record import lines
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir, Workspace
from studio.run.headless import QuietListener
from tests.support.harness import practised

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=4",
)


def requests(run: RunDir, purpose: str) -> list[dict[str, object]]:
    """The records of one purpose, as plain JSON."""
    found = []
    for path in sorted(run.records.glob("*.jsonl")):
        for line in lines.read(path, chained=False).lines:
            data = orjson.loads(line.body)
            if data["key"]["purpose"] == purpose:
                found.append(data)
    return found


def prompt_of(record: dict[str, object]) -> str:
    messages = record["messages"]
    assert isinstance(messages, list)
    return "\n".join(message["content"] for message in messages)


async def test_epochs_batches_and_groups_make_the_number_of_rollouts(tmp_path: Path) -> None:
    done = await practised(
        tmp_path,
        "practice.epochs=2",
        "practice.batch_size=3",
        "practice.group_size=2",
        "data.truncate=7",
    )
    sizes = [len(done.run.state().steps[n].problems) for n in range(1, 7)]
    assert sizes == [3, 3, 1, 3, 3, 1]  # remainders are kept
    assert len(requests(done.run, "rollout")) == 2 * 7 * 2


async def test_every_epoch_has_its_own_order_and_shuffle_false_keeps_the_file_s(
    tmp_path: Path,
) -> None:
    more = ("practice.epochs=2", "practice.batch_size=12", "practice.group_size=1")
    more += ("data.truncate=12",)
    shuffled = (await practised(tmp_path / "a", *more)).run.state().steps
    assert set(shuffled[1].problems) == set(shuffled[2].problems)
    assert shuffled[1].problems != shuffled[2].problems
    kept = (await practised(tmp_path / "b", *more, "data.shuffle=false")).run.state().steps
    assert kept[1].problems == kept[2].problems


async def test_rollouts_and_lessons_are_drawn_at_their_own_temperatures(tmp_path: Path) -> None:
    done = await practised(
        tmp_path,
        *SMALL,
        "practice.temperature=0.9",
        "reflector={model: rehearsal, temperature: 0.1}",
        "evaluation.do_eval=true",
        "evaluation.temperature=0.4",
        "evaluation.limit=3",
    )
    for purpose, temperature in (("rollout", 0.9), ("extraction", 0.1), ("evaluation", 0.4)):
        found = requests(done.run, purpose)
        assert found
        assert {r["sampling"]["temperature"] for r in found} == {temperature}  # type: ignore[index]


async def test_objectives_and_the_limit_of_lessons_stand_in_the_prompt(tmp_path: Path) -> None:
    done = await practised(
        tmp_path,
        *SMALL,
        "practice.agent_objective=input and output of mine",
        "practice.learning_objective=what I want learned",
        "practice.experiences_per_query=3",
    )
    for record in requests(done.run, "extraction"):
        prompt = prompt_of(record)
        assert "| input and output of mine" in prompt
        assert "| what I want learned" in prompt
        assert "at most 3 objects" in prompt


async def test_without_ground_truth_all_groups_are_kept_and_nothing_is_given_away(
    tmp_path: Path,
) -> None:
    data = tmp_path / "unlabelled.jsonl"
    data.write_text('{"question": "What is 27 + 35?"}\n{"question": "What is 80 - 47?"}\n')
    done = await practised(
        tmp_path / "practice",
        "practice.epochs=1",
        "practice.group_size=3",
        "practice.given_ground_truth=false",
        f"data.practice={data}",
    )
    assert done.state.group_outcomes()["used"] == 2
    assert not done.state.lost  # nothing to judge by is no loss
    for record in requests(done.run, "extraction"):
        assert "reward" not in prompt_of(record).partition("## Attempts")[2].partition("## ")[0]
        assert "(not shown)" in prompt_of(record)


async def test_hidden_truth_is_hidden_also_where_the_data_has_it(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL, "practice.given_ground_truth=false")
    assert done.state.group_outcomes()["used"] == 4  # all of them, also those without contrast
    for record in requests(done.run, "extraction"):
        assert "· reward" not in prompt_of(record)
        assert "verifier:" not in prompt_of(record)


async def test_the_library_never_grows_beyond_its_limit(tmp_path: Path) -> None:
    short = ("practice.epochs=1", "data.truncate=40")
    done = await practised(tmp_path, *short, "practice.library_limit=2")
    assert len(done.library.experiences) == 2
    free = await practised(tmp_path / "free", *short)
    assert len(free.library.experiences) == 4


async def test_a_rollout_past_its_deadline_is_a_counted_loss_and_no_reward(
    tmp_path: Path,
) -> None:
    done = await practised(tmp_path, *SMALL, "practice.task_timeout_s=0.000001")
    assert done.state.group_outcomes()["failed"] == 4
    assert done.state.lost["rollout"] == 12
    assert done.state.rewards_by_epoch()[1].n == 0
    assert "timeout" in done.state.losses[0].reason
    assert done.texts == []


async def test_a_role_that_does_not_answer_stops_the_run_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    nowhere = "model: openai:m, base_url: 'http://127.0.0.1:9/v1', api_key: k"
    for role in ("policy", "reflector", "judge"):
        with pytest.raises(PolicyError, match=r"127\.0\.0\.1:9"):
            await practised(tmp_path, *SMALL, f"{role}={{{nowhere}}}")
    assert Workspace(tmp_path).runs() == ()


async def test_a_library_can_begin_from_an_earlier_one_and_ids_count_on(tmp_path: Path) -> None:
    first = await practised(tmp_path, *SMALL)
    later = await practised(
        tmp_path, *SMALL, "exp_id=later", f"library.start=rehearsal@{first.library.version}"
    )
    assert later.library.name == "later"
    assert later.texts[: len(first.texts)] == first.texts
    assert later.library.next_number >= first.library.next_number
    started = later.run.entries()[0].event
    assert isinstance(started, ev.RunStarted)
    rollout = requests(later.run, "rollout")[0]
    assert first.texts[0][1] in prompt_of(rollout)


async def test_a_run_can_go_on_in_a_named_library_only_from_its_head(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL, "library.name=shared")
    with pytest.raises(ConflictError, match=r"library\.start=shared@1"):
        await practised(tmp_path, *SMALL, "exp_id=other", "library.name=shared")
    on = await practised(
        tmp_path, *SMALL, "exp_id=other", "library.name=shared", "library.start=shared@1"
    )
    assert on.library.name == "shared"
    assert on.library.version >= 1


async def test_an_enhanced_agent_mounts_and_gives_the_prompt_its_library_gave(
    tmp_path: Path,
) -> None:
    first = await practised(tmp_path, *SMALL)
    agents = tmp_path / "configs/agents"
    agents.mkdir(parents=True)
    (agents / "enhanced.yaml").write_bytes(first.run.agent_file.read_bytes())
    file = tmp_path / "mounted.yaml"
    file.write_text("defaults: [rehearsal, /agents/enhanced@agent, _self_]\n")
    mounted = await practised(tmp_path, *SMALL, "exp_id=mounted", "seed=5", preset=str(file))
    started = await practised(
        tmp_path, *SMALL, "exp_id=started", "library.start=rehearsal@1", "seed=5"
    )
    asked = [prompt_of(record) for record in requests(mounted.run, "rollout")]
    assert asked[0].count("[E1]") == 1
    assert sorted(asked) == sorted(prompt_of(r) for r in requests(started.run, "rollout"))
    agent = yaml.safe_load(first.run.agent_file.read_text())
    assert [e["text"] for e in agent["experiences"]] == [text for _, text in first.texts]


async def test_evaluation_follows_its_strategy_and_pins_the_version(tmp_path: Path) -> None:
    measured = (
        "evaluation.do_eval=true",
        "evaluation.data=arithmetic-heldout",
        "evaluation.limit=5",
        "evaluation.k=2",
        "practice.epochs=2",
        "practice.batch_size=8",
        "data.truncate=16",
        "practice.group_size=3",
    )
    by_epoch = await practised(tmp_path / "epoch", *measured)
    assert [e.step for e in by_epoch.state.evaluations] == [0, 2, 4]
    by_steps = await practised(
        tmp_path / "steps", *measured, "evaluation.strategy=steps", "evaluation.every_steps=1"
    )
    assert [e.step for e in by_steps.state.evaluations] == [0, 1, 2, 3, 4]
    assert {e.n for e in by_steps.state.evaluations} == {10}  # 5 problems, twice each
    before, *_, after = by_steps.state.evaluations
    assert (before.library_version, after.library_version) == (0, by_steps.library.version)
    # A library that no commit has changed since is not measured, nor paid for, again.
    versions = {e.library_version for e in by_steps.state.evaluations}
    measured_at = [e.step for e in by_steps.state.evaluations if e.usage.calls]
    assert len(measured_at) == len(versions)
    assert len(list((by_steps.run.path / "evals").glob("*.json"))) == 5


async def test_what_changes_results_may_not_change_on_resume(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL)
    for change in ("seed=3", "practice.group_size=4", "practice.batch_size=2", "verifier=text"):
        with pytest.raises(ConfigError, match=change.partition("=")[0]):
            await practised(tmp_path, *SMALL, change)
    for change in ("practice.concurrency=2", "practice.task_timeout_s=9", "practice.epochs=2"):
        await practised(tmp_path, *SMALL, "practice.epochs=2", change)


async def test_accepted_changes_are_the_ones_compared_with_from_then_on(tmp_path: Path) -> None:
    await practised(tmp_path, *SMALL)
    changed = ("practice.group_size=4", "practice.epochs=2")
    await practised(tmp_path, *SMALL, *changed, accept_changes=True)
    await practised(tmp_path, *SMALL, *changed)
    with pytest.raises(ConfigError, match="group_size: 4 → 3"):
        await practised(tmp_path, *SMALL, "practice.epochs=2")


async def test_a_step_under_way_keeps_its_problems_even_when_changes_are_accepted(
    tmp_path: Path,
) -> None:
    with pytest.raises(asyncio.CancelledError):
        await practised(tmp_path, *SMALL, change=cancelled_at_review)
    with pytest.raises(ConfigError, match="restart-step 0"):
        await practised(tmp_path, *SMALL, "practice.batch_size=2", accept_changes=True)
    await practised(tmp_path, *SMALL)


def cancelled_at_review(practice: RunContext) -> RunContext:
    """The practice, cut off when its first lesson is on disk."""

    def listener(event: object) -> None:
        if isinstance(event, ev.LessonProposed):
            raise asyncio.CancelledError

    practice.recorder.listen(listener)
    return practice


async def test_a_named_verifier_and_its_settings_judge(tmp_path: Path) -> None:
    contains = await practised(tmp_path / "a", *SMALL, "verifier={name: text, mode: contains}")
    exact = await practised(tmp_path / "b", *SMALL, "verifier={name: text, mode: exact}")
    assert contains.state.rewards_by_epoch()[1].n == exact.state.rewards_by_epoch()[1].n == 12
    math = await practised(tmp_path / "c", *SMALL)
    assert exact.state.rewards_by_epoch()[1].total == math.state.rewards_by_epoch()[1].total


async def test_unpriced_tokens_cost_nothing_that_is_shown_and_priced_ones_what_they_cost(
    tmp_path: Path,
) -> None:
    unpriced = await practised(tmp_path / "a", *SMALL)
    assert unpriced.state.usage.cost_usd is None
    async with background_server() as url:
        priced = await practised(
            tmp_path / "b",
            *SMALL,
            "policy.model=openai:rehearsal",
            "policy.price_in_usd_per_mtok=2",
            "policy.price_out_usd_per_mtok=10",
            f"policy.base_url={url}",
        )
    usage = priced.state.usage
    expected = (usage.prompt_tokens * 2 + usage.completion_tokens * 10) / 1e6
    assert usage.cost_usd == pytest.approx(expected)
    assert expected > 0


async def test_every_reply_behind_a_lesson_can_be_read_back(tmp_path: Path) -> None:
    done = await practised(tmp_path, *SMALL)
    for entry in done.run.entries():
        if isinstance(entry.event, ev.GroupReflected):
            for ref in entry.event.reflection.refs:
                record = read_record(done.run.records, ref)
                assert record.key.purpose in ("extraction", "summary")
                assert record.messages and record.reply.text
        if isinstance(entry.event, ev.LessonProposed):
            assert [read_record(done.run.records, r).key.step for r in entry.event.lesson.refs] == [
                1
            ]


HELD_OUT = ("evaluation.do_eval=true", "evaluation.data=arithmetic-heldout", "evaluation.limit=5")
MEASURED = (*SMALL, *HELD_OUT)


@dataclass(frozen=True)
class Out:
    """A policy whose endpoint is out."""

    name: str = "rehearsal"

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        raise CallFailed("refused", "the endpoint is out")

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def blind(practice: RunContext) -> RunContext:
    """The practice, with an endpoint that is out whenever it evaluates."""
    assert practice.evaluation is not None
    measuring = practice.evaluation.measuring
    measuring = replace(measuring, rollouts=replace(measuring.rollouts, policy=Out()))
    return replace(practice, evaluation=replace(practice.evaluation, measuring=measuring))


async def test_an_outage_during_evaluation_is_a_loss_and_is_measured_again(
    tmp_path: Path,
) -> None:
    out = await practised(tmp_path, *MEASURED, change=blind)
    assert [(e.n, e.unjudged, e.mean) for e in out.state.evaluations] == [(0, 5, None)] * 2
    assert out.state.lost["held-out rollout"] == 10
    assert "the endpoint is out" in out.state.losses[-1].reason
    well = await practised(tmp_path, *MEASURED, "practice.epochs=2")
    assert (well.state.evaluations[-1].n, well.state.evaluations[-1].unjudged) == (5, 0)


async def test_two_held_out_sets_of_one_name_are_measured_apart(tmp_path: Path) -> None:
    for folder, answer in (("right", "62"), ("wrong", "7")):
        path = tmp_path / folder / "test.jsonl"
        path.parent.mkdir()
        path.write_text(f'{{"question": "What is 27 + 35?", "answer": "{answer}"}}\n')
    sets = f"evaluation.data=[{tmp_path}/right/test.jsonl,{tmp_path}/wrong/test.jsonl]"
    done = await practised(tmp_path / "p", *MEASURED, "practice.epochs=2", sets)
    last = {e.data: e.mean for e in done.state.evaluations}
    assert last == {"test": 1.0, "wrong-test": 0.0}


async def test_a_result_is_used_again_only_for_the_very_same_measurement(tmp_path: Path) -> None:
    await practised(tmp_path, *MEASURED)
    more = await practised(tmp_path, *MEASURED, "evaluation.limit=9", "practice.epochs=2")
    assert [e.n for e in more.state.evaluations][-1] == 9


async def test_a_fork_never_commits_to_its_parent_s_library(tmp_path: Path) -> None:
    shared = ("library.name=shared", "data.truncate=8", *SMALL[:3])
    first = await practised(tmp_path, *shared)
    fork = await practised(tmp_path, *shared, "practice.epochs=2", restart_step=2)
    assert (first.library.name, fork.library.name) == ("shared", "rehearsal-2")
    assert Workspace(tmp_path).library("shared").head() == first.library


async def test_an_agent_with_one_id_twice_is_refused(tmp_path: Path) -> None:
    twice = "agent.experiences=[{id: E1, text: one}, {id: E1, text: two}]"
    with pytest.raises(ConfigError, match=r"E1. stands there twice"):
        await practised(tmp_path, *SMALL, twice)


async def test_rules_are_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "here" / "rules.yaml"
    rules.parent.mkdir()
    rules.write_text("rules:\n  - {do: defer, reason: later}\n")
    monkeypatch.chdir(rules.parent)
    first = await practised(tmp_path / "p", *SMALL, review="rules:rules.yaml")
    assert first.state.open_operations
    monkeypatch.chdir(tmp_path)
    again = await practised(tmp_path / "p", *SMALL, "practice.epochs=2")
    assert again.state.reviewer == f"rules:{rules}"


async def test_a_listener_that_fails_to_be_told_does_not_end_the_run(tmp_path: Path) -> None:
    def deaf(_: object) -> None:
        raise OSError(28, "No space left on device")

    def heard(practice: RunContext) -> RunContext:
        practice.recorder.listen(QuietListener(deaf))
        return practice

    done = await practised(tmp_path, *SMALL, change=heard)
    assert done.state.status == "finished"


async def test_a_stop_after_the_last_step_finds_the_run_finished(tmp_path: Path) -> None:
    def stopping(practice: RunContext) -> RunContext:
        practice.control.stop("after this step", after_step=True)
        return practice

    done = await practised(tmp_path, *SMALL, change=stopping)  # it has one step
    assert (done.state.status, done.state.reason) == ("finished", "")


async def test_the_policy_s_own_concurrency_limits_its_rollouts(tmp_path: Path) -> None:
    found: list[int] = []

    def seen(practice: RunContext) -> RunContext:
        found.append(practice.rollouts.slots.limit)
        return practice

    await practised(tmp_path / "own", *SMALL, "policy.concurrency=3", change=seen)
    await practised(tmp_path / "shared", *SMALL, "practice.concurrency=7", change=seen)
    assert found == [3, 7]
