"""From a session's steps to tries: a request, what was done about it, and what came of it.

Every text is redacted before it is cut, since half a secret no longer looks like one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engines.data.sessions.redaction import Redactor
from engines.data.sessions.signals import Signals, read_person
from engines.data.sessions.steps import Intake, Session, Step

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


@dataclass(frozen=True, slots=True)
class Try:
    """One recorded try. `reward` None: nothing tells how it went."""

    request: str  # with what was said before it, where there is anything
    text: str
    reward: float | None
    signals: tuple[str, ...]
    session: str
    model: str
    answer: str | None = None


@dataclass(slots=True)
class _Open:
    """The try that is being read."""

    asked: str
    before: str  # what stands before the request, "" where it begins the session
    turn: int
    head: list[str] = field(default_factory=list)
    tail: deque[str] = field(default_factory=deque)
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    left_out: int = 0
    did: bool = False  # the agent has done anything
    final: str = ""  # the last text of the agent
    interrupted: bool = False
    summarised: bool = False  # what was said before tells of the request already
    signals: Signals = field(default_factory=Signals)

    def add(self, piece: str) -> None:
        if not self.tail and self.sizes[0] + len(piece) <= KEPT_TRY // 2:
            self.head.append(piece)
            self.sizes[0] += len(piece)
            return
        self.tail.append(piece)
        self.sizes[1] += len(piece)
        while self.sizes[1] > KEPT_TRY // 2 and len(self.tail) > 1:
            self.sizes[1] -= len(self.tail.popleft())
            self.left_out += 1

    def text(self) -> str:
        if len(self.head) == 1 and not self.tail:
            return self.head[0].removeprefix("[assistant] ")  # as any agent's one reply
        gap = [f"[… {self.left_out:,} steps left out …]"] if self.left_out else []
        return "\n".join([*self.head, *gap, *self.tail])


def read_tries(session: Session, redact: Redactor, intake: Intake) -> Iterator[Try]:
    """The tries of a session, each as soon as what follows it is known."""
    reading = _Reading(session, redact, intake)
    for step in session.steps:
        yield from reading.take(step)
    yield from reading.close()


class _Reading:
    def __init__(self, session: Session, redact: Redactor, intake: Intake) -> None:
        self._session, self._redact, self._intake = session, redact, intake
        self._open: _Open | None = None
        self._earlier: list[tuple[int, str]] = []  # with the number of the request it belongs to
        self._turns = 0
        self._model = ""

    def take(self, step: Step) -> Iterator[Try]:
        self._model = step.model or self._model
        if step.kind == "user":
            yield from self._person(self._clean(step))
        elif step.kind == "rewound":
            yield from self.close("taken back")
            self._earlier = [one for one in self._earlier if one[0] <= step.turns]
            self._turns = step.turns
        elif step.kind == "summary":
            self._earlier = [(self._turns, f"[summary] {self._clean(step)}")]
            if self._open is not None:
                self._open.add("[what was before was summarised]")
                self._open.summarised, self._open.final = True, ""
        elif self._open is None:
            self._intake.drop("steps before any request")
        else:
            self._agent(self._open, step)

    def _agent(self, now: _Open, step: Step) -> None:
        match step.kind:
            case "assistant":
                if text := self._clean(step):
                    now.final, now.did = text, True
                    now.add(f"[assistant] {text}")
            case "call":
                now.did = True
                now.signals.see_call(step.id, step.arguments)
                clean = self._redact.tree(step.arguments)
                said = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False)
                line = " ".join(self._cut(said, KEPT["call"]).splitlines())
                now.add(f"[calls {self._redact(step.name)[:80]}] {line}")
            case "result":
                now.signals.see_result(step.id, step.text[-_READ:], step.failed)
                lines = self._clean(step).splitlines() or [""]
                now.add("\n".join(f"[tool] {line}" for line in lines))
            case "interrupted":
                now.interrupted = True
            case _:
                now.signals.error = True
                now.add(f"[error] {self._redact(step.text)[:400]}")
                return
        now.signals.error = False  # it went on after it

    def _person(self, text: str) -> Iterator[Try]:
        now, self._turns = self._open, self._turns + 1
        if now is None:
            self._begin(text)
            return
        if not now.did and not now.interrupted:
            now.asked += f"\n\n{text}"
            return
        if self._session.whole:
            now.add(f"[user] {text}")
            return
        said = read_person(text)
        if said == "go on" and not now.interrupted:
            now.add(f"[user] {text}")
        elif said == "thanks":
            yield from self.close("thanked")
            if len(text) > _AFTER_THANKS:
                self._begin(text)
        elif said == "correction" or now.interrupted:
            # What follows is another try at the same request, helped by what the person said.
            yield from self.close("interrupted" if now.interrupted else "corrected")
            self._open = _Open(now.asked, now.before, self._turns)
            self._open.add(f"[user] {text}")
        else:
            yield from self.close()
            self._begin(text)

    def _begin(self, text: str) -> None:
        before = "\n".join(said for _, said in self._earlier[-_EARLIER:])
        self._open = _Open(text, before, self._turns)

    def close(self, said: str = "") -> Iterator[Try]:
        """End the try that is open, if there is one; `said`: what the person did about it."""
        now, self._open = self._open, None
        if now is None:
            return
        now.signals.said = said or ("interrupted" if now.interrupted else "")
        if not now.did:
            self._intake.drop("requests without a reply")
        else:
            score, name = self._session.score, self._session.score_name
            reward, signals = now.signals.outcome(score, name)
            if now.left_out:
                self._intake.drop("steps left out of long tries", now.left_out)
            request = now.asked
            if now.before:
                request = f"Earlier in the session:\n{now.before}\n\nThe request now:\n{request}"
            about = self._redact(self._session.id), self._redact(self._model)
            yield Try(request, now.text(), reward, signals, *about, self._session.answer)
        asked = f"[user] {now.asked[:KEPT_BEFORE]}"
        if not now.summarised and all(said != asked for _, said in self._earlier):
            self._earlier.append((now.turn, asked))
        if now.final:
            self._earlier.append((now.turn, f"[assistant] {now.final[-KEPT_BEFORE:]}"))

    def _clean(self, step: Step) -> str:
        text = step.text
        if len(text) > _READ:
            text = f"{text[: _READ * 3 // 4]}\n{text[-_READ // 4 :]}"
        return self._cut(self._redact(text).strip(), KEPT.get(step.kind, 400))

    def _cut(self, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        self._intake.drop("texts cut")
        out = len(text) - most
        return f"{text[: most * 3 // 4]}\n[… {out:,} characters left out …]\n{text[-most // 4 :]}"
