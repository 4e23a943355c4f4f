"""What the doctor finds out by asking endpoints, and what it says of a run file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engines.policies.chat.client import parse_listing
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.repair import Finding
from studio.config.loading import load_run
from studio.workspace.run_checks import (
    MOST_TOKENS,
    Observed,
    asked_models,
    endpoint_findings,
    named_models,
    observe,
)
from tests.support.fake_endpoint import (
    DONE,
    Behaviour,
    Exchange,
    an_endpoint,
    answers,
    delta,
    fake_endpoint,
    refuses,
    says,
    usage,
)
from tests.support.run_studio import studio

WORDS = ("apple, ", "river, ", "stone, ", "cloud, ", "bridge, ", "lamp")
CALL = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}


def a_server(
    *,
    words: Behaviour | Callable[[int], Behaviour] | None = None,
    tool: Behaviour | None = None,
    form: Behaviour | None = None,
    models: object = {"data": [{"id": "served", "max_model_len": 8192}]},
) -> Behaviour:
    """An endpoint that can do everything, but for what is given."""
    asked = count()

    async def calls(exchange: Exchange) -> None:
        await exchange.stream([delta(tool_calls=[CALL]), delta("tool_calls"), usage(80, 12), DONE])

    async def behaviour(exchange: Exchange) -> None:
        body = exchange.request.body
        if exchange.request.method == "GET":
            await exchange.plain(200, json.dumps(models).encode())
        elif "tools" in body:
            await (tool or calls)(exchange)
        elif "response_format" in body:
            await (form or says('{"ok": true}', counts=(20, 6)))(exchange)
        elif body["messages"][0]["content"] == "Say OK." or words is None:
            await says(*WORDS, counts=(20, 12))(exchange)
        else:
            one: Any = words
            await (one(next(asked)) if getattr(words, "by_turn", False) else one)(exchange)

    return behaviour


async def seen(server: Behaviour, **changes: Any) -> Observed:
    ticks = count()
    async with fake_endpoint(server) as fake:
        settings = EndpointSettings(model="served", base_url=fake.base_url, max_retries=0)
        own = replace(settings, **changes)
        return await observe(own, clock=lambda: next(ticks) * 0.2)


def found(observed: Observed, *, tools: bool = False, form: bool = False) -> list[Finding]:
    return endpoint_findings("policy", observed, "served", tools, form)


def texts(findings: list[Finding], grade: str) -> str:
    return "\n".join(f"{one.cause} {one.move}" for one in findings if one.grade == grade)


async def test_an_endpoint_that_can_do_everything_is_one_line() -> None:
    observed = await seen(a_server())
    (whole,) = found(observed, tools=True, form=True)
    assert whole.grade == "ok"
    for part in (
        "answers",
        "native tool calls",
        "JSON mode",
        "counts tokens",
        "honours seeds (2 replies alike)",
        "context of 8,192 tokens",
    ):
        assert part in whole.cause, whole.cause


async def test_the_questions_cost_a_few_hundred_tokens_at_most() -> None:
    async with fake_endpoint(a_server()) as fake:
        await observe(EndpointSettings(model="served", base_url=fake.base_url))
    limits = [body["max_tokens"] for body in fake.bodies if body]
    assert sum(limits) < MOST_TOKENS < 400


async def test_an_endpoint_that_sends_its_reply_at_once_does_not_stream() -> None:
    whole = {"message": {"content": "".join(WORDS)}, "finish_reason": "stop"}
    reply = {"choices": [whole], "usage": {"prompt_tokens": 20, "completion_tokens": 12}}
    findings = found(await seen(a_server(words=answers(reply))))
    assert "does not stream" in texts(findings, "note") and "proxy" in texts(findings, "note")


@pytest.mark.parametrize(
    ("tool", "cause", "grade"),
    [
        (refuses(400, "tools are not supported"), "it refuses tools (400", "fix"),
        (says('{"name": "get_weather"}'), "writes function calls into its text", "fix"),
        (says("It is sunny."), "it makes none", "note"),
    ],
)
async def test_tools_that_do_not_work_hinder_only_a_run_that_has_some(
    tool: Behaviour, cause: str, grade: str
) -> None:
    observed = await seen(a_server(tool=tool))
    told = texts(found(observed, tools=True), grade)
    assert cause in told and "agent.tool_protocol=text" in told
    (only,) = found(observed, tools=False)
    assert only.grade == "ok" and "which this run does without" in only.cause


@pytest.mark.parametrize(
    ("form", "cause"),
    [
        (refuses(400, "response_format is not supported"), "it refuses JSON mode"),
        (says("Sure! OK."), "what comes is no JSON"),
    ],
)
async def test_json_mode_that_is_refused_is_noted_where_it_is_asked_for(
    form: Behaviour, cause: str
) -> None:
    observed = await seen(a_server(form=form))
    assert cause in texts(found(observed, form=True), "note")
    assert [one.grade for one in found(observed)] == ["ok"]


async def test_tokens_that_are_not_counted_are_noted() -> None:
    findings = found(await seen(a_server(words=says(*WORDS, counts=None))))
    assert "it counts no tokens" in texts(findings, "note")
    assert "counts tokens" not in texts(findings, "ok")


async def test_two_replies_for_one_seed_are_noted() -> None:
    def words(turn: int) -> Behaviour:
        return says(*WORDS, str(turn), counts=(20, 12))

    words.by_turn = True  # type: ignore[attr-defined]
    told = texts(found(await seen(a_server(words=words))), "note")
    assert "two replies for one seed" in told and "--record" in told


async def test_another_model_is_told() -> None:
    findings = found(await seen(a_server(), model="llama3"))
    assert "from the model 'served', not from 'llama3'" in texts(findings, "note")


def test_the_context_is_read_as_servers_spell_it() -> None:
    rows = [
        {"id": "vllm", "max_model_len": 4096},
        {"id": "router", "context_length": 128_000},
        {"id": "llama", "meta": {"n_ctx_train": 2048}},
        {"id": "mute"},
    ]
    body = json.dumps({"data": [*rows, "odd", {"name": "none"}]}).encode()
    contexts = {"vllm": 4096, "router": 128_000, "llama": 2048, "mute": None}
    assert parse_listing(body) == contexts
    assert parse_listing(b"<html>") == parse_listing(b"[1]") == {}


# -- a run file ------------------------------------------------------------------------------


def a_run_file(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(f"data: {{practice: arithmetic}}\nverifier: {{name: math}}\n{text}\n")
    return str(path)


def test_models_are_asked_once_with_all_their_roles(tmp_path: Path) -> None:
    file = a_run_file(
        tmp_path,
        """
