"""From a session's steps to tries: a request, what was done about it, and what came of it.

Every text is redacted before it is cut, since half a secret no longer looks like one. How a try
went is read from what the person said next, from tests and from commits: the person's words count
in English alone, and what says nothing stays unknown and is never 0.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engines.core.frozen import frozen
from engines.core.types import Names
from engines.data.sessions.steps import Intake, Session, Step
from engines.secrets.redactor import Redactor

KEPT = {"user": 16_000, "assistant": 8_000, "call": 2_000, "result": 2_000, "summary": 4_000}
"""Characters of a step that are kept."""
KEPT_TRY = 60_000
"""Of a whole try: its beginning and its end."""
KEPT_BEFORE = 600
"""Of what was said earlier in the session; the last few such texts stand before a request."""
_EARLIER = 6
_READ = 64_000
"""Characters of a step that are looked at: the rest of a longer one is between those kept."""
_AFTER_THANKS = 60


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

    def outcome(self, score: float | None, name: str) -> tuple[float | None, Names]:
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


@frozen
class Try:
    """One recorded try. `reward` None: nothing tells how it went."""

    request: str  # with what was said before it, where there is anything
    text: str
    reward: float | None
    signals: Names
    session: str
    model: str
    answer: str | None = None


@dataclass(slots=True)
class _Open:
    """The try that is being read."""

    asked: str
    before: str  # what stands before the request, "" where it begins the session
    turn: int
    pieces: list[str] = field(default_factory=list)
    did: bool = False  # the agent has done anything
    final: str = ""  # the last text of the agent
    interrupted: bool = False
    summarised: bool = False  # what was said before tells of the request already
    signals: Signals = field(default_factory=Signals)


def read_tries(session: Session, redact: Redactor, intake: Intake) -> Iterator[Try]:
    """The tries of a session, each as soon as what follows it is known."""
    reading = _Reading(session, redact, intake)
    for step in session.steps:
        yield from reading.take(step)
    yield from reading.close()


@dataclass(slots=True)
class _Reading:
    """Cuts the steps of one session into tries."""

    session: Session
    redact: Redactor
    intake: Intake
    open: _Open | None = None
    earlier: list[tuple[int, str]] = field(default_factory=list)  # with the number of its request
    turns: int = 0
    model: str = ""

    def take(self, step: Step) -> Iterator[Try]:
        self.model = step.model or self.model
        if step.kind == "user":
            yield from self._person(self._clean(step))
        elif step.kind == "rewound":
            yield from self.close("taken back")
            self.earlier = [one for one in self.earlier if one[0] <= step.turns]
            self.turns = step.turns
        elif step.kind == "summary":
            self.earlier = [(self.turns, f"[summary] {self._clean(step)}")]
            if self.open is not None:
                self.open.pieces.append("[what was before was summarised]")
                self.open.summarised, self.open.final = True, ""
        elif self.open is None:
            self.intake.drop("steps before any request")
        else:
            self._agent(self.open, step)

    def _agent(self, now: _Open, step: Step) -> None:
        match step.kind:
            case "assistant":
                if text := self._clean(step):
                    now.final, now.did = text, True
                    now.pieces.append(f"[assistant] {text}")
            case "call":
                now.did = True
                now.signals.see_call(step.id, step.arguments)
                clean = self.redact.tree(step.arguments)
                said = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
                line = " ".join(self._cut(said, KEPT["call"]).splitlines())
                now.pieces.append(f"[calls {self.redact(step.name)[:80]}] {line}")
            case "result":
                now.signals.see_result(step.id, step.text[-_READ:], step.failed)
                lines = self._clean(step).splitlines() or [""]
                now.pieces.append("\n".join(f"[tool] {line}" for line in lines))
            case "interrupted":
                now.interrupted = True
            case _:
                now.signals.error = True
                now.pieces.append(f"[error] {self.redact(step.text)[:400]}")
                return
        now.signals.error = False  # it went on after it

    def _person(self, text: str) -> Iterator[Try]:
        now, self.turns = self.open, self.turns + 1
        if now is None:
            self._begin(text)
            return
        if not now.did and not now.interrupted:
            now.asked += f"\n\n{text}"
            return
        if self.session.whole:
            now.pieces.append(f"[user] {text}")
            return
        said = read_person(text)
        if said == "go on" and not now.interrupted:
            now.pieces.append(f"[user] {text}")
        elif said == "thanks":
            yield from self.close("thanked")
            if len(text) > _AFTER_THANKS:
                self._begin(text)
        elif said == "correction" or now.interrupted:
            # What follows is another try at the same request, helped by what the person said.
            yield from self.close("interrupted" if now.interrupted else "corrected")
            self.open = _Open(now.asked, now.before, self.turns)
            self.open.pieces.append(f"[user] {text}")
        else:
            yield from self.close()
            self._begin(text)

    def _begin(self, text: str) -> None:
        before = "\n".join(said for _, said in self.earlier[-_EARLIER:])
        self.open = _Open(text, before, self.turns)

    def close(self, said: str = "") -> Iterator[Try]:
        """End the try that is open, if there is one; `said`: what the person did about it."""
        now, self.open = self.open, None
        if now is None:
            return
        now.signals.said = said or ("interrupted" if now.interrupted else "")
        if not now.did:
            self.intake.drop("requests without a reply")
        else:
            score, name = self.session.score, self.session.score_name
            reward, signals = now.signals.outcome(score, name)
            request = now.asked
            if now.before:
                request = f"Earlier in the session:\n{now.before}\n\nThe request now:\n{request}"
            about = self.redact(self.session.id), self.redact(self.model)
            text = now.pieces[0].removeprefix("[assistant] ")  # as any agent's one reply
            if len(now.pieces) > 1:
                text = self._cut("\n".join(now.pieces), KEPT_TRY)
            yield Try(request, text, reward, signals, *about, self.session.answer)
        asked = f"[user] {now.asked[:KEPT_BEFORE]}"
        if not now.summarised and all(said != asked for _, said in self.earlier):
            self.earlier.append((now.turn, asked))
        if now.final:
            self.earlier.append((now.turn, f"[assistant] {now.final[-KEPT_BEFORE:]}"))

    def _clean(self, step: Step) -> str:
        text = step.text
        if len(text) > _READ:
            text = f"{text[: _READ * 3 // 4]}\n{text[-_READ // 4 :]}"
        return self._cut(self.redact(text).strip(), KEPT.get(step.kind, 400))

    def _cut(self, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        self.intake.drop("texts cut")
        out = len(text) - most
        return f"{text[: most * 3 // 4]}\n[… {out:,} characters left out …]\n{text[-most // 4 :]}"
