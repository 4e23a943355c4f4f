"""Every field of Youtu-Agent's configs has an effect that can be seen, not only a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from engines.core.errors import StudioError
from engines.core.state.run_state import RunState
from engines.pipeline.step import practise
from engines.policies.rehearsal.server import answer_request
from engines.record.run_dir import RunDir, Workspace
from studio.config.loading import load_run
from studio.config.source import Source, find_youtu_config
from studio.run.assemble import open_run_context
from studio.run.new_or_resume import RunRequest, load_plan
from tests.support.fake_endpoint import Behaviour, Exchange, Request, fake_endpoint
from tests.support.youtu_checkout import ENV, GONE, checkout

LOOKS = 25  # turns of the loop in which a request is held, so that others can come


@dataclass(slots=True)
class Traffic:
    """What came to the endpoint, and how many of a kind at most at a time."""

    requests: list[Request] = field(default_factory=list)
    now: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def learn_count(self, kind: str) -> Iterator[None]:
        self.now[kind] = self.now.get(kind, 0) + 1
        self.peak[kind] = max(self.peak.get(kind, 0), self.now[kind])
        yield
        self.now[kind] -= 1


def kind_of(request: Request) -> str:
    """rollout, evaluation or lesson, told apart by what is asked, or judge."""
    if request.method == "GET":
        return "ping"
    text = prompt(request)
    if "# Task: judge" in text:
        return "judge"
    if "# Task:" in text:
        return "lesson"
    return "evaluation" if request.body.get("temperature") != 0.7 else "rollout"


def prompt(request: Request) -> str:
    return "\n".join(str(message["content"]) for message in request.body.get("messages", ()))


def rehearsing(traffic: Traffic) -> Behaviour:
    """Answers as rehearsal does, under whatever name and address it is asked."""

    async def behaviour(exchange: Exchange) -> None:
        request = exchange.request
        traffic.requests.append(request)
        body = orjson.dumps({**request.body, "model": "rehearsal"})
        told = answer_request(request.method, request.path.removeprefix("/other"), body)
        with traffic.learn_count(kind_of(request)):
            for _ in range(LOOKS):
                await asyncio.sleep(0)
            pieces = [piece async for piece in told.body]
            if told.content_type == "text/event-stream":
                await exchange.stream(pieces)
            else:
                await exchange.plain(told.status, b"".join(pieces))

    return behaviour


@dataclass(frozen=True)
class Seen:
    """A run by a checkout's config, as it can be seen from outside."""

    run: RunDir
    state: RunState
    traffic: Traffic
    outcome: str
    notes: tuple[str, ...]

    def of(self, kind: str) -> list[Request]:
        return [r for r in self.traffic.requests if kind_of(r) == kind]


async def practised(folder: Path, changes: Mapping[str, object], runs: int = 1) -> Seen:
    """Practise by the config, `runs` times in one workspace; the last run is looked at.

    With 0 the config is read, and nothing practised.
    """
    workspace = Workspace(folder / "practice")
    before = {
        key: value for key, value in changes.items() if key != "practice.practice.restart_step"
    }
    for number in range(max(runs, 1)):
        traffic = Traffic()
        async with fake_endpoint(rehearsing(traffic)) as endpoint, AsyncExitStack() as stack:
            url = endpoint.base_url
            written = {
                key: value.replace("URL", url.removesuffix("/v1"))
                if isinstance(value, str)
                else value
                for key, value in (changes if number >= runs - 1 else before).items()
            }
            home = checkout(folder / "youtu", written, {**ENV, "UTU_LLM_BASE_URL": url})
            source = Source((), youtu=find_youtu_config(str(home), "math_reasoning", "practice"))
            plan = load_plan(RunRequest(workspace=workspace, source=source))
            outcome = plan.mode
            state = plan.state or RunState()
            if runs and plan.mode != "finished":
                try:
                    practice = await open_run_context(plan, stack, lambda _: None)
                    state = practice.recorder.state
                    await practise(practice)
                    outcome = state.status
                except StudioError as error:
                    outcome = type(error).__name__
    return Seen(plan.run, state, traffic, outcome, plan.loaded.warnings)


@dataclass(frozen=True)
class Row:
    """A field of a file, a value that is not the base's, and what shows its effect."""

    name: str
    value: object
    watch: Callable[[Seen], object]
    given: Mapping[str, object] = field(default_factory=dict)  # changes that both runs share
    runs: int = 1  # 0 where what the config is read as shows it


JUDGED: dict[str, object] = {
    "eval.judge_model": {
        "model_provider": {
            "type": "chat.completions",
            "model": "the-judge",
            "base_url": "${oc.env:UTU_LLM_BASE_URL}",
            "api_key": "sk-judge",
        },
        "model_params": {"temperature": 0.5},
    },
    "eval.judge_concurrency": 8,
}
VERIFIED: dict[str, object] = {
    "eval.verify_filename": "mine.py",
    "eval.verify_func_name": "verify_func",
}
MEASURED: dict[str, object] = {"practice.practice.do_eval": True}
WHOLE: dict[str, object] = {
    "practice.practice.rollout_data_truncate": GONE,
    "practice.practice.batch_size": 32,
    "practice.practice.grpo_n": 1,
}
BY_STEPS: dict[str, object] = {**MEASURED, "practice.practice.eval_strategy": "steps"}
PROVIDER = "eval.judge_model.model_provider"


def mean(seen: Seen) -> object:
    return seen.state.rewards_by_epoch()[1].total / seen.state.rewards_by_epoch()[1].n


def steps_of_evaluation(seen: Seen) -> object:
    return sorted({evaluation.step for evaluation in seen.state.evaluations})


def sets(seen: Seen) -> object:
    return {evaluation.data for evaluation in seen.state.evaluations}


def problems(seen: Seen) -> object:
    return [step.problems for step in seen.state.steps.values()]


def told(word: str) -> Callable[[Seen], object]:
    return lambda seen: [note for note in seen.notes if word in note]


def authorised(kind: str) -> Callable[[Seen], object]:
    return lambda seen: {request.headers.get("authorization") for request in seen.of(kind)}


def addresses(kind: str) -> Callable[[Seen], object]:
    return lambda seen: {request.path for request in seen.of(kind)}


def each(kind: str, name: str) -> Callable[[Seen], object]:
    """Every value of a field in the requests of a kind."""
    return lambda seen: {request.body.get(name) for request in seen.of(kind)}


def says(kind: str, text: str) -> Callable[[Seen], object]:
    return lambda seen: any(text in prompt(request) for request in seen.of(kind))


def forked(seen: Seen) -> object:
    started = seen.state.started
    assert started is not None
    return seen.run.run, started.forked_steps


def temperatures(seen: Seen) -> object:
    return {r.body["temperature"] for r in seen.traffic.requests if "temperature" in r.body}


def count(kind: str) -> Callable[[Seen], object]:
    return lambda seen: len(seen.of(kind))


def alone(kind: str) -> Callable[[Seen], object]:
    """Whether calls of a kind came one after the other."""
    return lambda seen: seen.traffic.peak[kind] == 1


def agent_file(seen: Seen) -> Any:
    return yaml.safe_load(seen.run.agent_file.read_text())