policy: {model: "openai:a", base_url: "http://h:1/v1", replicas: ["http://h:2/v1"],
  price_in_usd_per_mtok: 1, price_out_usd_per_mtok: 2}
judge: {model: "openai:b", base_url: "http://h:1/v1"}
lint: {embedding: rehearsal}
agent: {tools: [{name: ask_model, model: {model: "openai:a", base_url: "http://h:1/v1"}}]}
""",
    )
    config = load_run(file, (), tmp_path, environ={}).config
    names = [name for name, _ in named_models(config)]
    assert names == ["policy", "reflector", "judge", "agent.tools.0.model"]
    asked = asked_models(config)
    both, judge, *_ = asked.endpoints
    assert both.roles == ["policy", "reflector"] and both.needs_tools and not judge.needs_tools
    assert [one.url for one in both.addresses] == ["http://h:1/v1", "http://h:2/v1"]
    assert [one.place for one in asked.unasked] == ["lint.embedding (rehearsal)"]
    assert f"asking 4 addresses: about {MOST_TOKENS} tokens" in asked.price
    assert "$" not in asked.price  # the judge's price is not known
    known = load_run(file, ["judge=rehearsal", "agent.tools=[python]"], tmp_path, environ={})
    assert "under $0.00" in asked_models(known.config).price


def test_a_rehearsal_has_nothing_to_ask_and_its_parts_are_checked(workspace: Path) -> None:
    done = studio("doctor", "rehearsal", workspace=workspace)
    assert done.code == 0, done.stdout
    assert "policy (rehearsal): replies are scripted: there is nothing to ask." in done.stdout
    assert "run: 32 problems; verifier math is there." in done.stdout
    assert "asking" not in done.stderr and not workspace.exists()


def test_a_run_file_that_cannot_be_read_is_one_of_the_findings(workspace: Path) -> None:
    done = studio("doctor", "rehearsal", "practice.epoch=2", "--json", workspace=workspace)
    told = json.loads(done.stdout)
    (fix,) = [one for one in told["findings"] if one["grade"] == "fix"]
    assert (done.code, told["well"]) == (2, False)
    assert "practice.epoch" in fix["place"] and told["findings"][0] == fix
    assert any(one["place"] == "sandbox" for one in told["findings"])


def test_the_cluster_that_is_looked_at_is_that_of_the_run_file(workspace: Path) -> None:
    asked = "doctor", "rehearsal", "dispatch=ray", "ray.address=127.0.0.1:1"
    done = studio(*asked, workspace=workspace)
    assert "cluster at 127.0.0.1:1: nothing answers" in done.stdout
    assert "no cluster runs here" not in done.stdout


def test_endpoints_of_a_run_file_are_asked_after_the_price_is_said(
    tmp_path: Path, workspace: Path
) -> None:
    secret = "sk-planted-0123456789abcdef"
    with an_endpoint(a_server(words=refuses(500, f"key {secret} broke"))) as fake:
        file = a_run_file(
            tmp_path,
            f"""
