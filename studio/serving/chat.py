"""`studio chat`: a talk with an enhanced agent in lines, over SSH and in pipes alike."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TextIO

from engines.core.codec import fix_surrogates
from engines.core.types import Message
from engines.rollouts.manager import RolloutManager
from studio import exit_codes
from studio.evaluation.try_text import print_piece
from studio.library.text import library_lines
from studio.render.lines import to_stderr
from studio.serving.enhanced_agent import EnhancedAgent


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
                line = fix_surrogates(source.readline())
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
