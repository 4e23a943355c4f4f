"""What a session shows of how a try went: what the person said next, tests, commits.

Pure. The person's words count in English alone; what says nothing stays unknown, and is never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Said = Literal["thanks", "correction", "go on", "request"]

_CORRECTION = re.compile(
    r"(?i)\W*(?:no(?=[,.!;:—-]|$|\s+(?:it|that|this|not|don'?t|you|wait|i\b|the other))|nope\b"
    r"|wrong\b|incorrect\b|undo\b|revert\b|not (?:quite|right|correct|what i)"
    r"|(?:that|this|it)(?:'s| is| was| still)* ?(?:not\b|wrong|incorrect|isn'?t|broken|fail"
    r"|doesn'?t|does not|didn'?t)|(?:still|again) (?:fail|broken|not|wrong|doesn|the same)"
    r"|doesn'?t work|does not work|you (?:broke|forgot|missed|didn'?t|did not|misunder|shouldn'?t"
    r"|should have)|why did you)"
)
_THANKS = re.compile(
    r"(?i)\W*(?:(?:ok|okay|yes|no|great|cool)\W+)?(?:thanks|thank you|thx|perfect|great|awesome"
    r"|excellent|nice|lgtm|looks good|well done|good job|works|(?:that|it|this) works|love it)"
    r"(?=\W*$|\s*[!.,;:)—-]|\s+(?:now|you|it|that|so|for|work|job|a lot|again|very)\b)"
)
_BUT = re.compile(r"(?i)\b(?:but|however|except|although|not|still|doesn'?t|isn'?t)\b")
_GO_ON = re.compile(
    r"(?i)\W*(?:y|yes|yep|yeah|ok|okay|sure|continue|go on|go ahead|proceed|do it|please do|next|"
    r"carry on|keep going|yes,? please)\W*"
)
_TEST = re.compile(
    r"\b(?:pytest|py\.test|tox|nox|unittest|jest|vitest|mocha|rspec|phpunit|ctest|bats"
    r"|(?:npm|pnpm|yarn|bun|cargo|go|deno|dotnet|mix|swift|rake|make|mvn|gradlew?) "
    r"(?:run |nextest )?(?:test|check|verify)\w*)\b"
)
_COMMIT = re.compile(r"\bgit\b[^\n|;&]{0,80}\bcommit\b")
_FAILURES = re.compile(
    r"\b[1-9]\d* (?:failed|failures?|errors?|failing)\b|\bFAIL(?:ED)?\b|failures=[1-9]|\bnot ok\b"
)
_PASSES = re.compile(r"\b[1-9]\d* (?:passed|passing)\b|test result: ok|^OK\b|^ok\s|\bPASS\b", re.M)


def read_person(text: str) -> Said:
    """What a person's message says of the try before it."""
    if _GO_ON.fullmatch(text):
        return "go on"
    start = text[:200]
    if _THANKS.match(start) and not _BUT.search(start.partition("\n")[0][:80]):
        return "thanks"
    return "correction" if _CORRECTION.match(start) else "request"


def command_of(arguments: Any) -> str:
    """The command line of a call of a shell, whatever its field is called."""
    if isinstance(arguments, Mapping):
        for name in ("command", "cmd", "keystrokes", "code", "script", "input"):
            if (found := arguments.get(name)) is not None:
                return command_of(found)
        return ""
    if isinstance(arguments, list):
        return " ".join(str(word) for word in arguments)
    return arguments if isinstance(arguments, str) else ""


@dataclass(slots=True)
class Signals:
    """Gathers what one try shows, in order."""

    tests_passed: bool | None = None  # the last ones
    committed: bool = False
    error: bool = False
    said: str = ""  # what the person did after it
    _commands: dict[str, str] = field(default_factory=dict)

    def see_call(self, call: str, arguments: Any) -> None:
        command = command_of(arguments)
        if _TEST.search(command) or _COMMIT.search(command):
            self._commands[call] = command

    def see_result(self, call: str, text: str, failed: bool | None) -> None:
        command = self._commands.pop(call, "")
        if _TEST.search(command):
            # A pipe hides the exit code of what is before it: the words count, too.
            if failed or _FAILURES.search(text):
                self.tests_passed = False
            elif failed is False or _PASSES.search(text):
                self.tests_passed = True
        if _COMMIT.search(command) and failed is not True:
            self.committed = True

    def outcome(self, score: float | None, name: str) -> tuple[float | None, tuple[str, ...]]:
        """A reward in [0, 1], or None, and every signal by name, the one that counts first."""
        found: list[tuple[float | None, str]] = []
        if score is not None:
            found.append((score if 0 <= score <= 1 else None, f"{name} {score:g}"))
        rewards = {"thanked": 1.0, "corrected": 0.0, "interrupted": 0.0}
        if self.said:
            found.append((rewards.get(self.said), f"{self.said} by the person"))
        if self.tests_passed is not None:
            word = "passed" if self.tests_passed else "failed"
            found.append((float(self.tests_passed), f"tests {word}"))
        if self.committed:
            found.append((1.0, "committed"))
        if self.error:
            found.append((None, "ended with an error"))
        if score is not None:  # what is told outright is not overruled by a guess, nor replaced
            return found[0][0], tuple(name for _, name in found)
        known = next((reward for reward, _ in found if reward is not None), None)
        return known, tuple(name for _, name in found)