policy: {{model: "openai:m", base_url: "{fake.base_url}", api_key: {secret}, max_retries: 0}}
judge: {{model: "openai:m", base_url: "http://127.0.0.1:9/v1"}}
""",
        )
        done = studio("doctor", file, workspace=workspace)
    assert done.code == 2
    assert f"asking 2 addresses: about {MOST_TOKENS} tokens at most each" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fix    judge (openai:m at http://127.0.0.1:9/v1): no connection")
    assert lines[0].endswith("only where it begins with https.")
    assert any(line.startswith("note   policy, reflector") and "500" in line for line in lines)
    assert secret not in done.stdout + done.stderr
    assert "1 to fix: they stand first." in lines


def test_of_several_addresses_one_that_is_gone_is_a_note(tmp_path: Path, workspace: Path) -> None:
    with an_endpoint(a_server()) as fake:
        file = a_run_file(
            tmp_path,
            f"""
policy: {{model: "openai:m", base_url: "{fake.base_url}", replicas: ["http://127.0.0.1:9/v1"]}}
""",
        )
        done = studio("doctor", file, "--json", workspace=workspace)
    told = json.loads(done.stdout)
    (gone,) = [one for one in told["findings"] if "127.0.0.1:9" in one["place"]]
    assert (done.code, gone["grade"]) == (0, "note") and "leaves it out" in gone["move"]


def test_a_verifier_that_cannot_be_loaded_is_to_be_fixed(workspace: Path) -> None:
    (workspace / "verifiers").mkdir(parents=True)
    (workspace / "verifiers/odd.py").write_text("import nothing_of_that_name\n")
    done = studio("doctor", "rehearsal", "verifier={file: odd.py}", workspace=workspace)
    assert done.code == 2
    assert done.stdout.startswith("fix    "), done.stdout
    assert "nothing_of_that_name" in done.stdout


def test_no_weights_are_loaded_for_a_model_that_is_trained_here(workspace: Path) -> None:
    words = ["--workspace", str(workspace), "doctor", "grpo-tiny"]
    code = f"import sys; from studio.cli import run; code = run({words}); "
    code += "print(code, sorted({'torch', 'ray', 'textual'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "policy (hf:tiny): its weights are loaded by the run" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout
