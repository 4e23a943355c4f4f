"""An agent with what it has learned, for use outside of runs: an agent file, or a library.

Owns what is loaded for it, what a call of it becomes, and its server, which is a gateway.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from engines.agents.gateway.server import Gateway
from engines.agents.guided_try import GuidedTry
from engines.core import chat_protocol, codec, errors, protocols
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.types import NO_USAGE, Completion, Job, Message, Problem
from engines.pipeline.guidance import PromptWriter
from engines.policies.chat.client import OpenAICompat
from engines.policies.limits import Slots
from engines.policies.rehearsal.server import open_listener
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from engines.rollouts.manager import RolloutManager
from studio import exit_codes
from studio.config import loading, scripted
from studio.config.settings.run import RunConfig
from studio.evaluation.try_problem import KEY, print_piece, without_lessons
from studio.library.references import follow_version
from studio.render.library_lines import library_lines
from studio.render.lines import to_stderr
from studio.render.words import usage_text
from studio.run import acting, held_out, models
from studio.run.library import choose_library
from studio.secrets.output import mask_text, remember

_SAMPLING = {"temperature", "top_p", "seed"}
_LEFT_OUT = {"top_k", "logprobs", "text", "reasoning", "thinking"}  # of other protocols or replies


@frozen
class EnhancedAgent:
    """`read_library` gives what stands in front as of now; None: no experiences."""

    called: str
    config: RunConfig
    read_library: Callable[[], Library | None]
    writer: PromptWriter

    async def open_policy(self, stack: AsyncExitStack) -> protocols.Policy:
        """Who answers; raises PolicyError where it does not, before anything else is spent."""
        policy = models.open_roles(self.config, stack, to_stderr).policy
        await policy.ping()
        return policy

    async def open_tries(self, stack: AsyncExitStack) -> RolloutManager:
        """Makes the turns of a talk, with the tools of the agent; nothing is kept of them."""
        roles = models.open_roles(self.config, stack, to_stderr)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="studio-chat-")))
        roles.acting.folder = folder / "programs"
        ledger = RecordLedger(folder, self.config.seed)
        stack.push_async_callback(ledger.aclose)
        await roles.ping()
        await roles.acting.check()
        return models.make_rollouts(self.config, roles, ledger, Slots(1))

    def begin_turn(self, history: tuple[Message, ...], question: str) -> Job:
        """A turn of a talk as a try, with what stands in front as of now."""
        library = self.read_library()
        guidance, shown = self.writer.write(library, question)
        key = replace(KEY, position=len(history) // 2)
        problem = Problem(codec.digest([question]), question, source="typed")
        version = library.version if library else 0
        return Job(problem, guidance, key, 0, version, shown, history)

    def begin_call(
        self, policy: protocols.Policy, messages: Sequence[Message], **sampling: Any
    ) -> GuidedTry:
        """As in `studio try`; of a long library stands there what fits all that the user said."""
        own, instructions = (
            acting.sampling_of(self.config.role("policy")),
            self.config.agent.instructions,
        )
        asked = "\n".join(message.content for message in messages if message.role == "user")
        guidance, _ = self.writer.write(self.read_library(), asked)
        return GuidedTry(policy, replace(own, **sampling), guidance, instructions)

    @property
    def description(self) -> str:
        library, policy = self.read_library(), self.config.policy
        notes = ["rehearsal: replies are scripted, no model is asked"] * scripted.is_rehearsal(
            self.config
        )
        at = f" at {models.endpoint_of(policy).url}" if policy.model.startswith("openai:") else ""
        held = len(library.experiences) if library else 0
        at += f" with adapter {policy.adapter}" if policy.adapter else ""
        notes.append(f"{self.called}: experiences in front of {policy.model}{at}: {held}")
        return "\n".join(notes)


def load_enhanced(
    target: str, overrides: Sequence[str], workspace: Workspace, run_file: str | None
) -> EnhancedAgent:
    """Load an agent file, or a library, which follows its commits, or NAME@LABEL its label."""
    file = Path(target) if target.endswith(".yaml") else None
    read_library = None if file else follow_version(target, workspace)[1]
    if not file and not run_file and not any(text.startswith("policy") for text in overrides):
        move = "Add policy=openai:MODEL, or --run-file FILE to ask the model of a run file."
        if (agent := workspace.path / "runs" / target.partition("@")[0] / "agent.yaml").is_file():
            move += f" Or give {agent}, which brings its model."
        raise errors.ConfigError(f"library {target}", "it names no model that answers.", move)
    alone = target if file else str(files("studio.serving") / "library.yaml")
    mounted = file if run_file else None
    loaded = loading.load_run(run_file or alone, overrides, workspace.path, agent=mounted)
    own, called = choose_library(loaded, workspace, None) if file else (None, f"library {target}")
    config = without_lessons(loaded.config)
    return EnhancedAgent(
        called, config, read_library or (lambda: own), held_out.prompt_writer(config)
    )


class EnhancedCalls:
    """Answers the calls of a gateway, each by itself."""

    def __init__(self, agent: EnhancedAgent, policy: protocols.Policy) -> None:
        self.agent, self.policy = agent, policy
        self.calls, self.failed, self.usage = 0, 0, NO_USAGE

    async def answer(
        self, asked: chat_protocol.Asked, on_text: protocols.OnText | None
    ) -> Completion:
        """What a client sets of the sampling counts; what it leaves open is the agent's."""
        self.calls += 1
        policy, given, call = self.policy, asked.given, None
        if isinstance(policy, OpenAICompat):
            sent = given.keys() - _SAMPLING - _LEFT_OUT
            policy = policy.with_fields({name: given[name] for name in sent})
        try:
            sampling = {name: given[name] for name in _SAMPLING & given.keys()}
            call = self.agent.begin_call(policy, asked.messages, **sampling)
            return await call.answer(asked, on_text)
        except Exception as error:
            self.failed += 1
            if isinstance(error, errors.CallFailed):
                raise
            to_stderr(f"a call failed: {error}")  # a library that is gone, or a bug: others go on
            reason = "the server says why on its standard error"
            if isinstance(error, errors.StudioError):  # the rest of it is the server's to do
                reason = mask_text(f"{error.place}: {error.cause}")
            raise errors.CallFailed("internal", reason) from error
        finally:
            self.usage += call.usage if call else NO_USAGE

    def end(self, reason: str) -> None: ...  # the gateway itself cancels what is under way

    def tell_summary(self) -> None:
        answered = f"calls answered {self.calls - self.failed:,}, failed {self.failed:,}"
        to_stderr(f"{answered}: {usage_text(self.usage)}")


@asynccontextmanager
async def serving(agent: EnhancedAgent, port: int, host: str, token: str) -> AsyncIterator[str]:
    """Serve inside the `with`; yields the base URL."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(open_listener(port, host))
        calls = EnhancedCalls(agent, await agent.open_policy(stack))
        stack.callback(calls.tell_summary)
        async with Gateway(calls, listener=listener, token=token, status_of=status_of) as gateway:
            yield f"http://{f'[{host}]' if ':' in host else host}:{gateway.port}/v1"


def status_of(failed: BaseException | None) -> int:
    """The endpoint's own status, or HTTP's for what failed between it and the client."""
    own = {"timeout": 504, "internal": 500}
    return getattr(failed, "status", None) or own.get(getattr(failed, "kind", ""), 502)


def is_loopback(host: str) -> bool:
    return re.fullmatch(r"localhost|::1|127(\.\d+){3}", host) is not None


def read_token(
    host: str, file: Path | None, variable: str | None, env: Mapping[str, str], what: str = "model"
) -> str:
    """What clients must send; "" for nothing, where only this machine can ask."""
    if file is None and variable is None:
        if is_loopback(host):
            return ""
        raise errors.ConfigError(
            f"host {host}",
            f"others could ask your {what}.",
            "Add --token-file FILE or --token-env NAME, or listen on 127.0.0.1.",
        )
    token = (env.get(variable or "", "") if file is None else file.read_text("latin-1")).strip()
    remember([token] if token else ())
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise errors.ConfigError(
            f"the token in {file or variable}",
            "it holds no token of 16 or more printable ASCII characters.",
            "Try `openssl rand -hex 24`.",
        )
    return token


class Talk:
    """The library as of now stands in front of each turn; one that failed is not in `history`."""

    def __init__(self, agent: EnhancedAgent) -> None:
        self.agent, self.failed, self.history = agent, 0, tuple[Message, ...]()

    async def take_turn(self, tries: RolloutManager, question: str) -> None:
        job = self.agent.begin_turn(self.history, question)
        attempt, _ = await tries.roll_out(job, print_piece)
        print(flush=True)
        if attempt.error is None and attempt.answer:
            asked = Message("user", question)
            self.history = (*self.history, asked, Message("assistant", attempt.answer))
        else:
            self.failed += 1
            reason = attempt.error or "it gave no answer within its limits"
            to_stderr(f"failed, and not part of the talk: {reason}")

    def obey(self, command: str) -> None:
        match command:
            case "/library":
                library = self.agent.read_library()
                to_stderr("\n".join(library_lines(library)) if library else "nothing")
            case "/reset":
                self.history = ()
                to_stderr("the talk begins anew")
            case _:
                to_stderr(f"{command} is none of /library, /reset and /exit")


def talk_in_lines(agent: EnhancedAgent, source: TextIO) -> int:
    """Until the input ends; Ctrl-C stops a reply, and without one it ends the talk."""
    talk, stack = Talk(agent), AsyncExitStack()
    # The loop runs within a turn alone: while a line is awaited, Ctrl-C is Python's own.
    with asyncio.Runner() as runner:
        try:
            tries = runner.run(agent.open_tries(stack))
            while True:
                print("> " if source.isatty() else "", end="", flush=True)
                line = codec.fix_surrogates(source.readline())
                if not line or line.strip() == "/exit":
                    return exit_codes.WITH_LOSSES if talk.failed else exit_codes.DONE
                if line.startswith("/"):
                    talk.obey(line.strip())
                elif line.strip():
                    try:
                        runner.run(talk.take_turn(tries, line.strip()))
                    except KeyboardInterrupt:
                        to_stderr("\nstopped: not part of the talk; Ctrl-C again ends it")
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        finally:
            print("\n" if source.isatty() else "", end="", flush=True)
            runner.run(stack.aclose())
