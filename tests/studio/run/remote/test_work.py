"""What a run sends to the workers of a cluster: its files and tools, and no key of a model."""

from __future__ import annotations

import pickle
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import ConfigError, StudioError
from engines.core.types import Sampling
from engines.rollouts.remote.worker import Worker
from engines.rollouts.remote.worker_pool import WorkerPool
from studio.config.loading import LoadedRun, load_run
from studio.run.acting import MOST_SHIPPED, WorkerWanted, open_worker
from studio.run.models import open_roles
from tests.support.builders import answering

KEY = "sk-planted-4f9d2c7b8a1e6035"
MODELS = f"""
exp_id: mine
policy:
  model: openai:m
  base_url: "https://u:{KEY}-a@127.0.0.1:9/v1?token={KEY}-b"
  replicas: ["https://u:{KEY}-c@127.0.0.1:9/v1"]
  api_key: {KEY}-d
  headers: {{X-Team: {KEY}-e}}
  extra_body: {{secret: {KEY}-f}}
judge: {{model: openai:j, api_key: {KEY}-g}}
dispatch: ray
data: {{practice: arithmetic}}
"""
TOOLS = f"""
agent:
  kind: tools
  tools:
    - {{function: "tools.py:double"}}
    - {{name: ask_model, model: {{model: openai:t, api_key: {KEY}-h}}}}
verifier: {{file: mine.py}}
"""
OWN = """
from beside import FACTOR

def double(n: int) -> str:
    '''Double a number.'''
    return str(FACTOR * n)
"""
VERIFIER = """
from rules import right

def verify_func(sample, timeout_score=0, **kwargs):
    return {"reward": float(right(sample.response, sample.correct_answer)), "reasoning": ""}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    (tmp_path / "mine.py").write_text(VERIFIER)
    (tmp_path / "rules.py").write_text("def right(said, truth):\n    return truth in said\n")
    path = tmp_path / "mine.yaml"
    path.write_text(MODELS + TOOLS)
    return path


def wanted_of(loaded: LoadedRun, stack: AsyncExitStack) -> tuple[WorkerWanted, dict[str, bytes]]:
    roles = open_roles(loaded.config, stack)
    assert roles.remote is not None and isinstance(roles.acting.worker_pool, WorkerPool)
    folders = (loaded.path.parent,)
    roles.remote.want_verifier(loaded.config.verifier.spec, folders, None, None)
    wanted, files = roles.remote.gather_wanted()
    return wanted, dict(files)


async def test_no_key_of_a_model_goes_to_a_worker(run_file: Path, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        loaded = load_run(str(run_file), (), tmp_path / "practice", {})
        wanted, files = wanted_of(loaded, stack)
        assert loaded.config.policy.api_key is not None  # it is the copy that is stripped
    assert KEY.encode() not in pickle.dumps((wanted, files))
    assert wanted.models == ("openai:t",)


async def test_a_worker_opens_the_same_agent_and_verifier_from_files_of_its_own(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        loaded = load_run(str(run_file), (), tmp_path / "practice", {})
        wanted, files = wanted_of(loaded, stack)
    for path in run_file.parent.glob("*.py"):
        path.unlink()  # another machine has none of them
    wanted, files = pickle.loads(pickle.dumps((wanted, files)))
    sent: list[Any] = []

    async def fetch(handle: Any) -> Any:
        return handle

    worker = Worker(sent.append, fetch)
    async with open_worker(wanted, files, worker) as parts:
        facts = await parts.check()
        assert [tool["name"] for tool in facts["tools"]] == ["double", "ask_model"]
        (root,) = {Path(name).parent for name in files}
        assert root == run_file.parent
        assert parts.verifier is not None
        await parts.verifier.check()
        agent = parts.make_agent(Sampling(0.1))
        assert [spec.name for spec in agent.toolbox.specs] == ["double", "ask_model"]  # type: ignore[attr-defined]


async def test_files_that_are_too_large_to_be_sent_are_refused(
    run_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(VERIFIER + f"# {'x' * MOST_SHIPPED}\n")
    async with AsyncExitStack() as stack:
        loaded = load_run(str(run_file), (), tmp_path / "practice", {})
        with pytest.raises(ConfigError, match=r"have 20,\d{3},\d{3} bytes"):
            wanted_of(loaded, stack)


async def test_what_programs_may_read_has_to_be_there(run_file: Path, tmp_path: Path) -> None:
    lies_here = tmp_path / "large"
    lies_here.mkdir()
    program = tmp_path / "agent.py"
    program.write_text("print(5)\n")
    run_file.write_text(
        MODELS + f"agent: {{command: [python, agent.py], readable: [{lies_here}]}}\n"
    )
    async with AsyncExitStack() as stack:
        wanted, files = wanted_of(load_run(str(run_file), (), tmp_path / "practice", {}), stack)
    assert str(program) in files
    lies_here.rmdir()
    worker = Worker(lambda item: None, lambda handle: answering("x"))  # type: ignore[arg-type, return-value]
    with pytest.raises(StudioError, match=f"there is no {lies_here} there"):
        async with open_worker(wanted, files, worker):
            raise AssertionError
