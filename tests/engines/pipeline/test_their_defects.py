"""Each defect of other practice systems that concerns the loop, and that it is not ours.

Y numbers are those of the known defects of a practice loop without training, M those of a
multi-agent system trained with GRPO. Every test would fail with the defect its docstring
names. Those of training have theirs in `tests/engines/grpo` (zero_grad at each step cancels
accumulation; only the first prompt of several turns is kept; summed log-probabilities without
length control; processed scores taken for the policy's), and the "STOP" that is looked for as a
substring in `tests/engines/agents/test_calculator_agent.py`. Left out, because the parts they
concern are not built yet: tools and agents of several roles (exec with empty globals still
imports os; the search tool and the answer verification missing in the trainer; a verifier that
reads the memory before the new action stands in it).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engines.agents.loops import SingleTurn
from engines.core import events as ev
from engines.core.errors import CallFailed, StudioError, VerifierError
from engines.core.protocols import OnText, Policy
from engines.core.text.reply import ReplyProblem, ask_with_repair, parse_objects
from engines.core.types import (
    Attempt,
    CallKey,
    Completion,
    Job,
    Message,
    RecordRef,
    Sampling,
    Usage,
)
from engines.data.sampler import Sampler
from engines.pipeline.context import RunContext
from engines.policies.chat.client import OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.policies.limits import Slots
from engines.policies.open import open_policy
from engines.record import lines
from engines.record.ledger import RecordLedger
from engines.record.run_dir import RunDir
from engines.rollouts.manager import RolloutManager
from engines.training_free.consolidation import TrainingFreeEngine
from engines.training_free.reading import parse_extraction
from engines.training_free.settings import TrainingFreeSettings
from engines.verifiers.judge import parse_judgement
from studio.config.loading import load_run
from studio.exit_codes import run_exit_code
from tests.support.builders import (
    FakePolicy,
    a_group,
    a_job,
    a_library,
    a_problem,
    a_run,
    a_step,
    a_timeout,
    an_operation,
    answering,
    approved,
)
from tests.support.fake_endpoint import fake_endpoint, says
from tests.support.harness import practised
from tests.support.run_studio import studio
from tests.support.virtual_clock import on_virtual_clock

SMALL = (
    "practice.epochs=1",
    "practice.batch_size=4",
    "practice.group_size=3",
    "data.truncate=4",
)
ADD = {"operation": "add", "id": None, "experience": "Carry: add it.", "reason": "seen"}


@dataclass
class Scripted:
    """A policy for rollouts: `reply` makes the answer, after `takes_s` of the loop's time."""

    reply: str = "yes"
    takes_s: float = 1.0
    hang: frozenset[tuple[int, int]] = frozenset()  # (position, index) that never answer
    fails: bool = False
    job: Job | None = None
    log: list[tuple[float, str]] = field(default_factory=list)

    name = "scripted"

    def for_job(self, job: Job) -> Scripted:
        return replace(self, job=job)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        loop = asyncio.get_running_loop()
        self.log.append((loop.time(), "begun"))
        try:
            if self.fails:
                raise CallFailed("refused", "nobody is there")
            if self.job and (self.job.key.position, self.job.key.index) in self.hang:
                await loop.create_future()
            await asyncio.sleep(self.takes_s)
            return Completion(self.reply, usage=Usage(1, 1, 1))
        finally:
            self.log.append((loop.time(), "ended"))

    @property
    def most_at_once(self) -> int:
        now, most = 0, 0
        for _, what in self.log:
            now += 1 if what == "begun" else -1
            most = max(most, now)
        return most

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


def rolling(policy: Policy) -> Any:
    """A change of a practice that gives its rollouts another policy."""
    return lambda practice: replace(practice, rollouts=replace(practice.rollouts, policy=policy))


def an_engine(policy: FakePolicy, folder: Path) -> TrainingFreeEngine:
    settings = TrainingFreeSettings("Solve.", "Learn.")
    return TrainingFreeEngine(settings, policy, RecordLedger(folder, 1))


def read(reply: str, *library: str) -> Any:
    return parse_extraction(reply, a_library(*library), known=[0, 1], limit=None)


