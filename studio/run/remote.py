"""Tries on the workers of a cluster: what a worker opens, and which models it may ask.

What a run file says of models stays with the run, keys above all: on a worker a model is a stub,
which is asked through its try.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engines.core.errors import ConfigError, install_command
from engines.core.protocols import Policy
from engines.core.types import Sampling
from engines.process.start import ScratchFolder
from engines.rollouts.remote.dispatcher import (
    Dispatcher,
    RemoteEmbedder,
    RemoteLedger,
    RemoteModel,
    RunModels,
    Worker,
    WorkerParts,
)
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import grades_tasks, open_verifier, parse_spec
from studio.config.loading import own_programs
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.run.acting import Acting, open_acting
from studio.secrets.output import current_mask
from studio.secrets.run_files import environment_secrets


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
        acting.embedders.append(RemoteEmbedder(worker.line, place, wanted.embedders[place]))
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
        ledger = RemoteLedger(worker.line)
        judging = JudgeContext(RemoteModel(("judge", 0), name), sampling, ledger)
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


MOST_SHIPPED = 20_000_000
"""Bytes of one's own files that go to the workers: what is larger lies on the nodes itself."""


@dataclass(slots=True)
class RemoteWork:
    """Where the tries of a run are made and judged, while it is being opened."""

    acting: Acting
    models: RunModels
    verifier: VerifierWanted | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def want_verifier(
        self,
        spec: Any,
        folders: Sequence[Path],
        columns: frozenset[str] | None,
        judging: JudgeContext | None,
    ) -> None:
        """Have workers judge, too, by the verifier of the run file."""
        for file in parse_spec(spec, folders).files:
            self._ship(file)
        judge = None if judging is None else (judging.policy.name, judging.sampling)
        self.verifier = VerifierWanted(spec, tuple(map(str, folders)), columns, judge)
        if judging is not None:
            by, ask = judging.policy, judging.ledger.ask
            self.models.judge = lambda key, messages, sampling: ask(key, by, messages, sampling)

    def gather_wanted(self) -> tuple[WorkerWanted, Mapping[str, bytes]]:
        """What each worker opens, and the files that it needs for that."""
        acting, config = self.acting, self.acting.config
        for file in own_programs(config.agent):
            self._ship(file)
        agent = config.agent
        names = {*agent.pass_env, *(name for tool in agent.tools for name in tool.pass_env)}
        environ = {name: acting.environ[name] for name in names if name in acting.environ}
        models = tuple(model.name for model in acting.models)
        embedders = tuple(embedder.name for embedder in acting.embedders)
        stripped = rebuild(config, _without_models)
        return WorkerWanted(stripped, environ, models, embedders, self.verifier), self.files

    def _ship(self, file: Path) -> None:
        """A file, and the Python files beside one, which it may import."""
        beside = sorted(file.parent.glob("*.py")) if file.suffix == ".py" else []
        for path in (file, *beside):
            if path.is_file() and (path == file or path.stat().st_size < 1_000_000):
                self.files[str(path.absolute())] = path.read_bytes()
        if (size := sum(map(len, self.files.values()))) > MOST_SHIPPED:
            raise ConfigError(
                "dispatch",
                f"the files of agent and verifier have {size:,} bytes.",
                "Put the large ones on every node, and name them as readable.",
            )


def open_remote_work(
    acting: Acting, stack: AsyncExitStack, tell: Callable[[str], None]
) -> RemoteWork | None:
    """The cluster's part of a run that says `dispatch: ray`; nothing is reached before `check`.

    Raises StudioError: ray is not installed.
    """
    config = acting.config
    if config.dispatch == "local":
        return None
    if acting.cassette is not None:
        raise ConfigError(
            "dispatch",
            "a cassette is recorded and played in this process alone.",
            "Set dispatch=local.",
        )
    try:
        from engines.rollouts.remote.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        raise ConfigError(
            "dispatch",
            "it is ray, which is not installed.",
            f"Install it: {install_command('ray')}",
        ) from error

    secrets, mask = environment_secrets(), current_mask()
    cluster = RayCluster(
        config.ray.address,
        open_parts=open_worker,
        cpus_per_worker=config.ray.cpus_per_worker,
        environ={
            name: value
            for name, value in os.environ.items()
            if mask(value) == value and not any(secret in value for secret in secrets)
        },
    )
    most = config.ray.tries_per_worker
    work = RemoteWork(acting, RunModels(lambda ref: _resolve(acting, ref), acting.embedders))
    acting.dispatcher = Dispatcher(
        cluster,
        work.gather_wanted,
        work.models,
        wanted_workers=ceil(config.practice.concurrency / most),
        tries_per_worker=most,
        tell=tell,
    )
    stack.push_async_callback(acting.dispatcher.aclose)
    return work


def _resolve(acting: Acting, ref: tuple[str, str | int]) -> Policy:
    match ref:
        case "model", int(place):
            return acting.models[place]
        case "member", speaker:
            return acting.members[speaker].policy  # type: ignore[index]
    raise AssertionError(f"no model is called {ref}")


def _without_models(value: Any) -> Any:
    """Settings of a model without its address and what is sent to it."""
    if isinstance(value, PolicyConfig):
        none: dict[str, Any] = {"base_url": None, "api_key": None, "headers": {}}
        none |= {"extra_body": {}, "replicas": ()}
        return value.model_copy(update=none)
    if isinstance(value, EmbeddingConfig):
        return value.model_copy(update={"base_url": None, "api_key": None})
    return value
