"""All that is told of `studio try`: one problem from prompt to verdict."""

from collections.abc import Mapping
from dataclasses import field

from engines.core.codec import JsonObject
from engines.core.frozen import frozen
from engines.core.types import NO_USAGE, Names, Problem, Usage
from studio.facts.subject import Subject


@frozen
class TrialFacts(Subject):
    """What is asked, and once the model has answered, what came of it."""

    notes: Names = field(metadata={"untold": True})  # in words, what the next two say
    rehearsal: bool
    cassette: bool
    model: str
    adapter: str
    problem: Problem
    library: str
    experiences: Names
    messages: tuple[JsonObject, ...]
    reply: str | None = None
    status: str = ""  # "": it was not asked yet
    error: str | None = None
    reward: float | None = None
    critique: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    unjudged: str | None = None  # why it could not be judged
    usage: Usage = NO_USAGE  # of the reply and of the verdict
    judge_usage: Usage = NO_USAGE
    elapsed_s: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    failed_calls: int = 0