def problems_in(folder: Path, *rows: dict[str, str]) -> str:
    """The override that practises on these problems."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "own.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"data.practice={path}"


def yes_or_no(folder: Path, n: int = 4) -> tuple[str, ...]:
    """Overrides for problems that are judged in place: no other process, hence any clock."""
    rows = [{"question": f"Is it so, in case {n}?", "answer": "yes"} for n in range(n)]
    return (*SMALL[:3], problems_in(folder, *rows), "verifier=text")


def records(run: RunDir) -> list[dict[str, Any]]:
    return [
        json.loads(line.body)
        for path in sorted(run.records.glob("*.jsonl"))
        for line in lines.read(path, chained=False).lines
    ]


# ── settings, order, limits


def test_restart_step_null_is_taken_as_documented(tmp_path: Path) -> None:
    """Y1: `--restart_step null`, as its documentation has it, ended with exit 2."""
    done = studio(
        "headless", "rehearsal", *SMALL, "evaluation.do_eval=false", "--restart-step", "null",
        workspace=tmp_path / "practice",
    )  # fmt: skip
    assert done.code == 0, done.stderr


async def test_shuffling_changes_which_problems_a_step_meets(tmp_path: Path) -> None:
    """Y2: rows were read again in the order of the file, so shuffling had no effect."""
    in_file = tuple(range(40))
    shuffled = Sampler(40, 10, 2, seed=1)
    assert shuffled.order(1) != in_file
    assert shuffled.order(1) != shuffled.order(2)
    one = await practised(tmp_path / "1", *SMALL[:3], "data.truncate=12", "data.shuffle=true")
    two = await practised(tmp_path / "2", *SMALL[:3], "data.truncate=12", "data.shuffle=false")
    assert one.state.steps[1].problems != two.state.steps[1].problems


def test_the_deadline_of_a_task_is_the_one_of_the_run_file(tmp_path: Path) -> None:
    """Y3: task_timeout never reached the rollouts, which waited 3600 s each."""
    policy = Scripted(hang=frozenset({(0, 0)}))
    settings = (*yes_or_no(tmp_path), "practice.task_timeout_s=7")
    done = on_virtual_clock(practised(tmp_path / "practice", *settings, change=rolling(policy)))
    assert done.state.lost["rollout"] == 1
    assert "within 7 s" in done.state.losses[0].reason
    assert max(at for at, _ in policy.log) == 7.0


def test_the_concurrency_of_the_run_file_limits_rollouts(tmp_path: Path) -> None:
    """Y3: rollout_concurrency drove only the updater."""
    policy = Scripted()
    settings = (*yes_or_no(tmp_path), "practice.concurrency=5")
    on_virtual_clock(practised(tmp_path / "practice", *settings, change=rolling(policy)))
    assert policy.most_at_once == 5


async def test_practice_and_evaluation_draw_each_at_its_own_temperature(tmp_path: Path) -> None:
    """Y4: a shallow copy of the settings let the practice temperature into the evaluation."""
    done = await practised(
        tmp_path, *SMALL, "practice.temperature=0.9", "evaluation.temperature=0.2",
        "evaluation.do_eval=true", "evaluation.limit=2", "practice.epochs=2",
    )  # fmt: skip
    seen = {
        (record["key"]["purpose"], record["sampling"]["temperature"])
        for record in records(done.run)
        if record["key"]["purpose"] in ("rollout", "evaluation")
    }
    assert seen == {("rollout", 0.9), ("evaluation", 0.2)}


# ── what becomes of proposals


def test_a_delete_without_text_is_applied() -> None:
    """Y5: a DELETE without "content" was dropped."""
    (found,) = read('[{"operation": "DELETE", "id": "E1"}]', "An old rule.").items
    operation = an_operation(found.kind, found.target)
    done = a_library("An old rule.").commit(approved(operation))
    assert (done.library.experiences, done.outcomes[0].applied) == ((), True)


def test_changing_an_experience_that_is_not_there_never_becomes_an_addition() -> None:
    """Y5: an UPDATE with an unknown id became an ADD."""
    parsed = read('[{"operation": "update", "id": "E9", "experience": "New."}]', "A rule.")
    assert parsed.items == ()
    assert "E9 is not in the library" in parsed.problems[0]
    done = a_library("A rule.").commit(approved(an_operation("modify", "E9", "New.")))
    assert [e.text for e in done.library.experiences] == ["A rule."]
    assert not done.outcomes[0].applied and done.outcomes[0].reason


async def test_a_proposal_with_an_invented_id_is_a_counted_loss(tmp_path: Path) -> None:
    """Y5: proposals with an invented id vanished before the merge prompt."""
    wrong = json.dumps([ADD, {**ADD, "operation": "modify", "id": "E7"}])
    reflection = await an_engine(answering(wrong, wrong), tmp_path).reflect(
        a_group([1, 0]), a_library("A rule.")
    )
    assert len(reflection.proposals) == 1
    assert [loss.kind for loss in reflection.losses] == ["proposal"]
    assert "E7" in reflection.losses[0].reason


async def test_a_batch_whose_consolidation_cannot_be_read_ends_with_losses(tmp_path: Path) -> None:
    """Y5: after three bad replies the update of the batch was silently empty."""
    engine = an_engine(answering(json.dumps([ADD]), "no idea", "no idea"), tmp_path)
    group = a_group([1, 0])
    reflection = await engine.reflect(group, a_library())
    lesson = await engine.consolidate([group], [reflection], a_library())
    assert [loss.kind for loss in lesson.losses] == ["consolidation"]
    events = [a_run(group_size=2), a_step(), ev.LessonProposed(1, lesson)]
    assert run_exit_code(folded_to_the_end(events)) == 4


async def test_a_group_whose_reply_cannot_be_read_is_counted_as_failed(tmp_path: Path) -> None:
    """Y5: a bad reply about a group dropped the group."""
    engine = an_engine(answering("no idea", "no idea"), tmp_path)
    reflection = await engine.reflect(a_group([1, 0]), a_library())
    assert reflection.outcome == "failed"
    assert reflection.losses[0].reply == "no idea"


def folded_to_the_end(events: Sequence[ev.DurableEvent]) -> Any:
    from engines.core.state.fold import fold_events

    return fold_events([*events, ev.LessonCommitted(1, 0, "", ()), ev.StepFinished(1, 1)])


def test_an_id_is_never_given_again_and_never_moves() -> None:
    """Y6: ids were renumbered from G0 after each step."""
    library = a_library("One.", "Two.")
    library = library.commit(approved(an_operation("delete", "E1"))).library
    library = library.commit(approved(an_operation("add", text="Three."))).library
    assert [(e.id, e.text) for e in library.experiences] == [("E2", "Two."), ("E3", "Three.")]


async def test_operations_decisions_and_critiques_are_kept(tmp_path: Path) -> None:
    """Y6: operations and critiques were not stored, only the library that came of them."""
    done = await practised(tmp_path, *SMALL)
    events = [entry.event for entry in done.run.entries()]
    (proposed,) = (e for e in events if isinstance(e, ev.LessonProposed))
    assert proposed.lesson.operations
    assert all(op.rationale and op.evidence for op in proposed.lesson.operations)
    decided = {e.decision.operation_id for e in events if isinstance(e, ev.OperationDecided)}
    assert decided == {op.id for op in proposed.lesson.operations}
    reflected = [e.reflection for e in events if isinstance(e, ev.GroupReflected)]
    assert any(proposal.rationale for r in reflected for proposal in r.proposals)
    assert done.library.experiences[0].history[-1].run == "rehearsal"


# ── evaluation, endings, groups


async def test_a_library_that_changed_within_an_epoch_is_measured_anew(tmp_path: Path) -> None:
    """Y7: evaluating by steps took the samples judged earlier in the epoch for the new ones."""
    done = await practised(
        tmp_path, "practice.epochs=1", "practice.batch_size=4", "practice.group_size=3",
        "data.truncate=8", "evaluation.do_eval=true", "evaluation.limit=2",
        "evaluation.strategy=steps",
    )  # fmt: skip
    by_version = {e.library_version: e for e in done.state.evaluations}
    assert len(by_version) > 1
    assert all(e.reused == 0 and e.usage.calls for e in by_version.values())


async def test_the_best_step_is_named_and_no_earlier_version_is_overwritten(
    tmp_path: Path,
) -> None:
    """Y8: the last library won, and its file overwrote that of the run before."""
    settings = (*SMALL[:3], "data.truncate=8", "evaluation.do_eval=true", "evaluation.limit=2")
    first = await practised(tmp_path, *settings)
    assert first.state.best_step is not None
    assert first.run.best_agent_file.exists()
    versions = sorted(p.name for p in (tmp_path / "libraries/rehearsal").glob("v*.yaml"))
    assert versions == [f"v{n:04d}.yaml" for n in range(first.library.version + 1)]
    before = first.run.agent_file.read_bytes()
    again = await practised(tmp_path, *settings, restart_step=0)
    assert again.run.agent_file != first.run.agent_file
    assert first.run.agent_file.read_bytes() == before


async def test_a_question_that_stands_twice_makes_two_groups(tmp_path: Path) -> None:
    """Y9: groups were keyed by the text of the question, so that duplicates merged."""
    row = {"question": "What is 4 + 8?", "answer": "12"}
    done = await practised(
        tmp_path / "practice", problems_in(tmp_path, row, row), "practice.epochs=1",
        "practice.batch_size=2", "practice.group_size=3",
    )  # fmt: skip
    assert len(set(done.state.steps[1].problems)) == 2
    assert (done.state.steps[1].rollouts_done, done.state.group_outcomes().total()) == (6, 2)


def test_groups_without_contrast_are_counted(tmp_path: Path) -> None:
    """Y9: all-right and all-wrong groups were discarded without a count; now the latter is read."""
    rows = [{"question": f"Is it so, in case {n}?", "answer": "yes"} for n in range(2)]
    rows += [{"question": "Is it not?", "answer": "no"}]
    done = on_virtual_clock(
        practised(
            tmp_path / "practice", problems_in(tmp_path, *rows), "verifier=text", *SMALL[:3],
            change=rolling(Scripted("yes")),
        )
    )  # fmt: skip
    assert done.state.group_outcomes() == {"all-right": 2, "critique": 1}


async def test_a_verifier_that_cannot_be_loaded_stops_the_run_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    """Y10: it printed a warning, and the judge model was asked instead."""
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    with pytest.raises(VerifierError, match=r"broken\.py:1"):
        await practised(tmp_path / "practice", *SMALL, f"verifier={{file: {broken}}}")
    assert not list((tmp_path / "practice").rglob("records/*"))


# ── what replies look like


def test_one_object_in_place_of_a_list_is_a_list_of_one() -> None:
    """Y11: a reply that was a JSON object voided the whole batch, with exit 0."""
    assert [item.text for item in read(json.dumps(ADD)).items] == ["Carry: add it."]


@pytest.mark.parametrize("plan", ["null", "5", '"add a rule"', "[[]]"])
async def test_a_plan_that_is_no_list_is_a_recorded_loss(plan: str, tmp_path: Path) -> None:
    """Y11: a plan that was no array, or `null`, crashed the run."""
    engine = an_engine(answering(json.dumps([ADD]), plan, plan), tmp_path)
    group = a_group([1, 0])
    reflection = await engine.reflect(group, a_library())
    lesson = await engine.consolidate([group], [reflection], a_library())
    assert (lesson.operations, [loss.kind for loss in lesson.losses]) == ((), ["consolidation"])


@pytest.mark.parametrize("word", ["add", "ADD", "Add"])
def test_an_operation_is_understood_in_any_case(word: str) -> None:
    """Y12: lower-case operations were ignored."""
    assert [item.kind for item in read(json.dumps([{**ADD, "operation": word}])).items] == ["add"]


@pytest.mark.parametrize("written", ["E1", "[E1]", "1", 1, "[G1]"])
def test_an_id_is_understood_as_models_write_it(written: object) -> None:
    """Y12: an id written `[G1]` or `1` became a new entry."""
    reply = json.dumps([{**ADD, "operation": "modify", "id": written}])
    assert [(s.kind, s.target) for s in read(reply, "A rule.").items] == [("modify", "E1")]


@pytest.mark.parametrize(
    "form",
    ["```\n{}\n```", "```json\n{}\n```", "{}", "Here:\n```json\n{}\n```\n```\nas asked\n```"],
)
def test_a_list_is_found_in_any_fence_and_beside_others(form: str) -> None:
    """Y12: the last fenced block won, and a plain fence failed."""
    assert len(read(form.replace("{}", json.dumps([ADD]))).items) == 1


# ── failures


def test_a_step_whose_rollouts_all_fail_is_counted_and_ends_with_losses(tmp_path: Path) -> None:
    """Y13: when all rollouts had failed there was an IndexError."""
    done = on_virtual_clock(practised(tmp_path, *SMALL, change=rolling(Scripted(fails=True))))
    assert done.state.lost["rollout"] == 12
    assert run_exit_code(done.state) == 4


async def test_a_mistyped_verifier_costs_nothing(tmp_path: Path) -> None:
    """Y13: a mistyped file of a verifier cost 128 judge calls, then a TypeError."""
    with pytest.raises(StudioError, match="no such file"):
        await practised(tmp_path, *SMALL, "verifier={file: mistyped.py}")
    assert not list(tmp_path.rglob("records/*"))


def test_hung_calls_hold_their_own_slots_and_no_others(tmp_path: Path) -> None:
    """Y14: two hung calls of 130 held their step for 100 s while 31 slots stood idle.

    Of 12 calls of 1 s in 4 slots two hang for 50 s: the other ten share two slots and
    are through after 5 s, their reflections included.
    """
    policy = Scripted(hang=frozenset({(0, 0), (0, 1)}))
    done: list[float] = []

    def watched(practice: RunContext) -> RunContext:
        def listen(event: object) -> None:
            if isinstance(event, ev.GroupReflected):
                done.append(asyncio.get_running_loop().time())

        practice.recorder.listen(listen)
        changed: RunContext = rolling(policy)(practice)
        return changed

    limits = ("practice.concurrency=4", "practice.task_timeout_s=50")
    settings = (*yes_or_no(tmp_path), *limits)
    on_virtual_clock(practised(tmp_path / "practice", *settings, change=watched))
    assert sorted(done) == [*sorted(done)[:3], 50.0]
    assert max(done[:3]) <= 5.0


class Silent(httpx2.AsyncBaseTransport):
    """An endpoint that never answers."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