ROWS = [
    # Evaluation fields (Y22)
    Row("eval.data.dataset", "arithmetic-larger", sets, MEASURED),
    Row("eval.data.type", "mixed", told("data.type"), runs=0),
    Row("eval.concurrency", 1, alone("evaluation"), {**MEASURED, "eval.pass_k": 4}),
    Row("eval.pass_k", 3, lambda s: {e.k for e in s.state.evaluations}, MEASURED),
    Row("eval.pass_k", 3, count("evaluation"), MEASURED),
    Row("eval.verify_filename", "half.py", mean, VERIFIED),
    Row("eval.verify_func_name", "never", mean, VERIFIED),
    Row(f"{PROVIDER}.type", "responses", told("responses"), JUDGED, runs=0),
    Row(f"{PROVIDER}.model", "another", each("judge", "model"), JUDGED),
    Row(f"{PROVIDER}.base_url", "URL/other/v1", addresses("judge"), JUDGED),
    Row(f"{PROVIDER}.api_key", "sk-2", authorised("judge"), JUDGED),
    Row(
        "eval.judge_model.model_params.temperature",
        0.1,
        each("judge", "temperature"),
        JUDGED,
    ),
    Row("eval.judge_concurrency", 1, alone("judge"), JUDGED),
    # Practice fields (Y23)
    Row("practice.exp_id", "another", lambda s: s.run.run, runs=0),
    Row("practice.practice.epochs", 2, count("rollout")),
    Row("practice.practice.batch_size", 4, lambda s: s.state.steps_finished),
    Row("practice.practice.grpo_n", 2, count("rollout")),
    Row("practice.practice.rollout_concurrency", 1, alone("rollout")),
    Row("practice.practice.rollout_temperature", 0.9, temperatures),
    Row("practice.practice.task_timeout", 0.000001, lambda s: s.state.lost["rollout"]),
    Row("practice.practice.do_eval", True, count("evaluation")),
    Row("practice.practice.eval_strategy", "steps", steps_of_evaluation, MEASURED),
    Row("practice.practice.eval_steps", 2, steps_of_evaluation, BY_STEPS),
    Row("practice.practice.restart_step", 0, lambda s: s.run.run, runs=2),
    Row("practice.practice.restart_step", 1, forked, runs=2),
    Row("practice.practice.agent_objective", "input: riddles", says("lesson", "riddles")),
    Row("practice.practice.learning_objective", "Be brief.", says("lesson", "Be brief.")),
    Row("practice.practice.num_experiences_per_query", 4, says("lesson", "at most 4 objects")),
    Row("practice.practice.rollout_data_truncate", 2, count("rollout")),
    Row("practice.practice.shuffle_data", False, problems, WHOLE),
    Row("practice.practice.eval_data_truncate", 1, count("evaluation"), MEASURED),
    Row("practice.practice.given_ground_truth", False, says("lesson", "(not shown)")),
    # The data set (Y24)
    Row("practice.data.practice_dataset_name", "arithmetic-larger", problems),
    # The agent's file
    Row("agent.agent.instructions", "Hum. End with #### answer", says("rollout", "Hum.")),
    Row("agent.agent.name", "another", lambda s: agent_file(s)["name"]),
    Row("agent.max_turns", GONE, told("max_turns"), runs=0),
    Row("agent.model.model_settings.temperature", 0.4, each("evaluation", "temperature"), MEASURED),
    Row("agent.model.model_settings.top_p", 0.5, each("rollout", "top_p")),
    Row("agent.model.model_settings.max_tokens", 99, each("rollout", "max_tokens")),
    Row("agent.model.model_settings.extra_args", {"timeout": 0.000001}, lambda s: s.outcome),
    Row("agent.model.model_settings.frequency_penalty", 0.5, each("rollout", "frequency_penalty")),
    Row(
        "agent.model.model_settings.parallel_tool_calls",
        True,
        told("parallel_tool_calls"),
        runs=0,
    ),
    Row("model.model_provider.type", "responses", told("responses"), runs=0),
    Row("model.model_provider.model", "another", each("rollout", "model")),
    Row("model.model_provider.base_url", "URL/other/v1", addresses("rollout")),
    Row("model.model_provider.api_key", "sk-2", authorised("rollout")),
]  # fmt: skip

_bases: dict[str, Seen] = {}


async def base(folders: pytest.TempPathFactory, row: Row) -> Seen:
    """The run that has all of a row but its change; made once for all rows that share it."""
    known = repr((row.given, row.runs))
    if known not in _bases:
        # Not in a test's own folder, which goes with the test that happened to be first.
        _bases[known] = await practised(folders.mktemp("base"), row.given, row.runs)
    return _bases[known]


def named(row: Row) -> str:
    """The same in every process: a stand-in for "no such value" has its place in memory."""
    value = "…" if type(row.value) is object else row.value
    return f"{row.name}={value}"[:60]


@pytest.mark.parametrize("row", ROWS, ids=named)
async def test_a_field_has_an_effect(
    row: Row, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = row.watch(await base(tmp_path_factory, row))
    after = row.watch(
        await practised(tmp_path / "row", {**row.given, row.name: row.value}, row.runs)
    )
    assert before != after


def test_every_field_that_is_documented_has_a_row() -> None:
    rows = {row.name for row in ROWS}
    practice = (
        "epochs batch_size grpo_n rollout_concurrency rollout_temperature task_timeout do_eval "
        "eval_strategy restart_step agent_objective learning_objective num_experiences_per_query"
    )
    evaluation = (
        "data.dataset data.type concurrency pass_k verify_filename verify_func_name "
        "judge_model.model_provider.type judge_model.model_provider.model "
        "judge_model.model_provider.base_url judge_model.model_provider.api_key "
        "judge_model.model_params.temperature"
    )
    assert {f"practice.practice.{name}" for name in practice.split()} <= rows
    assert {f"eval.{name}" for name in evaluation.split()} <= rows
    assert "practice.data.practice_dataset_name" in rows


def test_the_name_of_an_evaluation_is_its_own_only_where_it_is_the_root(tmp_path: Path) -> None:
    named = {"eval.exp_id": "mine"}
    for changes, found in (({}, "math_eval"), (named, "mine")):
        home = checkout(tmp_path / found, changes)
        asked = find_youtu_config(str(home), "math/math_set", "eval")
        assert load_run("", [], tmp_path, {}, youtu=asked).config.exp_id == found
        practice = find_youtu_config(str(home), "math_reasoning", "practice")
        assert load_run("", [], tmp_path, {}, youtu=practice).config.exp_id == "math_practice"
