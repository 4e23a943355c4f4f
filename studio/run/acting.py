"""What an agent acts with: its tools, its program, the box that contains them, and workers.

On the workers of a cluster (`dispatch: ray`) what a run file says of models stays with the run,
keys above all: there a model is a stub, which is asked through its rollout.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from engines.agents.open import AgentNeeds, open_agent
from engines.agents.team import Member
from engines.core.codec import JsonObject, fields_of
from engines.core.errors import ConfigError, install_command
from engines.core.frozen import frozen
from engines.core.protocols import Agent, Embedder, OnText, Policy, Toolbox
from engines.core.team import FIXED, Speaker
from engines.core.types import Completion, Message, Names, Sampling, Tell
from engines.core.waiting import slow_stage
from engines.policies.tool_use import Protocol, TeamPolicy, ToolUsePolicy
from engines.process.start import ScratchFolder
from engines.record.cassette import Cassette, Entry, TapedToolbox, is_played, plain_request
from engines.rollouts.remote.worker import (
    RemoteEmbedder,
    RemoteLedger,
    RemoteModel,
    Worker,
    WorkerParts,
)
from engines.rollouts.remote.worker_pool import RunModels, WorkerPool
from engines.verifiers.judge import JudgeContext
from engines.verifiers.open import grades_tasks, open_verifier, parse_spec
from studio.config.loading import own_programs
from studio.config.settings.agent import AgentConfig, ToolConfig
from studio.config.settings.policy import EmbeddingConfig, PolicyConfig
from studio.config.settings.run import RunConfig
from studio.secrets import output, run_files

if TYPE_CHECKING:
    from engines.tools.sandbox.sandbox import Sandbox
    from engines.tools.settings import ToolSettings
    from engines.tools.toolbox import CheckedToolbox
    from engines.verifiers.harbor import HarborVerifier


BOXED = ("python",)
"""Shipped tools that run in the sandbox."""


@dataclass(slots=True)
class ToolModel:
    """The model that a tool asks; budgets and pauses are put round it after the tool was made."""

    inner: Policy
    settings: PolicyConfig

    @property
    def name(self) -> str:
        return self.inner.name

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        return await self.inner.complete(messages, sampling, on_text)

    async def ping(self) -> None:
        await self.inner.ping()

    async def aclose(self) -> None:
        """Whoever opened the model closes it."""


@dataclass(slots=True)
class Acting:
    """What the agent of a run acts with. An agent that only replies has none of it.

    `folder` is where programs work and leave what is graded: the same after a restart, since a
    program may tell its model where it works. None: a temporary one.
    """

    config: RunConfig
    tell: Tell = lambda _: None
    toolbox: "CheckedToolbox | None" = None
    sandbox: "Sandbox | None" = None
    models: tuple[ToolModel, ...] = ()
    members: Mapping[Speaker, Member] = field(default_factory=dict)  # of a team, but the planner
    named: dict[str, tuple[Policy, Sampling]] = field(default_factory=dict)  # `agent.models`
    folder: Path | None = None
    embedders: list[Embedder] = field(default_factory=list)
    cassette: Cassette | None = None
    worker_pool: WorkerPool | None = None  # of `dispatch: ray`; None: tries are made here
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def open_models(self, open_model: Callable[[PolicyConfig], Policy]) -> None:
        for name, settings in self.config.agent.models.items():
            model = ToolModel(open_model(settings), settings)
            self.models += (model,)
            self.named[name] = model, sampling_of(settings)

    def grading(self) -> "HarborVerifier | None":
        """Runs the graders of task folders; None where the agent is no program."""
        from engines.verifiers.harbor import HarborVerifier

        if self.sandbox is None or not self.config.agent.command or self.folder is None:
            return None
        return HarborVerifier(self.sandbox, self.folder / "left")

    async def check(self) -> JsonObject:
        """Start and test all of it, before anything is spent; returns `AgentOpened.facts`.

        Tools that are played from a cassette are not started.

        Raises ToolError, SandboxError: something cannot work.
        """
        if self.worker_pool is not None:
            return await self.worker_pool.check()
        tape = self.cassette if self.toolbox is not None else None
        if tape is not None and tape.plays:
            await self._tools().check()
            return dict(tape.tools["facts"])
        unstarted = () if self.toolbox is None else self.toolbox.specs
        facts = await self._start()
        if tape is not None and self.toolbox is not None:
            specs = self.toolbox.specs
            offered = plain_request(specs=specs, unstarted=unstarted, facts=facts)
            await tape.write(Entry(kind="tools", reply=offered))
        return facts

    async def _start(self) -> JsonObject:
        facts: JsonObject = {}
        if self.sandbox is not None:
            with slow_stage(self.tell, "testing the sandbox"):
                facts["sandbox"] = (await self.sandbox.start()).sentence
        if self.toolbox is not None:
            with slow_stage(self.tell, "testing the tools"):
                await self.toolbox.check()
                for embedder in self.embedders:
                    await embedder.ping()
            if self.toolbox.absent:
                facts["absent"] = list(self.toolbox.absent)
            told = ("name", "network", "tier", "repeatable")
            facts["tools"] = [fields_of(spec, *told) for spec in self.toolbox.specs]
        elif self.sandbox is not None:
            facts["network"] = self.config.agent.network
        return facts

    def _tools(self) -> Toolbox:
        assert self.toolbox is not None
        return self.toolbox if self.cassette is None else TapedToolbox(self.toolbox, self.cassette)

    def make_agent(self, sampling: Sampling) -> Agent:
        agent = self.config.agent
        if self.worker_pool is not None:
            return self.worker_pool.agent(sampling)
        needs = AgentNeeds(
            settings=agent,
            sampling=sampling,
            toolbox=self._tools() if agent.tools else None,
            members=self.members,
            models=self.named,
            runner=self.sandbox,
            environ=self.environ,
            seed=self.config.seed,
            folder=self.folder,
            tell=self.tell,
        )
        return open_agent(agent.kind, needs)

    def wrap(self, policy: Policy) -> Policy:
        agent = self.config.agent
        if agent.team is not None:
            return team_policy(agent, policy, "planner_main")
        if agent.kind != "tools":
            return policy
        return ToolUsePolicy(policy, tool_protocol(self.config), agent.context_tokens)


def open_acting(
    acting: Acting,
    stack: AsyncExitStack,
    policy: Policy,
    open_model: Callable[[PolicyConfig], Policy],
    open_vectors: Callable[[object], Embedder],
    workspace: Path | None,
) -> None:
    """Make what a run file's agent acts with; nothing is started. It is closed with the stack.

    Raises ConfigError: a tool that is not there, or a variable that is not set. ToolError: pages
    that cannot be read.
    """
    config = acting.config
    agent = config.agent
    if agent.kind not in ("tools", "team", "command"):
        return
    played = is_played(acting.cassette)
    if not played or agent.kind == "command":
        check_variables(agent, acting.environ)
    from engines.process.confinement import Limits
    from engines.tools.sandbox.sandbox import Sandbox
    from engines.tools.settings import TOOL_KEYS
    from engines.tools.toolbox import open_toolbox
    from engines.tools.web.tools import WebContext

    sandbox = None
    boxed = any(tool.name in BOXED or _is_contained(tool) for tool in agent.tools)
    if agent.kind == "command" or boxed:
        # A program's life is the try's: its deadline is that of the rollout.
        limits = Limits(wall_s=config.practice.task_timeout_s) if agent.command else Limits()
        accepted = agent.sandbox == "resource-limits-only"
        sandbox = Sandbox(limits, accept_limits_only=accepted)
        stack.push_async_callback(sandbox.aclose)
    models: list[ToolModel] = []

    def open_tool_model(wanted: object) -> ToolModel:
        settings = wanted if isinstance(wanted, PolicyConfig) else config.role("policy")
        model = policy if wanted is None else open_model(settings)
        models.append(ToolModel(model, settings))
        return models[-1]

    toolbox = None
    if agent.tools:
        accepted = agent.sandbox == "resource-limits-only"
        tools = [_tool_settings(tool, stack, accepted) for tool in agent.tools]
        keys = dict.fromkeys(TOOL_KEYS, "played")  # what is played needs none of its own
        web = WebContext(
            environment=keys if played else {**config.tool_keys, **acting.environ},
            open_model=open_tool_model,
            open_embedder=open_vectors,
            cache=workspace and workspace / "cache" / "web",
        )
        toolbox = open_toolbox(tools, web, sandbox=sandbox, tell=acting.tell)
        stack.push_async_callback(toolbox.aclose)
    if agent.team is not None:
        acting.members = _open_members(agent, open_tool_model)
    acting.toolbox, acting.sandbox, acting.models = toolbox, sandbox, tuple(models)


def _open_members(
    agent: AgentConfig, open_one: Callable[[object], ToolModel]
) -> dict[Speaker, Member]:
    members: dict[Speaker, Member] = {}
    for speaker in FIXED:
        wanted = getattr(agent.team, speaker)
        model = open_one(wanted)
        drawn = replace(sampling_of(model.settings), temperature=0.0)
        if wanted is not None and wanted.temperature is not None:
            drawn = replace(drawn, temperature=wanted.temperature)
        members[speaker] = Member(team_policy(agent, model, speaker), drawn)
    return members


def team_policy(agent: AgentConfig, model: Policy, speaker: Speaker) -> TeamPolicy:
    assert agent.team is not None
    form, most = agent.team.plan_as, agent.max_turns
    return TeamPolicy(model, speaker, form, most, agent.context_tokens)


def sampling_of(settings: PolicyConfig) -> Sampling:
    return Sampling(settings.temperature, settings.top_p, settings.max_tokens)


def _tool_settings(tool: ToolConfig, stack: AsyncExitStack, accepted: bool) -> "ToolSettings":
    from engines.process.start import STUDIO
    from engines.tools.settings import ToolSettings

    contained: JsonObject = {}
    if _is_contained(tool):
        scratch = ScratchFolder("studio-server-")
        stack.callback(scratch.remove)
        readable = [*tool.readable, *(part for part in tool.command if Path(part).is_file())]
        asked = json.dumps({"folder": scratch.path, "readable": readable, "accept": accepted})
        # Not by -m: what lies in the current folder would be imported in the place of ours.
        start = f"import sys; sys.path.insert(0, {STUDIO!r})"
        start += "; from engines.tools.sandbox.launch import serve_stdio; serve_stdio()"
        contained["started_by"] = (sys.executable, "-P", "-c", start, asked)
        contained["tier"] = "the sandbox"
    given = {name: getattr(tool, name) for name in ToolConfig.model_fields}
    del given["readable"]
    # What runs in the studio's own process reaches whatever the studio does.
    given["network"] = "none" if contained or tool.name else "public"
    return ToolSettings(**given, **contained)


def tool_protocol(config: RunConfig) -> Protocol:
    """How calls are made: models whose weights are here have no calls of their own."""
    wanted = config.agent.tool_protocol
    if wanted == "auto":
        return "text" if config.policy.model.startswith(("hf:", "handoff:")) else "native"
    return wanted


def _is_contained(tool: ToolConfig) -> bool:
    """Whether it is a server that we start and that the sandbox contains."""
    return bool(tool.command) and tool.network == "none"


def check_variables(agent: AgentConfig, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a variable that is to be passed on and is not set."""
    named = {f"agent.tools.{number}": tool.pass_env for number, tool in enumerate(agent.tools)}
    for place, names in {"agent": agent.pass_env, **named}.items():
        for name in names:
            if name not in environ:
                raise ConfigError(
                    f"{place}.pass_env",
                    f"it names {name}, which is not set.",
                    f"Set {name} in the environment, or leave it out.",
                )


