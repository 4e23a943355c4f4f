"""What one endpoint can do, found out by asking it a few short questions.

Owns the questions and what their replies mean; which endpoints a run asks is `models`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import orjson

from engines.core.errors import CallFailed
from engines.core.text.tokens import prompt_tokens, text_tokens
from engines.core.types import Completion, Message, Sampling
from engines.policies.chat.client import PING_S, Listing, OpenAICompat
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.repair import Finding

_ASKED = (Message("user", "Write twelve random English nouns, separated by commas."),)
_ASKED_JSON = (Message("user", 'Reply with the JSON object {"ok": true} and nothing else.'),)
_ASKED_TOOL = (Message("user", "How is the weather in Oslo? Call get_weather to find out."),)
_TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
# No temperature: some models refuse one, and at 0 equal replies would say nothing of seeds.
_PLAIN = Sampling(temperature=None, max_tokens=32, seed=11)
_QUESTIONS = (
    (_ASKED, _PLAIN),
    (_ASKED, _PLAIN),
    (_ASKED_TOOL, replace(_PLAIN, max_tokens=64, tools=(_TOOL,))),
    (_ASKED_JSON, replace(_PLAIN, max_tokens=24, json_object=True)),
)
MOST_TOKENS = 10 + sum(
    prompt_tokens(asked, drawn.tools) + (drawn.max_tokens or 0) for asked, drawn in _QUESTIONS
)
"""Of all questions together, the first ping included, without what an endpoint adds of its own."""
AT_ONCE_S, TOLD_S = 0.01, 0.1
"""Pieces that come within the first time did not stream: no model is as fast. Whether a whole reply
that takes less than the second would have streamed cannot be told."""
_MISCOUNT = 4.0
_FEW_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply with when its pieces came, in seconds since it was asked for."""

    made: Completion
    pieces: tuple[float, ...]
    took_s: float
    is_counted: bool = True

    @property
    def streams(self) -> bool | None:
        """Whether pieces come before the end; None: it is too short to tell."""
        if self.pieces and self.pieces[-1] - self.pieces[0] >= AT_ONCE_S:
            return True
        few = not self.pieces or text_tokens(self.made.text) < _FEW_TOKENS
        return None if few or self.took_s < TOLD_S else False


@dataclass(frozen=True, slots=True)
class Observed:
    """What an endpoint was seen to do; a reply that failed is the failure's text."""

    plain: tuple[Reply | str, ...]
    tool: Reply | str
    json: Reply | str
    listing: Listing = field(default_factory=Listing)
    left_out: frozenset[str] = frozenset()  # fields that it refused
    remarks: tuple[str, ...] = ()