def test_a_hung_summary_ends_at_the_deadline_of_its_call(tmp_path: Path) -> None:
    """Y14: a hung summary had no deadline of its own and held its step for 600 s."""

    async def main() -> tuple[float, Any]:
        settings = EndpointSettings(
            "m", base_url="http://127.0.0.1:9/v1", timeout_s=30, max_retries=0
        )
        policy = OpenAICompat(settings, transport=Silent)
        always = TrainingFreeSettings("Solve.", "Learn.", read_chars=1, summarise_above_chars=0)
        engine = TrainingFreeEngine(always, policy, RecordLedger(tmp_path, 1))
        reflection = await engine.reflect(a_group([1, 0]), a_library())
        await policy.aclose()
        return asyncio.get_running_loop().time(), reflection

    ended_s, reflection = on_virtual_clock(main())
    assert ended_s == pytest.approx(30, abs=1)
    assert [loss.kind for loss in reflection.losses] == ["summary", "summary", "extraction"]


@pytest.mark.parametrize("purpose", ["rollout", "extraction", "consolidation"])
async def test_a_reply_that_arrived_before_a_kill_is_not_paid_for_again(
    purpose: Any, tmp_path: Path
) -> None:
    """Y15: after a kill all updater calls and all rollouts in flight were paid again."""
    key, asked = CallKey(purpose, 1, 1, 0), [Message("user", "2 + 2?")]
    killed = RecordLedger(tmp_path, 1)  # the journal never names what it recorded
    reply, ref = await killed.ask(key, answering("4"), asked, Sampling())
    resumed = RecordLedger(tmp_path, 1)
    assert await resumed.ask(key, answering(), asked, Sampling()) == (reply, ref)
    assert (resumed.asked, resumed.reused) == (0, 1)
    await killed.aclose()
    await resumed.aclose()


