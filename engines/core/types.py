"""The values that travel between the parts of the loop; `engines.core.codec` makes JSON of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from engines.core.frozen import frozen

Role = Literal["system", "user", "assistant", "tool"]
Purpose = Literal[
    "rollout",
    "tool",
    "summary",
    "extraction",
    "consolidation",
    "judge",
    "evaluation",
    "embedding",
    "ping",
]
OperationKind = Literal["add", "modify", "delete", "keep", "pin", "unpin", "weights"]
"""What a change is; "weights" is a weight update, which the gate decides like the others.

Only people propose "pin" and "unpin": nothing may change or delete a pinned experience.
"""
DecisionAction = Literal["approve", "edit", "reject", "defer"]
GroupOutcome = Literal[
    "used", "critique", "all-right", "all-equal", "all-wrong", "failed", "unjudged"
]
"""How a group ended. "used": read for its contrast; "critique": no try was better than another,
read for what the verifier asks of all; "all-equal": equal partial rewards, not read."""
Learns = Literal["", "library", "weights"]
"""What a step of an alternating run learns; "" of other runs, whose steps all learn the same."""
AttemptStatus = Literal["ok", "truncated", "failed"]

Names = tuple[str, ...]
Tell = Callable[[str], None]
"""Says something to the person, in a line."""

NO_ANSWER = "found no answer"
"""What a critique ends with where an answer was looked for and none was stated."""

NOT_ONE = -1
"""Position or index of a call that belongs to no single problem or rollout."""


@frozen
class Problem:
    """One task. `id` is a content hash; the nth repeat of a content ends in `#n`."""

    id: str
    question: str
    answer: str | None = None  # None: the data set has no truth for it
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def accepted_answers(self) -> tuple[str, ...]:
        """Every text that counts as right, each once: the answer, then `meta["alternatives"]`."""
        alternatives = self.meta.get("alternatives")
        if not alternatives:  # most have none, and there may be 182,190
            text = (self.answer or "").strip()
            return (text,) if text else ()
        if isinstance(alternatives, str):
            alternatives = (alternatives,)
        texts = (str(text).strip() for text in (self.answer, *alternatives) if text is not None)
        return tuple(dict.fromkeys(text for text in texts if text))

    @property
    def images(self) -> tuple[str, ...]:
        """What is shown beside the question: addresses, `data:` texts, or absolute paths."""
        return tuple(self.meta.get("shown_images") or ())

    @property
    def history(self) -> "tuple[Message, ...]":
        """The turns of a talk before the question; see `turns_of`."""
        return turns_of(self.meta.get("history"))

    @property
    def asked(self) -> str:
        """The question, after the turns before it where there are some."""
        turns = [f"{turn.role}: {turn.content}" for turn in self.history]
        return "\n\n".join([*turns, f"user: {self.question}"]) if turns else self.question

    @property
    def options(self) -> Mapping[str, str]:
        """Letter and text of each option of a choice; empty where it is none."""
        options = self.meta.get("lettered_options")
        return options if isinstance(options, Mapping) else {}


@frozen
class Usage:
    """Tokens of one or more calls; `cost_usd` is None where no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    cost_usd: float | None = None
    cached_tokens: int = 0  # of the prompt, as far as endpoints say that a cache had them

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        """Add two counts. The cost stays unknown as soon as one part of it is."""
        if not self.calls:
            return other
        if not other.calls:
            return self
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.calls + other.calls,
            (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
            self.cached_tokens + other.cached_tokens,
        )


NO_USAGE = Usage()


@frozen
class ToolCall:
    """A function the model asks for; `arguments` is the JSON text as it came."""

    id: str
    name: str
    arguments: str


