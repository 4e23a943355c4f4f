"""What a worker of a cluster opens for a run: agent and verifier, from the same run file.

A model is a stub here, which is asked through its try.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engines.core.errors import ConfigError
from engines.core.types import Sampling
from engines.process.scratch_folder import ScratchFolder
from engines.rollouts.remote.worker import RemoteModel, Worker, WorkerParts
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import grades_tasks, open_verifier
from studio.config.settings.run import RunConfig
from studio.run.acting import Acting, open_acting


@dataclass(frozen=True, slots=True)
class VerifierWanted:
    """A verifier as `open_verifier` is asked for one; the judge by its name and sampling."""

    spec: Any
    folders: tuple[str, ...]
    columns: frozenset[str] | None
    judge: tuple[str, Sampling] | None


@dataclass(frozen=True, slots=True)
class WorkerWanted:
    """What a worker opens; it travels in the memory of processes only."""

    config: RunConfig  # without what it says of models
    environ: Mapping[str, str]  # the variables that tools and programs are to get
    models: tuple[str, ...]  # names of those that tools ask, in the order of their opening
    embedders: tuple[str, ...]
    verifier: VerifierWanted | None = None


@asynccontextmanager
async def open_worker(
    wanted: WorkerWanted, files: Mapping[str, bytes], worker: Worker
) -> AsyncIterator[WorkerParts]:
    """Open a run's agent and verifier on a worker, with `files` where the run has them.

    Raises StudioError: something is not there, or cannot work.
    """
    scratch = ScratchFolder("studio-worker-")
    try:
        for name, content in files.items():
            path = Path(scratch.path + name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        async with AsyncExitStack() as stack:
            yield _open_parts(wanted, files, scratch.path, worker, stack)
    finally:
        scratch.remove()


def _open_parts(
    wanted: WorkerWanted,
    files: Mapping[str, bytes],
    root: str,
    worker: Worker,
    stack: AsyncExitStack,
) -> WorkerParts:
    config = wanted.config
    _check_readable(config)
    agent = rebuild(config.agent, lambda value: _relocate(value, files, root))
    config = config.model_copy(update={"agent": agent})
    acting = Acting(config, worker.tell, environ={**os.environ, **wanted.environ})
    acting.folder = Path(root) / "programs"

    def open_vectors(_: object) -> Any:
        place = len(acting.embedders)
        acting.embedders.append(worker.embedder(place, wanted.embedders[place]))
        return acting.embedders[place]

    later = RemoteModel(("model", -1), "")
    acting.open_models(lambda _: later)
    open_acting(acting, stack, later, lambda _: later, open_vectors, None)
    for place, model in enumerate(acting.models):
        model.inner = RemoteModel(("model", place), wanted.models[place])
    acting.members = {
        speaker: replace(member, policy=RemoteModel(("member", speaker), member.policy.name))
        for speaker, member in acting.members.items()
    }
    if (asked := wanted.verifier) is None:
        return WorkerParts(acting.make_agent, None, acting.check)
    judging = None
    if asked.judge is not None:
        name, sampling = asked.judge
        judging = JudgeContext(RemoteModel(("judge", 0), name), sampling, worker.ledger)
    spec = rebuild(asked.spec, lambda value: _relocate(value, files, root))
    verifier = open_verifier(
        spec,
        judging,
        [Path(root + folder) for folder in asked.folders],
        columns=asked.columns,
        grading=acting.grading() if grades_tasks(spec) else None,
    )
    stack.push_async_callback(verifier.aclose)
    return WorkerParts(acting.make_agent, verifier, acting.check)


def _check_readable(config: RunConfig) -> None:
    """What programs may read is too much to be sent: it must lie where the run has it."""
    agent = config.agent
    for path in (*agent.readable, *(path for tool in agent.tools for path in tool.readable)):
        if not Path(path).exists():
            raise ConfigError("readable", f"there is no {path} there.", "Put it on every node.")


def _relocate(value: Any, files: Mapping[str, bytes], root: str) -> Any:
    """A path of the run's machine, or `FILE.py:NAME`, as it is below `root`."""
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    file = value if value in files else value.rpartition(":")[0]
    is_folder = any(name.startswith(f"{value}/") for name in files)
    return root + value if file in files or is_folder else value


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tree of settings with each value changed, from the top."""
    value = change(value)
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        return value.model_copy(update={n: rebuild(getattr(value, n), change) for n in names})
    if isinstance(value, tuple | list):
        return type(value)(rebuild(item, change) for item in value)
    if isinstance(value, dict):
        return {key: rebuild(item, change) for key, item in value.items()}
    return value
