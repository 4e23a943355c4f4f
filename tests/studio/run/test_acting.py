"""Whole runs of agents that act: tools, MCP servers, and programs of one's own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError
from engines.process.start import remove_stale
from engines.record.run_dir import Workspace
from tests.engines.pipeline.test_resume import Photographed, _mark, recorded
from tests.support.harness import Practised, practised
from tests.support.mcp_server import serve_http
from tests.support.run_studio import studio

SMALL = ("practice.epochs=1", "practice.batch_size=2", "practice.group_size=3", "data.truncate=4")
OWN = '''
import contextlib, io

def python(code: str) -> str:
    """Run a program.

    Repeatable: yes
    """
    with open({log!r}, "a") as log:
        print(repr(code), file=log)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {{}})
    return out.getvalue() or "(nothing)"
'''
SERVER = '''
import contextlib, io, os, sys
from mcp.server import MCPServer

server, calls = MCPServer("tools"), []

@server.tool()
def python(code: str) -> str:
    """Run a program."""
    calls.append(code)
    if len(calls) == int(os.environ.get("LAST", "0")):
        os._exit(3)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue() or "(nothing)"

@server.tool()
def look(at: int) -> str:
    """Look at a place."""
    return str(at)

if __name__ == "__main__":
    server.run(transport="stdio")
'''


def own_tool(folder: Path) -> tuple[str, Path]:
    """The override that makes a function of one's own the tool, and the log of its calls."""
    log = folder / "calls.log"
    (folder / "tools.py").write_text(OWN.format(log=str(log)))
    return f"agent.tools=[{folder / 'tools.py'}:python]", log