@frozen
class Message:
    """One message of a conversation."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    token_ids: tuple[int, ...] = ()  # as sampled: a later turn never tokenises the text again
    images: tuple[str, ...] = ()  # see `Problem.images`
    speaker: str = ""  # the member of a team that says it; "" where one model speaks


def turns_of(value: object) -> tuple[Message, ...]:
    """Turns as data sets write them, `[{"role": …, "content": …}]`; () for anything else."""
    turns = value if isinstance(value, list) else []
    found = [
        Message(turn["role"], turn["content"])
        for turn in turns
        if isinstance(turn, dict)
        and turn.get("role") in ("system", "user", "assistant")
        and isinstance(turn.get("content"), str)
    ]
    return tuple(found) if len(found) == len(turns) else ()


@frozen
class Sampling:
    """How a reply is drawn. None leaves a knob to the endpoint's default."""

    temperature: float | None = 0.7
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tools: tuple[Mapping[str, Any], ...] = ()  # functions offered, as JSON schemas
    json_object: bool = False  # whether an endpoint that can is to reply with nothing but JSON


@frozen
class Completion:
    """One reply of a model.

    `token_ids` and `logprobs` are aligned and present only where the policy owns its weights, as
    are `prompt_ids`, the exact ids that it was shown. A log-probability is that of the sampling
    policy at its temperature: log_softmax(logits / T).
    """

    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: str = "stop"  # or "length", "tool_calls", "content_filter": the endpoint's word
    usage: Usage = Usage()
    model: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    speaker: str = ""  # see `Message.speaker`

    @property
    def turn(self) -> "Turn | None":
        """As a turn that can be trained on; None where the policy told no ids."""
        if not self.token_ids:
            return None
        return Turn(self.prompt_ids, self.token_ids, self.logprobs, self.finish)

    def as_message(self) -> Message:
        return Message(
            "assistant",
            self.text,
            self.reasoning,
            self.tool_calls,
            token_ids=self.token_ids,
            speaker=self.speaker,
        )


@frozen
class Turn:
    """One reply inside a try, as ids; see `Completion`."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str = "stop"


@frozen
class CallKey:
    """Which reply of a run this is; unique within a run together with the request."""

    purpose: Purpose
    epoch: int
    step: int
    position: int = NOT_ONE  # of the problem in its batch, from 0
    index: int = NOT_ONE  # of the rollout in its group, from 0
    turn: int = 0
    # Of a held-out problem, "" in practice: calls are seeded and found again by it, wherever in
    # its set it stands.
    problem: str = ""


@frozen
class RecordRef:
    """Where one recorded reply lies: a file below `records/`, offset and length in bytes."""

    file: str
    offset: int
    length: int
    digest: str


@frozen
class Job:
    """One rollout to be made. `guidance` is the library as text, "" when it is empty."""

    problem: Problem
    guidance: str
    key: CallKey
    policy_version: int
    library_version: int
    shown: tuple[str, ...] | None = None  # ids of the experiences in it; None: all of the library
    history: tuple[Message, ...] = ()  # of a talk, before the question


@frozen
class Attempt:
    """One agent's try at a problem, without provenance."""

    messages: tuple[Message, ...]
    answer: str | None  # the text of the last reply; None only when status is "failed"
    status: AttemptStatus = "ok"
    usage: Usage = Usage()
    elapsed_s: float = 0.0
    error: str | None = None
    turns: tuple[Turn, ...] = ()  # where the policy owns its weights, also of a failed try
    # What a program's own grader said, by name; no reward, and empty for all other agents.
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def tool_calls(self) -> int:
        return sum(len(message.tool_calls) for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """An attempt with its provenance. Epoch 0 marks one on a held-out problem."""

    attempt: Attempt
    epoch: int
    step: int
    position: int
    index: int
    seed: int
    policy_version: int
    library_version: int
    shown: tuple[str, ...] | None = None  # see `Job.shown`

    @classmethod
    def from_job(cls, job: Job, attempt: Attempt, seed: int) -> "Rollout":
        return cls(
            attempt=attempt,
            epoch=job.key.epoch,
            step=job.key.step,
            position=job.key.position,
            index=job.key.index,
            seed=seed,
            policy_version=job.policy_version,
            library_version=job.library_version,
            shown=job.shown,
        )

    @property
    def id(self) -> str:
        return rollout_id(self.step, self.position, self.index)


@frozen
class Verdict:
    """A reward in [0, 1], or None where it could not be judged (never 0.0 for that).

    `error` says why there is no reward, beginning with its kind: "timeout", "too long", "failed",
    "unparsable". It is None where there was nothing to judge. `step_rewards` are of the replies of
    the try, in order, from a verifier that judges them, too; what is missing at the end is 0.
    """

    reward: float | None
    critique: str | None = None  # what the verifier says about the answer
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    usage: Usage = NO_USAGE  # of models that judged, as are the refs
    refs: tuple[RecordRef, ...] = ()
    step_rewards: tuple[float, ...] = ()


@frozen
class Group:
    """The rollouts of one problem in one step, in index order, with aligned verdicts."""

    problem: Problem
    epoch: int
    step: int
    position: int
    rollouts: tuple[Rollout, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def id(self) -> str:
        return group_id(self.step, self.position)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The known rewards only."""
        return tuple(v.reward for v in self.verdicts if v.reward is not None)

    @property
    def informative(self) -> bool:
        """True when two known rewards differ: there is something to learn from."""
        return len(set(self.rewards)) > 1

    @property
    def reward_outcome(self) -> GroupOutcome:
        """How the group ends as far as its rewards alone tell, any difference counting."""
        return self.outcome_at(0.0)

    def outcome_at(self, min_contrast: float) -> GroupOutcome:
        """The same where a smaller difference in reward than this counts as none.

        Equal rewards between 0 and 1 are neither right nor wrong.
        """
        if rewards := self.rewards:
            low, high = min(rewards), max(rewards)
            # 0.30 - 0.25 is a little less than 0.05 in binary.
            if high > low and high - low >= min_contrast - 1e-9:
                return "used"
            return "all-right" if high >= 1 else "all-equal" if low > 0 else "all-wrong"
        if all(r.attempt.status == "failed" for r in self.rollouts):
            return "failed"
        return "unjudged"


@frozen
class Flag:
    """Something a reviewer should know of an operation; `score` in [0, 1] where it has one."""

    name: str
    score: float | None = None
    detail: str = ""


BASE_MOVED = "base moved"
"""Flag of an operation whose target was changed since it was decided on."""

HELPS = "helps"
"""Flag of an operation that was tried and found to help."""

GATE = "gate"
"""Reviewer name of a rejection that the gate made because an approval did not fit."""

KILLED = "killed by "
"""What the error of a rollout begins with that a person ended."""

MERGED = "merged into "
"""What the reason of a rejection begins with whose wording went into another operation."""

RULES = "rules:"
"""What the names of reviewers that decide by a rule file begin with."""


@frozen
class Operation:
    """A proposed change of the library.

    `target` is the id of an existing experience; an add has none, or that of a deleted
    experience which it brings back.
    """

    id: str
    kind: OperationKind
    target: str | None = None
    text: str = ""  # the new wording; empty for all but add and modify
    rationale: str = ""
    evidence: tuple[str, ...] = ()  # ids of the rollouts it was drawn from
    proposer: str = ""  # the model that wrote it
    prompt_hash: str = ""
    flags: tuple[Flag, ...] = ()
    problems: tuple[str, ...] = ()  # ids of those of its evidence

    @property
    def is_flagged(self) -> bool:
        """Whether a flag asks for care: that it was found to help does not."""
        return any(flag.name != HELPS for flag in self.flags)


@frozen
class WeightUpdate:
    """A computed but not yet applied change of weights."""

    metrics: Mapping[str, float]
    handle: str  # the engine's own name for it
    note: str = ""  # what is unusual about it, in words
    rollback_to: int | None = None  # the step to whose weights it goes back


@frozen
class LostWork:
    """Something that was paid for and could not be used."""

    # "rollout", "verdict", "summary", "extraction", "proposal", "consolidation" (the whole of it)
    # or "consolidation call" (one of several)
    kind: str
    where: str
    reason: str
    reply: str = ""  # the text that could not be used, where there is one


@frozen
class UnparsedReply:
    """A reply that could not be understood, waiting for a person to mend or drop it."""

    id: str  # of the group it is about, or `s` and the step for a consolidation
    step: int
    kind: Literal["extraction", "consolidation"]  # the purpose of the call
    reasons: tuple[str, ...]
    reply: str  # may be cut
    lost: tuple[str, ...] = ()  # the kinds of its losses


@frozen
class Proposal:
    """What one group suggests, before the batch is consolidated."""

    kind: OperationKind
    target: str | None
    text: str
    rationale: str
    evidence: tuple[str, ...]


@frozen
class Credit:
    """What the attempts of a group show of one experience that stood in their prompt."""

    experience: str
    use: Literal["used", "ignored", "misled"]
    evidence: tuple[str, ...] = ()  # ids of the rollouts that show it


@frozen
class Doubt:
    """A verdict that the reflector found to contradict the attempt."""

    rollout: str
    reason: str = ""


@frozen
class Reflection:
    """What the engine took from one group."""

    step: int
    position: int
    outcome: GroupOutcome
    proposals: tuple[Proposal, ...] = ()
    prompt_hash: str = ""
    losses: tuple[LostWork, ...] = ()
    usage: Usage = Usage()
    refs: tuple[RecordRef, ...] = ()
    credits: tuple[Credit, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()  # small things of the reply that were left out


@frozen
class ProposalFate:
    """What consolidation made of one proposal of its batch."""

    group: str
    proposal: int  # from 1, in sample order over the batch
    fate: Literal["used", "merged", "dropped"]
    operation: str = ""  # id of the operation it went into; "" where it was dropped
    reason: str = ""


def replace_dropped(
    fates: Iterable[ProposalFate], mended: Iterable[ProposalFate]
) -> tuple[ProposalFate, ...]:
    """Fates with what a mended reply made of proposals that had been dropped."""
    anew = {one.proposal: one for one in mended}
    return tuple(
        replace(anew.get(one.proposal, one), group=one.group) if one.fate == "dropped" else one
        for one in fates
    )


@frozen
class Lesson:
    """What an engine took from a batch: operations, or one weight update."""

    step: int
    base_version: int
    operations: tuple[Operation, ...] = ()
    update: WeightUpdate | None = None
    losses: tuple[LostWork, ...] = ()
    usage: Usage = Usage()
    refs: tuple[RecordRef, ...] = ()
    withheld: tuple[Operation, ...] = ()  # rejected before, and nothing new speaks for them
    prompt_hash: str = ""
    fates: tuple[ProposalFate, ...] = ()  # of every proposal of the batch, in their order
    notes: tuple[str, ...] = ()  # see `Reflection.notes`


@frozen
class Decision:
    """What a reviewer made of one operation.

    An edit carries the operation as it should be applied: kind, target and text.
    `assigned` is the id an approved addition receives; it is fixed with the decision,
    so that an undo elsewhere never shifts it.
    """

    operation_id: str
    action: DecisionAction
    kind: OperationKind | None = None
    target: str | None = None
    text: str | None = None
    reason: str = ""
    reviewer: str = ""
    at: float = 0.0  # seconds since the epoch
    assigned: str | None = None
    took_s: float | None = None  # how long the reviewer looked; None: nobody did, or measured
    flags: tuple[Flag, ...] = ()  # of the operation as it was edited
    evidence: tuple[str, ...] = ()  # rollouts that count for an edit besides the operation's own

    @property
    def note(self) -> str:
        """The gate's note on it: `becomes E7`, or `rejected: WHY` where it does not fit."""
        if self.reviewer == GATE:
            return f"rejected: {self.reason}"
        return f"becomes {self.assigned}" if self.assigned else ""


@frozen
class DecisionPreview:
    """What would be said of a decision if it were made now: nothing of it is journalled."""

    objection: str = ""  # "": it fits
    flags: tuple[Flag, ...] = ()


def weights_operation(step: int, update: WeightUpdate) -> Operation:
    """A step's weight update as reviewers decide it; its text tells the figures in words."""
    metrics = update.metrics
    shown = [f"{word} {metrics[name]:.4g}" for name, word in _SHOWN.items() if name in metrics]
    if update.rollback_to is not None:
        shown.insert(0, f"back to the weights of step {update.rollback_to}")
    return Operation(
        update_id(step),
        "weights",
        text=", ".join(shown) or update.handle,
        rationale=update.note,
        proposer="grpo",
    )


def lesson_operations(lesson: Lesson) -> tuple[Operation, ...]:
    """What reviewers decide of a lesson: its operations, or its weight update as one."""
    if lesson.update is None:
        return lesson.operations
    return (*lesson.operations, weights_operation(lesson.step, lesson.update))


_SHOWN = {name: name for name in ("reward", "loss", "kl", "clip_share", "entropy", "grad_norm")}
_SHOWN |= {"kl": "KL", "clip_share": "clipped", "grad_norm": "gradient", "length": "length"}


def group_id(step: int, position: int) -> str:
    return f"s{step}p{position}"


def rollout_id(step: int, position: int, index: int) -> str:
    return f"s{step}p{position}r{index}"


def try_id(key: CallKey) -> str:
    """Of a rollout, in practice or, told apart by its first letter, of a held-out problem."""
    name = rollout_id(key.step, key.position, key.index)
    return f"h{name[1:]}" if key.purpose == "evaluation" else name


def operation_id(step: int, number: int) -> str:
    """Number counts from 1 within the step's lesson."""
    return f"op{step}.{number}"


def operation_step(operation_id: str) -> int:
    """The step that an operation belongs to, whoever proposed it; 0 for none."""
    number = operation_id.removeprefix("op").partition(".")[0]
    return int(number) if number.isdecimal() else 0


def update_id(step: int) -> str:
    """Of the weight update of a step's lesson, as the gate decides it: `op2.w`."""
    return f"op{step}.w"


def human_operation_id(step: int, number: int) -> str:
    """Of an operation that a person proposed: `op2.h1`; no lesson's operation is called so."""
    return f"op{step}.h{number}"


def resubmitted_operation_id(repair: str, number: int) -> str:
    """Of one in a mended reply: `op2.p3.1` of group s2p3, `op2.m1` of step 2's lesson."""
    step, _, position = repair.removeprefix("s").partition("p")
    return f"op{step}.p{position}.{number}" if position else f"op{step}.m{number}"


DUPLICATE = "duplicate"
LEAK = "leak"
HELD_OUT_LEAK = "held-out leak"
TOO_LONG = "too long"
FROM_TOOL = "from a tool"
SAME_TARGET = "same target"
ONE_GROUP = "one group"
REJECTED_BEFORE = "rejected before"
PINNED = "pinned"
NOT_COMPARED = "compared by wording only"
"""The embedding model failed: a duplicate in other words may have gone unseen."""
OVERGENERAL = "overgeneral"
"""It says always or never of everything, without the condition under which it holds."""
ONE_PROBLEM = "one problem"
"""It tells of one problem, with its names and figures, and helps with no other."""
FORMAT_ONLY = "format only"
"""It tells how to please the verifier, and not how to solve anything."""
INJECTION = "injection"
"""It gives orders to the reader or the system around it, and is no lesson."""
AGAINST_TOOLS = "against tools"
"""It says that a tool does not work, or must not be used."""
SHOUTING = "shouting"
CONFLICT = "conflict"
"""It contradicts an experience that stays, or what another curator made of the same one."""

BAD_WORDINGS = (OVERGENERAL, ONE_PROBLEM, FORMAT_ONLY, INJECTION, AGAINST_TOOLS, SHOUTING)
"""What a lesson should not be, whatever it is about."""

HURTS = "hurts"
UNPROVEN = "unproven"
"""What trying it showed, with and without it (`review.gate`); unproven where it cannot be told."""
EffectVerdict = Literal["helps", "hurts", "cannot tell"]
PROVED: Mapping[EffectVerdict, str] = {"helps": HELPS, "hurts": HURTS, "cannot tell": UNPROVEN}

UNSCORED = (
    PINNED,
    SAME_TARGET,
    ONE_GROUP,
    NOT_COMPARED,
    BASE_MOVED,
    *BAD_WORDINGS,
    CONFLICT,
    *PROVED.values(),
)
"""Flags that say something is so, and not how much."""

FLAG_NAMES = (DUPLICATE, LEAK, HELD_OUT_LEAK, TOO_LONG, FROM_TOOL, REJECTED_BEFORE, *UNSCORED)

AUTO = "auto"
"""Name of the reviewer that decides by itself."""

REJECTED_BY_AUTO = (LEAK, *BAD_WORDINGS, FROM_TOOL, CONFLICT, DUPLICATE, HURTS, UNPROVEN)
"""What it rejects by itself, unless `review.rejects` says otherwise."""


Network = Literal["none", "allowlist", "public"]
"""What a tool or a program may reach: nothing, named hosts, or anything."""

ToolStatus = Literal["ok", "error", "timeout", "refused", "interrupted", "unavailable"]
"""How a call ended. "error": it ran and failed; "refused": nothing ran, because there is no such
tool or the arguments do not fit; "interrupted": the studio ended while it ran, and it is not made
again, since it may have had an effect; "unavailable": the tool itself is gone, which says nothing
of who called it, and fails the try."""

_STATUSES: frozenset[str] = frozenset(get_args(ToolStatus))

NO_OUTPUT = "(no output)"
NOTHING_FOUND = "Nothing found"
"""What the result of a tool that looks things up begins with where there is nothing."""
SHOWN_CHARS = 2_000
"""Of each text in a tool's result, as a model is shown it."""


@frozen
class ToolSpec:
    """What a tool is called and takes.

    `description` tells the model its limits and best practice, too. `parameters` is the JSON schema
    of an object. One that is not `repeatable` has an effect: it is never run twice for one call.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    repeatable: bool = True
    network: Network = "none"
    tier: str = ""  # what contains it; "" where it runs in the studio's own process
    shown_chars: int = SHOWN_CHARS  # of a result

    @property
    def function(self) -> Mapping[str, Any]:
        """As `Sampling.tools` offers it to a model."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@frozen
class ToolResult:
    """What a call came to. `text` is what the model is shown; of long outputs a part."""

    text: str
    status: ToolStatus = "ok"
    usage: Usage = NO_USAGE  # of models that the tool asked


def as_status(word: str) -> ToolStatus:
    if word not in _STATUSES:
        raise ValueError(f"{word!r} is no status of a tool call")
    return cast(ToolStatus, word)


def is_evidence(result: ToolResult) -> bool:
    """Whether a result tells anything that an answer can rest on."""
    said = result.text.strip()
    return result.status == "ok" and said != NO_OUTPUT and not said.startswith(NOTHING_FOUND)


# Written from the servers' own lists (2026-11): OpenAI, Azure, Anthropic, Gemini, Vertex, Bedrock,
# Mistral, DeepSeek, Cohere, Zhipu, OpenRouter, vLLM, SGLang, TGI, llama.cpp, Ollama.
Finish = Literal["ended", "cut", "filtered", "broken", "unknown"]

_WORDS: dict[Finish, str] = {
    # The model ended it: by itself, at a stop text, or to call a function.
    "ended": "stop stop_sequence eos eos_token end_turn complete completed finish_complete word "
    "tool_calls tool_call tool_use function_call null none",
    # A limit of tokens, of the reply or of the context.
    "cut": "length max_tokens max_length max_len max_output max_output_tokens model_length limit "
    "model_context_window_exceeded context_length_exceeded error_limit pause_turn",
    # Held back, in part or whole.
    "filtered": "content_filter content_filtered safety recitation blocklist prohibited_content "
    "spii refusal sensitive guardrail_intervened model_armor error_toxic image_safety "
    "image_prohibited_content image_recitation language",
    # The server failed or was told to stop; another try may do better.
    "broken": "error abort aborted cancelled canceled cancel user_cancel timeout load unload "
    "insufficient_system_resource network_error failure other finish_reason_unspecified "
    "malformed_function_call malformed_response malformed_model_output malformed_tool_use "
    "unexpected_tool_call too_many_tool_calls missing_thought_signature function_call_filter "
    "function_call_failure function_call_error repetition",
}
_MEANINGS = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}


def meaning_of(finish: str) -> Finish:
    """The meaning of a finish reason as it came: `MAX_TOKENS`, `content_filter: SAFETY`."""
    words = [part.strip().lower().replace("-", "_") for part in finish.split(":")]
    known = [_MEANINGS[word] for word in words if word in _MEANINGS]
    return known[0] if known else "ended" if not any(words) else "unknown"


def is_cut(finish: str) -> bool:
    """Whether the reply ends at a limit and not where the model would have ended it."""
    return meaning_of(finish) == "cut"
