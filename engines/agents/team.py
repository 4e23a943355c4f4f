"""A team that plans, commands, verifies and answers: one try, several models.

The planner chooses steps, the executor writes commands, tools run them, the verifier says when to
stop, the generator answers. Only the planner's turns are the policy's own.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from engines.agents import loops, open
from engines.core.errors import CallFailed
from engines.core.frozen import frozen
from engines.core.protocols import OnText, Policy, Toolbox, ToolTry, TryPolicy
from engines.core.team import (
    NextStep,
    PlanForm,
    Speaker,
    read_analysis,
    read_check,
    read_command,
    read_plan,
)
from engines.core.text.prompts import load_prompt
from engines.core.text.reply import ReplyProblem
from engines.core.types import (
    NO_USAGE,
    Attempt,
    Completion,
    Job,
    Message,
    Sampling,
    Usage,
    is_cut,
    is_evidence,
)

T = TypeVar("T")
NO_EVIDENCE = "the answer rests on no evidence: no tool gave anything"


@frozen
class Member:
    """A model in a fixed role, and how its replies are drawn."""

    policy: Policy
    sampling: Sampling


@frozen
class Team:
    """Takes at most `max_steps` steps, then answers from what is known by then.

    A reply that cannot be read is asked for once more, with what was wrong; then the team goes on
    without it: an analysis is not needed, without a plan the answer is given, a step without a
    command has failed, and a verifier that cannot be read does not stop anything. An answer for
    which no tool gave anything has the metric `grounded` 0; with `refuse_ungrounded` the try ends
    without an answer instead.
    """

    instructions: str
    sampling: Sampling  # of the planner
    toolbox: Toolbox
    members: Mapping[Speaker, Member]
    max_steps: int = 5
    form: PlanForm = "json"
    refuse_ungrounded: bool = False

    async def attempt(self, job: Job, policy: TryPolicy, on_text: OnText | None = None) -> Attempt:
        async with AsyncExitStack() as stack:
            messages = loops.first_messages(self.instructions, job)
            show = on_text or (lambda _: None)
            within = ToolTry(job, policy.ask, stack)
            return await _TeamTry(self, policy, show, within, messages).run()


def open_team(needs: open.AgentNeeds) -> Team:
    settings, toolbox = needs.settings, needs.toolbox
    assert toolbox is not None
    return Team(
        instructions=settings.instructions,
        sampling=needs.sampling,
        toolbox=toolbox,
        members=needs.members,
        max_steps=settings.max_turns,
        form=settings.team.plan_as,
        refuse_ungrounded=settings.team.ungrounded == "refuse",
    )


@dataclass(slots=True)
class _TeamTry:
    """One try of a team."""

    team: Team
    policy: TryPolicy
    show: OnText
    within: ToolTry
    messages: tuple[Message, ...]
    usage: Usage = NO_USAGE
    steps: int = 0
    unreadable: int = 0  # replies that one repair could not mend
    grounded: bool = False
    began: float = field(default_factory=time.monotonic)

    async def run(self) -> Attempt:
        await self._ask_for("planner_fixed", lambda reply: read_analysis(reply.text))
        while self.steps < self.team.max_steps:
            plan = await self._ask_for("planner_main", self._read_plan)
            if plan is None or not plan.tool_name:
                break
            self.steps += 1
            await self._take_step(plan)
            if await self._ask_for("verifier", lambda reply: read_check(reply.text)):
                break
        reply = await self._ask("generator")
        attempt = loops.ended_attempt(self.messages, reply, self.usage, self.began)
        metrics = {
            "grounded": float(self.grounded),
            "steps": float(self.steps),
            "unreadable_replies": float(self.unreadable),
        }
        if not self.grounded and self.team.refuse_ungrounded and attempt.status != "failed":
            refused = f"refused: {NO_EVIDENCE} (agent.team.ungrounded)"
            return replace(attempt, answer="", status="truncated", error=refused, metrics=metrics)
        return replace(attempt, metrics=metrics)

    async def _take_step(self, plan: NextStep) -> None:
        tools = {spec.name: spec.parameters for spec in self.team.toolbox.specs}

        def read_call(reply: Completion) -> Completion:
            if not reply.tool_calls:  # it was read below the record, and something was wrong
                read_command(reply.text, plan.tool_name, tools)
                raise ReplyProblem("it holds no command.")
            return reply

        commanded = await self._ask_for("executor", read_call)
        if commanded is None:
            return
        run = loops.show_calls(self.team.toolbox, self.within, self.show)
        specs, earlier = self.team.toolbox.specs, self.within.earlier
        results = await self.policy.run_tools(commanded.tool_calls, run, specs, earlier.append)
        for call, result in zip(commanded.tool_calls, results, strict=True):
            self.usage += result.usage
            self.grounded = self.grounded or is_evidence(result)
            self.messages += (Message("tool", result.text, tool_call_id=call.id),)

    def _read_plan(self, reply: Completion) -> NextStep:
        return read_plan(reply.text, [s.name for s in self.team.toolbox.specs], self.team.form)

    async def _ask_for(self, speaker: Speaker, read: Callable[[Completion], T]) -> T | None:
        """What a member says, asked for once more where it cannot be read; None: unreadable."""
        for turn in range(2):
            reply = await self._ask(speaker)
            try:
                return read(reply)
            except ReplyProblem as problem:
                cut = " It was cut off at its length limit." if is_cut(reply.finish) else ""
                if turn == 0:
                    repair = load_prompt("engines.agents", "team_repair")
                    asked = repair.render(problem=f"{problem}{cut}")
                    self.messages += (Message("user", asked, speaker=speaker),)
        self.unreadable += 1
        return None

    async def _ask(self, speaker: Speaker) -> Completion:
        self.show(f"\n[{speaker}] ")
        specs = tuple(spec.function for spec in self.team.toolbox.specs)
        try:
            if speaker == "planner_main":
                sampling = replace(self.team.sampling, tools=specs)
                reply = await self.policy.complete(self.messages, sampling, self.show)
            else:
                member = self.team.members[speaker]
                sampling = replace(member.sampling, tools=specs)
                reply = await self.policy.complete_as(
                    member.policy, self.messages, sampling, self.show
                )
        except CallFailed as failed:
            said = str(failed).removeprefix(f"{failed.kind}: ")
            raise CallFailed(failed.kind, f"{speaker}: {said}", failed.usage) from failed
        self.usage += reply.usage
        self.messages += (reply.as_message(),)
        return reply
