"""A secret that a model repeats never leaves the run's process, however its reply is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.core.events import DurableEvent, RolloutStarted, TextStreamed, TransientEvent
from engines.core.protocols import OnText
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Completion, Message, Sampling
from engines.record.ledger import RecordLedger
from engines.secrets.mask import Mask
from studio.session.feed import Feed, Outbox

KEY = CallKey("rollout", 1, 1, 0, 0)
KNOWN = "correct-horse-battery"
SHAPED = "sk-proj-4f9A81bcd7720eeb9931"


class Talks:
    """A policy that says its reply in pieces of one size."""

    name = "talks"

    def __init__(self, text: str, size: int) -> None:
        self.text, self.size = text, size

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, on_text: OnText | None = None
    ) -> Completion:
        for at in range(0, len(self.text), self.size):
            if on_text is not None:
                on_text(self.text[at : at + self.size])
        return Completion(self.text)

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...


class Wire:
    """What would be written to a screen's socket."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None: ...


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("secret", [KNOWN, SHAPED])
async def test_no_piece_and_no_two_pieces_together_hold_a_secret(
    tmp_path: Path, secret: str, size: int
) -> None:
    feed = Feed(RunState())
    outbox = Outbox(feed)
    feed.add(outbox)

    def emit(event: DurableEvent | TransientEvent) -> None:
        feed(event)

    emit(RolloutStarted(KEY, "p"))
    feed.subscribe(outbox, ["s1p0r0"])
    wire = Wire()
    ledger = RecordLedger(tmp_path, 1, mask=Mask([KNOWN]))
    policy = Talks(f"the key is {secret} and so {secret} again", size)

    def stream(text: str) -> None:
        emit(TextStreamed(KEY, text))
        feed._flush()  # every piece is sent by itself
        wire.write(outbox._take_batch())

    await ledger.ask(KEY, policy, (Message("user", "your key?"),), Sampling(), stream)
    await ledger.aclose()
    pieces = [
        piece for line in wire.sent.splitlines() for piece in json.loads(line).get("streams", ())
    ]
    text = "".join(said for _, _, said in pieces)
    assert secret not in text
    assert secret[:12] not in text
    assert text.startswith("the key is ***")
    assert text.endswith("again")
    assert [offset for _, offset, _ in pieces] == [
        sum(len(said) for _, _, said in pieces[:at]) for at in range(len(pieces))
    ]
    feed.close()