def left_by_a_killed_studio(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that nobody holds any more."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    remove_stale.cache_clear()
    left = folder / name
    left.mkdir()
    os.utime(left, (0, 0))
    return left


@asynccontextmanager
async def a_server(folder: Path, over: str, more: str = "") -> AsyncIterator[str]:
    """The override that makes the tools of a real MCP server the agent's."""
    path = folder / "server.py"
    if over == "stdio":
        extra = f", {more}" if more else ""
        yield f"agent.tools=[{{command: [python, {path}]{extra}}}]"
        return
    spec = importlib.util.spec_from_file_location("served_tools", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with serve_http(server=module.server) as port:
        yield f"agent.tools=[{{url: 'http://127.0.0.1:{port}/mcp'}}]"


def lost_rollouts(done: Practised) -> list[str]:
    return [e.event.error for e in done.run.entries() if getattr(e.event, "error", None)]


def test_practice_with_tools_helps_and_tells_what_contains_them(tmp_path: Path) -> None:
    few = ("data.truncate=16", "evaluation.limit=24")
    done = studio("headless", "math", *few, workspace=tmp_path)
    assert done.code == 0, done.stderr
    assert ", helps (" in done.stdout
    assert "tool python: " in done.stderr and "; network none" in done.stderr
    shown = studio("runs", "show", "math", "--rollout", "s1p0r0", workspace=tmp_path)
    assert "python" in shown.stdout and "[tool]" in shown.stdout


async def test_with_every_operation_rejected_tools_alone_teach_nothing(tmp_path: Path) -> None:
    rules = tmp_path / "reject.yaml"
    rules.write_text("rules:\n  - do: reject\n    reason: a control\n")
    tool, _ = own_tool(tmp_path)
    done = await practised(
        tmp_path / "practice",
        *(tool, "practice.epochs=1", "evaluation.do_eval=true", "data.truncate=16"),
        preset="math",
        review=f"rules:{rules}",
    )
    before, after = (e.mean for e in done.state.evaluations)
    assert done.state.operations == {}
    assert before == after


async def test_a_run_with_tools_cut_at_any_event_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    tool, log = own_tool(tmp_path)
    # Whole numbers are what is asked for: a checker of mathematics would be started for each cut.
    settings = (tool, *SMALL, "verifier=text")
    workspace, album = tmp_path / "practice", tmp_path / "album"
    album.mkdir()
    camera = type("Camera", (Photographed,), {"workspace": workspace, "album": album})
    wanted = await practised(workspace, *settings, preset="math", open_journal=camera)
    everything, calls = recorded(workspace / "runs/math"), len(log.read_text().splitlines())
    assert calls > 10
    assert set(everything.values()) == {1}
    cuts = {_mark(photograph): photograph for photograph in sorted(album.iterdir())}
    assert len(cuts) > 20
    for cut in cuts.values():
        log.unlink(missing_ok=True)
        again = tmp_path / "again"
        shutil.copytree(cut, again, symlinks=True)
        before = recorded(again / "runs/math")
        got = await practised(again, *settings, preset="math")
        assert got.texts == wanted.texts != [], cut.name
        assert got.decisions() == wanted.decisions(), cut.name
        assert recorded(again / "runs/math") == everything, cut.name
        ran = len(log.read_text().splitlines()) if log.exists() else 0
        kept = sum("'purpose': 'tool'" in key for key in before)
        assert ran == calls - kept, cut.name
        shutil.rmtree(again)


@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_a_real_mcp_server_serves_a_run(
    tmp_path: Path, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "here" / "engines").mkdir(parents=True)
    (tmp_path / "here" / "engines" / "__init__.py").touch()  # no part of ours
    monkeypatch.chdir(tmp_path / "here")
    left = left_by_a_killed_studio("studio-server-1", tmp_path, monkeypatch)
    async with a_server(tmp_path, over) as tool:
        done = await practised(tmp_path / "practice", tool, *SMALL, preset="math")
    assert done.state.status == "finished"
    assert lost_rollouts(done) == []
    opened = [e.event for e in done.run.entries() if isinstance(e.event, ev.AgentOpened)]
    (facts,) = (event.facts for event in opened)
    assert [tool["name"] for tool in facts["tools"]] == ["python", "look"]
    assert {tool["network"] for tool in facts["tools"]} == {"none" if over == "stdio" else "public"}
    assert left.exists() == (over == "http")
    assert over == "http" or not list(tmp_path.glob("studio-server-*"))


async def test_a_server_that_dies_fails_the_calls_under_way_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAST", "7")
    (tmp_path / "server.py").write_text(SERVER)
    async with a_server(tmp_path, "stdio", "pass_env: [LAST]") as tool:
        done = await practised(tmp_path / "practice", tool, *SMALL, preset="math")
    assert done.state.status == "finished"
    lost = lost_rollouts(done)
    assert 0 < len(lost) < 12
    assert all("its server is gone" in error for error in lost)
    rewards = [e.event for e in done.run.entries() if isinstance(e.event, ev.RolloutJudged)]
    assert sum(e.verdict.reward is None for e in rewards) == len(lost)


@pytest.mark.parametrize(
    ("program", "problem_as", "answer_from"),
    [
        ("urllib_agent", "stdin", "stdout"),
        ("openai_agent", "argument", "stdout"),
        ("streaming_tools_agent", "file", "file:answer.txt"),
        ("mcp_agent", "stdin", "stdout"),
    ],
)
async def test_a_program_practises_to_the_library_of_the_same_agent_in_process(
    tmp_path: Path, program: str, problem_as: str, answer_from: str
) -> None:
    # The fewest tries that differ, made at once: a program takes a second or two to import.
    settings = (
        *("practice.epochs=1", "practice.batch_size=1", "practice.group_size=2"),
        *("data.truncate=1", "practice.concurrency=2", "seed=2"),
    )
    path = Path(__file__).parents[2] / "support/agent_programs" / f"{program}.py"
    inside = await practised(tmp_path / "inside", *settings)
    outside = await practised(
        tmp_path / "outside",
        *settings,
        f"agent.command=[python, {path}]",
        *(f"agent.answer_from={answer_from}", f"agent.problem_as={problem_as}"),
        "exp_id=rehearsal",
        preset="command",
    )
    assert lost_rollouts(outside) == []
    assert inside.texts == outside.texts != []
    assert not (outside.run.path / "programs").exists()


async def test_a_function_of_ones_own_is_the_agent(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("async def solve(problem, model):\n"
                                      "    return await model(problem.question)\n")  # fmt: skip
    settings = (*SMALL, f"agent.function={tmp_path / 'mine.py'}:solve")
    inside = await practised(tmp_path / "inside", *SMALL)
    own = await practised(tmp_path / "own", *settings)
    assert inside.texts == own.texts != []


async def test_task_folders_are_graded_where_the_agent_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_a_killed_studio("grader-1", tmp_path, monkeypatch)
    for n in range(2):
        task = tmp_path / "tasks" / f"t{n}"
        (task / "tests").mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n')
        (task / "instruction.md").write_text(f"Write {n} into answer.txt.")
        (task / "tests" / "test.sh").write_text(
            f'grep -qx {n} answer.txt; echo $((1 - $?)) > "$STUDIO_LOGS/verifier/reward.txt"\n'
        )
    agent = tmp_path / "write.py"
    agent.write_text("open('answer.txt', 'w').write('1')\nprint('done')\n")
    done = await practised(
        tmp_path / "practice",
        *("practice.epochs=1", "practice.batch_size=2", "practice.group_size=2"),
        *(f"data.practice={tmp_path / 'tasks'}", f"agent.command=[python, {agent}]"),
        "verifier=harbor",
        preset="command",
    )
    judged = [e.event for e in done.run.entries() if isinstance(e.event, ev.RolloutJudged)]
    verdicts = {e.position: e.verdict for e in judged}
    assert [v.error for v in verdicts.values() if v.reward is None] == lost_rollouts(done) == []
    assert sorted(v.reward or 0.0 for v in verdicts.values()) == [0.0, 1.0]
    assert not list(tmp_path.glob("grader-*"))
    assert not (Workspace(tmp_path / "practice").run("command").path / "programs").exists()


async def test_a_budget_in_dollars_needs_the_price_of_a_tools_model(tmp_path: Path) -> None:
    model = "{model: 'openai:m', base_url: 'http://127.0.0.1:9/v1', api_key: none}"
    settings = (
        *("budget.cost_usd=1", "policy.price_in_usd_per_mtok=1", "policy.price_out_usd_per_mtok=1"),
        f"agent.tools=[{{name: ask_model, model: {model}}}]",
    )
    with pytest.raises(ConfigError, match=r"the model of a tool \(openai:m\) costs is unknown"):
        await practised(tmp_path / "practice", *settings, preset="math")
