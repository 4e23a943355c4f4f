"""What a collector is sent of a run: the tree, what stands in it, and what a run does without."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engines.core import events as ev
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir, Workspace
from tests.support.processes import SMALL, running
from tests.support.run_studio import studio
from tests.support.span_collector import SentSpan, collecting

ACTING = ("practice.batch_size=2", "data.truncate=2", "practice.group_size=2", *SMALL[:1], SMALL[4])


def a_run(workspace: Path, *words: str) -> RunDir:
    done = studio("headless", *words, workspace=workspace)
    assert done.code == 0, done.stderr
    assert "did not reach" not in done.stderr
    return Workspace(workspace).runs()[-1]


def events_of(run: RunDir) -> Counter[str]:
    return Counter(type(entry.event).__name__ for entry in run.entries())


def above(span: SentSpan, spans: dict[str, SentSpan]) -> SentSpan | None:
    return spans.get(span.parent)


def test_a_run_is_one_tree_with_a_span_for_each_event_and_each_call(workspace: Path) -> None:
    with collecting() as collector:
        run = a_run(workspace, "rehearsal", *SMALL, f"tracing.base_url={collector.url}")
        tree, spans = collector.tree(), collector.by_id()
    done = events_of(run)
    calls = [
        read_record(run.records, ref)
        for entry in run.entries()
        if isinstance(entry.event, ev.RolloutFinished)
        for ref in entry.event.refs
    ]
    assert tree["run", ""] == 1
    assert tree["step", "run"] == done["StepFinished"] == 2
    assert tree["group", "step"] == done["GroupReflected"] == 8
    assert tree["rollout", "group"] == done["RolloutFinished"] == 24
    assert tree["verdict", "rollout"] == done["RolloutJudged"] == 24
    assert tree["chat", "rollout"] == len(calls) == 24
    assert tree["lesson", "step"] == tree["commit", "step"] == done["LessonCommitted"] == 2
    lessons = [e.event.lesson for e in run.entries() if isinstance(e.event, ev.LessonProposed)]
    assert tree["operation", "lesson"] == sum(len(lesson.operations) for lesson in lessons) > 0
    assert tree["decision", "operation"] == sum(
        len(e.event.decisions) for e in run.entries() if isinstance(e.event, ev.DecisionEvent)
    )
    assert tree["extraction", "group"] > 0 and tree["consolidation", "lesson"] > 0
    assert {span.trace for span in spans.values()} == {next(iter(spans.values())).trace}
    for span in spans.values():
        upper = above(span, spans)
        assert span.start_ns <= span.end_ns
        if upper is not None and upper.what in ("run", "step", "group", "lesson"):
            assert upper.start_ns <= span.start_ns
        if upper is not None and upper.what in ("run", "step"):
            assert span.end_ns <= upper.end_ns


def test_a_call_stands_there_by_the_names_of_both_conventions(workspace: Path) -> None:
    with collecting() as collector:
        run = a_run(workspace, "rehearsal", *SMALL, f"tracing.base_url={collector.url}")
        spans = collector.by_id()
    name = "s1p2r1"
    tried = next(span for span in spans.values() if span.name == f"rollout {name}")
    (chat,) = (s for s in spans.values() if s.parent == tried.id and s.what == "chat")
    shown = json.loads(studio("runs", "show", run.run, "--rollout", name, "--json",
                              workspace=workspace).stdout)  # fmt: skip
    *asked, said = shown["messages"]
    (ref,) = (
        e.event.refs[0]
        for e in run.entries()
        if isinstance(e.event, ev.RolloutFinished) and (e.event.position, e.event.index) == (2, 1)
        and e.event.step == 1
    )  # fmt: skip
    record, of = read_record(run.records, ref), chat.attributes
    usage = record.reply.usage
    assert of["openinference.span.kind"] == "LLM" and of["gen_ai.operation.name"] == "chat"
    assert of["gen_ai.request.model"] == of["llm.model_name"] == "rehearsal"
    assert of["gen_ai.usage.input_tokens"] == of["llm.token_count.prompt"] == usage.prompt_tokens
    assert of["gen_ai.usage.output_tokens"] == usage.completion_tokens
    assert of["llm.token_count.completion"] == usage.completion_tokens
    assert of["gen_ai.response.finish_reasons"] == ["stop"]
    assert of["gen_ai.request.temperature"] == record.sampling.temperature
    assert json.loads(of["llm.invocation_parameters"])["seed"] == record.sampling.seed
    assert of["output.value"] == of["llm.output_messages.0.message.content"] == said["content"]
    last = len(asked) - 1
    assert of["input.value"] == of[f"llm.input_messages.{last}.message.content"]
    assert of["input.value"] == asked[-1]["content"]
    roles = [of[f"llm.input_messages.{at}.message.role"] for at in range(len(asked))]
    assert roles == [message["role"] for message in asked]
    assert (chat.end_ns - chat.start_ns) / 1e9 == pytest.approx(record.elapsed_s, abs=1e-6)
    assert chat.end_ns / 1e9 == pytest.approx(record.at, abs=1e-6)
    (verdict,) = (s for s in spans.values() if s.parent == tried.id and s.what == "verdict")
    assert verdict.attributes["gen_ai.evaluation.score.value"] == shown["verdict"]["reward"]
    assert tried.attributes["openinference.span.kind"] == "AGENT"
    assert tried.attributes["gen_ai.operation.name"] == "invoke_agent"


def test_a_call_of_a_tool_stands_below_its_try_with_arguments_and_result(workspace: Path) -> None:
    with collecting() as collector:
        a_run(workspace, "math", *ACTING, f"tracing.base_url={collector.url}")
        spans, tree = collector.by_id(), collector.tree()
    called = [span for span in spans.values() if span.what == "execute_tool"]
    assert tree["execute_tool", "rollout"] == len(called) == 4
    of = called[0].attributes
    assert of["openinference.span.kind"] == "TOOL" and of["gen_ai.tool.name"] == "python"
    assert of["input.value"] == of["tool.parameters"]
    assert "code" in json.loads(of["input.value"])
    assert of["output.value"] != ""
    upper = above(called[0], spans)
    assert upper is not None and upper.attributes["studio.tool_calls"] == 1
    second = max(
        (s for s in spans.values() if s.parent == upper.id and s.what == "chat"),
        key=lambda span: span.start_ns,
    )
    assert of["output.value"] in second.attributes.values()


def test_content_can_be_left_out(workspace: Path) -> None:
    with collecting() as collector:
        words = (*ACTING, f"tracing.base_url={collector.url}", "tracing.content=false")
        run = a_run(workspace, "math", *words)
        sent = b"".join(collector.bodies).decode("utf-8", "replace")
        texts = [
            span for span in collector.spans if {"input.value", "output.value"} & {*span.attributes}
        ]
    assert texts == []
    for record in (
        read_record(run.records, ref)
        for entry in run.entries()
        if isinstance(entry.event, ev.RolloutFinished)
        for ref in entry.event.refs
    ):
        for text in (record.reply.text, *(message.content for message in record.messages)):
            assert len(text) < 10 or text not in sent
        assert "print(pow(" not in sent


def test_sent_later_a_span_is_the_same_to_the_last_bit(workspace: Path) -> None:
    with collecting() as live, collecting() as later:
        run = a_run(workspace, "rehearsal", *SMALL, f"tracing.base_url={live.url}")
        told = studio("runs", "trace", run.run, "--endpoint", later.url, "--json",
                      workspace=workspace)  # fmt: skip
        assert told.code == 0, told.stderr
        assert live.by_id() == later.by_id()
        assert json.loads(told.stdout) == {"run": run.run, "spans": len(later.spans)}


def test_after_a_kill_the_resumed_run_goes_on_in_the_same_tree_and_sends_nothing_twice(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector, collecting() as later:
        monkeypatch.setenv("PHOENIX_ENDPOINT", collector.url)
        with running(workspace, "rehearsal", *SMALL, "practice.epochs=5") as process:  # 10 steps
            process.until("RolloutJudged", 14)
        run = Workspace(workspace).runs()[-1]
        known = len(run.entries())
        done = studio("headless", "--resume", run.run, workspace=workspace)
        assert done.code == 0, done.stderr
        spans = collector.by_id()
        studio("runs", "trace", run.run, "--endpoint", later.url, workspace=workspace)
        every = later.by_id()
    assert [span.what for span in spans.values()].count("run") == later.tree()["run", ""] == 1
    # What the killed process had recorded and not sent yet is missing until it is sent later.
    assert {i: span for i, span in every.items() if i in spans} == spans
    after = [entry.event for entry in run.entries()[known:]]
    names = {span.name for span in spans.values()}
    ended = {f"step {e.step}" for e in after if isinstance(e, ev.StepFinished)}
    tried = {
        f"rollout s{e.step}p{e.position}r{e.index}"
        for e in after
        if isinstance(e, ev.RolloutFinished)
    }
    assert tried and ended and tried | ended <= names


def test_a_run_that_was_stopped_and_goes_on_has_one_root(workspace: Path) -> None:
    with collecting() as collector:
        address = f"tracing.base_url={collector.url}"
        a_run(workspace, "rehearsal", *SMALL, address)
        run = a_run(workspace, "rehearsal", *SMALL, address, "practice.epochs=2")
        tree = collector.tree()
    assert tree["run", ""] == 1 and tree["step", "run"] == 4
    assert events_of(run)["RunEnded"] == 2


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (None, ""),  # nobody listens
        ({"held": True}, ""),
        ({"status": 500}, "(it answers 500 Internal Server Error)"),
        ({"status": 307}, "(it answers 307 Temporary Redirect)"),
        ({"content": "text/html; charset=utf-8"}, "(it answers 200 OK)"),
    ],
)
def test_a_run_goes_on_without_a_collector_that_takes_anything(
    asked: dict[str, Any] | None, why: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting(**(asked or {})) as collector:
        url = "http://127.0.0.1:1" if asked is None else collector.url
        monkeypatch.setenv("PHOENIX_ENDPOINT", url)
        done = studio("headless", "rehearsal", *SMALL, workspace=workspace)
        assert collector.bodies == []  # that was the whole run: nobody has answered yet
    assert done.code == 0
    notes = [line for line in done.stderr.splitlines() if url in line]
    assert len(notes) == 1 and "studio runs trace rehearsal" in notes[0]
    assert "xport" not in done.stderr and "Traceback" not in done.stderr
    assert why in notes[0] and ("it answers" in notes[0]) == bool(why)


def test_the_environment_names_collector_project_and_headers(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=my%20team")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("PHOENIX_PROJECT_NAME", "arithmetic")
        run = a_run(workspace, "rehearsal", *SMALL)
    assert set(collector.paths) == {"/v1/traces"}
    assert {headers["x-team"] for headers in collector.headers} == {"my team"}
    (resource,) = {tuple(sorted(span.resource.items())) for span in collector.spans}
    assert dict(resource)["openinference.project.name"] == "arithmetic"
    assert dict(resource)["service.name"] == "mine"
    assert "x-team" not in run.run_file.read_text()  # a resume without the variables needs none


def test_without_opentelemetry_a_run_file_that_asks_for_spans_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    asked = "tracing.base_url=http://127.0.0.1:6006"
    refused = studio("headless", "rehearsal", *SMALL, asked, workspace=workspace)
    assert refused.code == 2 and "[otel]" in refused.stderr and "tracing.base_url" in refused.stderr
    assert not (workspace / "runs").exists()
    monkeypatch.setenv("PHOENIX_ENDPOINT", "http://127.0.0.1:6006")
    done = studio("headless", "rehearsal", *SMALL, workspace=workspace)
    assert done.code == 0
    (note,) = (line for line in done.stderr.splitlines() if "OpenTelemetry" in line)
    assert "[otel]" in note


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Give --endpoint"),
        (("--endpoint", "127.0.0.1:6006"), "must begin with http"),
        (("--endpoint", "http://127.0.0.1:1"), "nobody listens there"),
    ],
)
def test_a_run_that_cannot_be_sent_says_why(
    words: tuple[str, ...], says: str, practised: Path
) -> None:
    told = studio("runs", "trace", "rehearsal", *words, workspace=practised)
    assert told.code == 2 and says in told.stderr and told.stdout == ""


def test_what_a_collector_answers_is_said(practised: Path) -> None:
    with collecting(401) as collector:
        told = studio("runs", "trace", "rehearsal", "--endpoint", collector.url,
                      workspace=practised)  # fmt: skip
    assert told.code == 2 and "401" in told.stderr