async def test_a_run_is_not_resumed_under_other_settings_without_a_word(tmp_path: Path) -> None:
    """Y16: another batch size or number of epochs silently reused old steps."""
    first = await practised(tmp_path, *SMALL)
    before = first.run.journal.read_bytes()
    with pytest.raises(StudioError, match="batch_size"):
        await practised(tmp_path, *SMALL, "practice.batch_size=2", "practice.epochs=2")
    assert first.run.journal.read_bytes() == before


async def test_a_recorded_reply_answers_only_the_request_it_was_given_to(tmp_path: Path) -> None:
    """Y16: the cache's key ignored configuration and data."""
    key, asked = CallKey("rollout", 1, 1, 0, 0), [Message("user", "2 + 2?")]
    ledger, policy = RecordLedger(tmp_path, 1), answering("4", "warm", "other", "named")
    await ledger.ask(key, policy, asked, Sampling(0.1))
    await ledger.ask(key, policy, asked, Sampling(0.9))
    await ledger.ask(key, policy, [Message("user", "2 + 3?")], Sampling(0.1))
    policy.name = "fake:other"
    await ledger.ask(key, policy, asked, Sampling(0.1))
    assert (ledger.asked, ledger.reused) == (4, 0)
    await ledger.aclose()


async def test_no_file_of_a_run_holds_its_key(tmp_path: Path) -> None:
    """Y17: the key of the agent's settings was written into the result in clear, mode 0644."""
    key = "sk-planted-0123456789abcdef"
    done = await practised(
        tmp_path, *SMALL, "policy.api_key=${oc.env:PLANTED}", environ={"PLANTED": key}
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert done.run.agent_file in files
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert done.run.agent_file.stat().st_mode & 0o077 == 0
    assert done.run.run_file.stat().st_mode & 0o077 == 0


async def test_all_calls_of_a_policy_share_one_client_which_is_closed() -> None:
    """Y18: a client for each rollout, never closed, made 290 connections for 408 calls."""
    async with fake_endpoint(says("4")) as fake:
        policy = open_policy("openai:m", EndpointSettings(base_url=fake.base_url))
        for _ in range(6):
            await policy.complete([Message("user", "2 + 2?")], Sampling())
        assert (len(fake.requests), fake.connections) == (6, 1)
        await policy.aclose()
        await fake.until(lambda: fake.open_now == 0)


def test_a_run_tells_its_score_its_step_and_what_it_spent(tmp_path: Path) -> None:
    """Y19: practice showed no score, step or cost, and evaluation printed no number."""
    done = studio(
        "headless", "rehearsal", *SMALL, "evaluation.do_eval=true", "evaluation.limit=2",
        workspace=tmp_path / "practice",
    )  # fmt: skip
    assert "step 1 of 1, epoch 1 of 1" in done.stderr
    assert "reward 0." in done.stderr and "tokens" in done.stderr
    assert "mean reward" in done.stderr and "(n=" in done.stderr.replace("n = ", "n=")


# ── order and surroundings


def test_prompts_do_not_depend_on_which_call_ends_first(tmp_path: Path) -> None:
    """Y20: the order of prompts followed the order of completion, so no run could be repeated."""

    @dataclass
    class Unequal(Scripted):
        late: bool = False

        def for_job(self, job: Job) -> Scripted:
            place = job.key.position * 3 + job.key.index
            return Scripted(
                "yes" if job.key.index else f"no, {place}",
                100.0 - place if self.late else 1.0 + place,
            )

    def prompts(folder: Path, late: bool) -> list[tuple[str, Any]]:
        def change(practice: RunContext) -> RunContext:
            # A reflector that is asked with the slots and priority that it has in every run.
            asked = practice.engine.reflector  # type: ignore[attr-defined]
            answers = Scripted(json.dumps([{**ADD, "proposals": [1, 2, 3, 4]}]))
            asked.policy = replace(asked.policy, inner=answers)
            changed: RunContext = rolling(Unequal(late=late))(practice)
            return changed

        settings = yes_or_no(folder)
        done = on_virtual_clock(practised(folder / "practice", *settings, change=change))
        found = [(str(record["key"]), record["messages"]) for record in records(done.run)]
        for purpose, times in (("extraction", 4), ("consolidation", 1)):
            assert sum(purpose in name for name, _ in found) == times
        return sorted(found, key=lambda pair: pair[0])

    assert prompts(tmp_path / "1", False) == prompts(tmp_path / "2", True)


def test_a_dot_env_file_never_overrides_the_environment(tmp_path: Path) -> None:
    """Y20: `.env` overrode the environment."""
    (tmp_path / ".env").write_text("TONE=of the file\n")
    (tmp_path / "run.yaml").write_text(
        "policy: rehearsal\ndata: {practice: arithmetic}\nagent: {instructions: '${oc.env:TONE}'}\n"
    )
    loaded = load_run(str(tmp_path / "run.yaml"), [], tmp_path, {"TONE": "as it was set"})
    assert loaded.config.agent.instructions == "as it was set"


def test_adding_a_data_set_twice_leaves_it_as_it_was(tmp_path: Path) -> None:
    """Y20: uploading twice doubled the data."""
    problems_in(tmp_path, {"question": "What is 4 + 8?", "answer": "12"})
    for _ in range(2):
        done = studio("data", "add", str(tmp_path / "own.jsonl"), workspace=tmp_path / "practice")
        assert done.code == 0, done.stderr
    assert len((tmp_path / "practice/datasets/own.jsonl").read_text().splitlines()) == 1


# ── of the multi-agent code


def test_a_deadline_interrupts_what_it_ends(tmp_path: Path) -> None:
    """M: the timeout of a threading.Timer fired and never interrupted anything."""
    interrupted: list[float] = []

    class Stubborn:
        async def attempt(self, job: Job, policy: Policy, on_text: OnText | None = None) -> Attempt:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                interrupted.append(asyncio.get_running_loop().time())
                raise
            return Attempt((), "late")

    manager = RolloutManager(Stubborn(), FakePolicy(), RecordLedger(tmp_path, 1), Slots(1), 5.0)
    attempt, _ = on_virtual_clock(manager.roll_out(a_job()))
    assert (attempt.status, interrupted) == ("failed", [5.0])


async def test_a_plan_that_is_right_is_read_at_once_and_asked_for_only_once() -> None:
    """M: json.loads over what was decoded already raised, so every plan "failed to parse"."""
    assert parse_objects(f"```json\n{json.dumps([ADD])}\n```") == [ADD]
    policy = answering(json.dumps([ADD]))

    async def ask(turn: int, messages: Sequence[Message]) -> tuple[Completion, RecordRef]:
        return await policy.complete(messages, Sampling()), RecordRef("f", turn, 1, "")

    answered = await ask_with_repair(ask, [Message("user", "plan")], read, lambda text: text)
    assert (len(answered.items), answered.problems, len(policy.requests)) == (1, (), 1)


async def test_the_address_of_the_run_file_is_the_one_that_is_asked() -> None:
    """M: the factory ignored base_url."""
    async with fake_endpoint(says("4")) as fake:
        policy = open_policy("openai:served", EndpointSettings(base_url=fake.base_url))
        await policy.complete([Message("user", "2 + 2?")], Sampling())
        await policy.aclose()
        assert [body["model"] for body in fake.bodies] == ["served"]


@pytest.mark.parametrize("reply", ["incorrect", "I would not say that it is correct.", "STOP"])
def test_a_word_within_a_reply_is_no_verdict(reply: str) -> None:
    """M: "STOP" anywhere in a reply counted as the signal, "do not STOP" included."""
    with pytest.raises(ReplyProblem):
        parse_judgement(reply, "binary")


async def test_an_endpoint_that_fails_is_no_wrong_answer(tmp_path: Path) -> None:
    """M: a judge or policy that could not be reached fell back to a guess, counted as a reward."""
    manager = RolloutManager(
        SingleTurn("", Sampling()), answering(a_timeout()), RecordLedger(tmp_path, 1), Slots(1), 5.0
    )
    attempt, _ = await manager.roll_out(a_job(a_problem()))
    assert (attempt.status, attempt.answer) == ("failed", None)
    group = a_group([None, None], texts=[None, None])
    assert (group.reward_outcome, group.rewards) == ("failed", ())