@frozen
class VerifierWanted:
    """A verifier as `open_verifier` is asked for one; the judge by its name and sampling."""

    spec: Any
    folders: Names
    columns: frozenset[str] | None
    judge: tuple[str, Sampling] | None


@frozen
class WorkerWanted:
    """What a worker opens; it travels in the memory of processes only."""

    config: RunConfig  # without what it says of models
    environ: Mapping[str, str]  # the variables that tools and programs are to get
    models: Names  # names of those that tools ask, in the order of their opening
    embedders: Names
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


def open_remote_work(acting: Acting, stack: AsyncExitStack, tell: Tell) -> RemoteWork | None:
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

    secrets, mask = run_files.environment_secrets(), output.current_mask()
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
    acting.worker_pool = WorkerPool(
        cluster,
        work.gather_wanted,
        work.models,
        wanted_workers=ceil(config.practice.concurrency / most),
        tries_per_worker=most,
        tell=tell,
    )
    stack.push_async_callback(acting.worker_pool.aclose)
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
        none: JsonObject = {"base_url": None, "api_key": None, "headers": {}}
        none |= {"extra_body": {}, "replicas": ()}
        return value.model_copy(update=none)
    if isinstance(value, EmbeddingConfig):
        return value.model_copy(update={"base_url": None, "api_key": None})
    return value
