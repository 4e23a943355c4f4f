"""The run's side of a cluster: what workers are to open, and which models they may ask.

What a run file says of models stays here, keys above all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError
from engines.core.extras import install_command
from engines.core.protocols import Policy
from engines.rollouts.remote.dispatcher import Dispatcher, RunModels
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import parse_spec
from studio.config.paths import own_programs
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.run.acting import Acting
from studio.run.remote.worker import VerifierWanted, WorkerWanted, open_worker, rebuild
from studio.secrets.output import current_mask
from studio.secrets.run_files import environment_secrets

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
            cause = f"the files of agent and verifier have {size:,} bytes."
            move = "Put the large ones on every node, and name them as readable."
            raise ConfigError("dispatch", cause, move)


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
        cause = "a cassette is recorded and played in this process alone."
        raise ConfigError("dispatch", cause, "Set dispatch=local.")
    try:
        from engines.rollouts.remote.ray_cluster import RayCluster
    except ModuleNotFoundError as error:
        move = f"Install it: {install_command('ray')}"
        raise ConfigError("dispatch", "it is ray, which is not installed.", move) from error

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