async def observe(
    settings: EndpointSettings,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Observed:
    """Ask all questions, one after the other. Raises PolicyError: it does not answer at all."""
    limit_s = min(settings.timeout_s, PING_S)
    own = replace(settings, timeout_s=limit_s, max_retries=min(settings.max_retries, 1))
    policy = OpenAICompat(own)
    try:
        await policy.ping()
        listing = await policy.list_models()
        first, again, tool, json = [
            await _ask(policy, asked, drawn, clock) for asked, drawn in _QUESTIONS
        ]
    finally:
        await policy.aclose()
    known = policy.dialect
    told = tuple(sorted(known.remarks))
    left_out = frozenset(known.without)
    return Observed((first, again), tool, json, listing, left_out, told)


async def _ask(
    policy: OpenAICompat, asked: Sequence[Message], drawn: Sampling, clock: Callable[[], float]
) -> Reply | str:
    pieces: list[float] = []
    began, before = clock(), policy.dialect.uncounted
    try:
        made = await policy.complete(asked, drawn, lambda _: pieces.append(clock() - began))
    except CallFailed as failed:
        return str(failed).partition(": ")[2] or str(failed)
    counted = policy.dialect.uncounted == before
    return Reply(made, tuple(pieces), clock() - began, counted)


def endpoint_findings(
    place: str, seen: Observed, model: str, needs_tools: bool, needs_json: bool
) -> list[Finding]:
    """`needs_tools`: the run offers tools and reads native calls; `needs_json`: JSON mode helps."""
    able, found = ["answers"], list[Finding]()

    def note(cause: str, move: str, *, fix: bool = False) -> None:
        found.append(Finding("fix" if fix else "note", place, cause, move))

    replies = [reply for reply in seen.plain if isinstance(reply, Reply)]
    for text in {reply for reply in seen.plain if isinstance(reply, str)}:
        note(f"it fails at a short question ({text}).", "Give the command again; see its log.")
    streams = {reply.streams for reply in replies}
    if False in streams:
        move = "Look for a proxy that holds replies back; rollouts show at their end only."
        note("it does not stream: a reply comes all at once.", move)
    elif True in streams:
        able.append("streams")
    _judge_tools(seen, able, note if needs_tools else None)
    _judge_json(seen, able, note if needs_json else None)
    _judge_counts(seen, replies, able, note)
    if window := seen.listing.contexts.get(model):
        able.append(f"context of {window:,} tokens")
    able += [text for text in (_cache_text(replies), _speed_text(replies)) if text]
    for remark in seen.remarks:
        note(f"{remark}.", "See whether that is the model you want.")
    return [*found, Finding("ok", place, f"{', '.join(able)}.")]


def _judge_tools(seen: Observed, able: list[str], note: Callable[..., None] | None) -> None:
    reply, cause, is_sure = seen.tool, "a function call does not come back as one", True
    if isinstance(reply, str):
        cause = f"it refuses tools ({reply})"
    elif any(call.name == _TOOL["name"] for call in reply.made.tool_calls):
        able.append("native tool calls")
        return
    elif str(_TOOL["name"]) in reply.made.text:
        cause = "it writes function calls into its text"
    else:
        cause, is_sure = "asked once for a function call, it makes none", False
    if note is None:
        able.append(f"no native tool calls, which this run does without ({cause})")
        return
    move = "Set agent.tool_protocol=text, or start the server with its parser of tool calls."
    note(f"{cause}, and this run's agent needs that.", move, fix=is_sure)


def _judge_json(seen: Observed, able: list[str], note: Callable[..., None] | None) -> None:
    reply = seen.json
    if "response_format" in seen.left_out or isinstance(reply, str):
        cause = "it refuses JSON mode"
    else:
        with suppress(orjson.JSONDecodeError):
            if isinstance(orjson.loads(reply.made.text), dict):
                able.append("JSON mode")
                return
        if reply.made.finish == "length":
            able.append("JSON mode not seen within 24 tokens")
            return
        cause = "it takes JSON mode, and what comes is no JSON"
    if note is None:
        able.append(f"no JSON mode, which this run does without ({cause})")
    else:
        note(f"{cause}: the prompt alone asks for the form.", "A model that has it errs less.")


def _judge_counts(
    seen: Observed, replies: Sequence[Reply], able: list[str], note: Callable[..., None]
) -> None:
    counted = [reply for reply in replies if reply.is_counted]
    if replies and not counted:
        note("it counts no tokens: budgets and costs are estimates.", "Ask its maker for `usage`.")
    for reply in counted:
        said = reply.made.usage.completion_tokens
        likely = text_tokens(reply.made.text + reply.made.reasoning)
        if not reply.made.reasoning and max(said, likely) > _MISCOUNT * max(1, min(said, likely)):
            cause = f"it counts {said} tokens for {len(reply.made.text)} characters."
            note(cause, "Set a budget in calls: tokens and money may be wrong.")
            break
    else:
        able += ["counts tokens"] if counted else []
    texts = [(reply.made.text, reply.made.reasoning) for reply in replies]
    if "seed" in seen.left_out or (len(texts) > 1 and texts[0] != texts[1]):
        cause = "refuses a seed" if "seed" in seen.left_out else "gives two replies for one seed"
        note(f"it {cause}: a run cannot be repeated.", "--record keeps replies to play them again.")
    elif len(texts) > 1:
        able.append("honours seeds (2 replies alike)")


def _cache_text(replies: Sequence[Reply]) -> str:
    if len(replies) < 2:
        return ""
    usage = replies[1].made.usage
    told = f"{usage.cached_tokens} of {usage.prompt_tokens} repeated prompt tokens from its cache"
    return told if usage.cached_tokens else "reports no cached tokens of so short a prompt"


def _speed_text(replies: Sequence[Reply]) -> str:
    timed = [reply for reply in replies if reply.took_s > 0 and reply.pieces]
    if not timed:
        return ""
    tokens = sum(reply.made.usage.completion_tokens for reply in timed)
    streamed = [reply.took_s - reply.pieces[0] for reply in timed if reply.streams]
    seconds = sum(streamed) if len(streamed) == len(timed) else sum(r.took_s for r in timed)
    first = sum(reply.pieces[0] for reply in timed) / len(timed)
    speed = tokens / max(seconds, 1e-3)
    return f"{speed:,.0f} tokens/s, the first after {first:.2f} s (n={len(timed)})"
