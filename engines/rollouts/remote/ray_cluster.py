"""Workers from a Ray cluster; the one file that imports ray.

Ray places workers, restarts nodes and scales; which rollout goes where is the pool's. What
travels is in arguments of calls between processes: never in an environment, a file or a log.
"""

import asyncio
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

if (Path.home() / ".ray" / "auth_token").exists():
    # Ray asks a cluster with the token of this user only where it was told so before it is loaded.
    os.environ.setdefault("RAY_AUTH_MODE", "token")

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity

from engines.core.codec import JsonObject
from engines.core.errors import StudioError, WorkerLost
from engines.core.frozen import frozen
from engines.rollouts.remote.line import Item, PackedError
from engines.rollouts.remote.worker import OpenParts, Worker

REACH_S = 5.0
"""To reach the head of a cluster."""
START_S = 15.0
"""To start a process on a node."""
MOST_CALLS = 10_000
"""Of one worker at a time: what it has under way is bounded by the pool."""


@frozen
class Node:
    """A machine of a cluster, and what it has installed; "" where `trouble` says why not."""

    name: str
    cpus: float
    release: str
    trouble: str = ""


@frozen
class RayCluster:
    """A `Cluster` by its address, the one of this machine, or one of its own.

    `environ` is what processes of an own cluster begin with: it must hold no secret.
    """

    address: str | None
    open_parts: OpenParts
    cpus_per_worker: float
    environ: Mapping[str, str]
    # Processes of an own cluster end with the thread that began them.
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "ray"))

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.thread, self._start)

    def _start(self) -> None:
        address = self.address
        if address not in (None, "local"):
            _reach(address)
        # What it says on the way would stand in the screen; errors come as such.
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Ray 2.60 prints what befalls its processes on standard output, and no option stops it:
        # that is our data's. The pool says which worker was lost, and why.
        ray._private.worker.print_worker_logs = lambda *_: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            usual: JsonObject = {
                "namespace": "practice-studio",
                "log_to_driver": False,
                "configure_logging": False,
                "logging_level": "ERROR",
            }
            try:
                if address is None:
                    try:
                        ray.init("auto", **usual)
                    except ConnectionError:
                        address = "local"
                elif address != "local":
                    ray.init(address, **usual)
                if address == "local":
                    with _environment(self.environ):
                        ray.init("local", include_dashboard=False, **usual)
            except (RayError, ConnectionError, RuntimeError, OSError, ValueError) as error:
                said = " ".join(str(error).split())[:300]
                raise StudioError(
                    "ray.address",
                    f"no cluster answers ({said}).",
                    "Start one: ray start --head, or set ray.address=local.",
                ) from error

    async def add_worker(self) -> "RayProcess":
        actor: Any = ray.remote(_Actor)
        made = actor.options(
            num_cpus=self.cpus_per_worker,
            max_concurrency=MOST_CALLS,
            max_restarts=0,
            max_task_retries=0,
        ).remote(self.open_parts)
        try:
            host, release = await made.where.remote()
        except (RayError, ModuleNotFoundError) as error:
            if not ray.is_initialized():
                raise StudioError(
                    "ray.address",
                    "the cluster is gone.",
                    "Start it again; the same command goes on from there.",
                ) from error
            raise WorkerLost("(unknown)", _describe_loss(error)) from error
        if release != _release():
            ray.kill(made)
            raise StudioError(
                f"node {host}",
                f"it has {release}, and this is {_release()}.",
                "Install the same on every node.",
            )
        return RayProcess(made, host)

    def list_nodes(self) -> tuple[str, list[Node]]:
        """What has to be installed on every node, and the nodes; the cluster is begun with here."""
        self._start()
        list_all: Any = ray.nodes
        ask: Any = ray.remote(_release)
        alive = [node for node in list_all() if node["Alive"]]
        asked = [
            ask.options(
                num_cpus=0, scheduling_strategy=NodeAffinity(node["NodeID"], False)
            ).remote()
            for node in alive
        ]
        nodes = []
        for node, reply in zip(alive, asked, strict=True):
            release = trouble = ""
            try:
                release = str(ray.get(reply, timeout=START_S))
            except (RayError, ImportError, TimeoutError) as error:
                trouble = _describe_loss(error)
            cpus = float(node["Resources"].get("CPU", 0.0))
            nodes.append(Node(str(node["NodeManagerHostname"]), cpus, release, trouble))
        return _release(), nodes

    def share(self, value: Any) -> Any:
        return [ray.put(value)]  # once a node; in a list, it travels as what it is

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self.thread, ray.shutdown)
        self.thread.shutdown(wait=False)


@frozen
class RayProcess:
    """See `RemoteProcess`."""

    actor: Any
    node: str

    async def open(self, wanted: Any, files: Any) -> JsonObject:
        opened = await self._call("open", wanted, files)
        if isinstance(opened, PackedError):
            error = opened.unpack()
            if isinstance(error, StudioError):
                raise type(error)(f"node {self.node}: {error.place}", error.cause, error.move)
            raise WorkerLost(self.node, f"{opened.kind}: {error}")
        return dict(opened)

    async def push(self, items: Sequence[Item]) -> None:
        await self._call("push", items)

    async def poll(self) -> Sequence[Item]:
        items: Sequence[Item] = await self._call("poll")
        return items

    def kill(self) -> None:
        ray.kill(self.actor)

    async def _call(self, name: str, *args: Any) -> Any:
        try:
            return await getattr(self.actor, name).remote(*args)
        except RayError as error:
            raise WorkerLost(self.node, _describe_loss(error)) from error


class _Actor:
    """A worker's process, as Ray calls it; it raises nothing, since Ray logs errors."""

    def __init__(self, open_parts: OpenParts) -> None:
        self._open_parts = open_parts
        self._sent: asyncio.Queue[Item] = asyncio.Queue()
        self._worker = Worker(self._sent.put_nowait, _fetch)
        # What tools print would lie in a node's log files, with whatever they were given.
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)

    async def where(self) -> tuple[str, str]:
        return socket.gethostname(), _release()

    async def open(self, wanted: Any, files: Any) -> JsonObject | PackedError:
        try:
            return await self._worker.open(self._open_parts, wanted, files)
        except Exception as error:
            return PackedError.pack(error)

    async def push(self, items: Sequence[Item]) -> None:
        for item in items:
            self._worker.line.receive(item)

    async def poll(self) -> list[Item]:
        items = [await self._sent.get()]
        while not self._sent.empty():
            items.append(self._sent.get_nowait())
        return items


async def _fetch(handle: Any) -> Any:
    return await handle[0]


def _release() -> str:
    """What must be the same on every node: values travel as Python objects."""
    from importlib.metadata import version

    python = ".".join(map(str, sys.version_info[:2]))
    return f"practice-studio {version('practice-studio')}, Python {python}"


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except OSError as error:
        raise StudioError(
            "ray.address",
            f"nothing answers at {address} ({error.strerror or error}).",
            "Start it there: ray start --head, or set ray.address=local.",
        ) from error


def _describe_loss(error: BaseException) -> str:
    """What befell a worker; of all else the first line of what Ray says."""
    if isinstance(error, ActorDiedError):
        return "its process ended"
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@contextmanager
def _environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Begin processes with other variables than this one has."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
