"""What a run's process tells a screen that comes late."""

import json
from asyncio import sleep
from typing import Any

from engines.core.events import (
    DurableEvent,
    EvaluationFinished,
    EvaluationProgressed,
    NodesChanged,
    RolloutPlaced,
    RolloutStarted,
    StageEntered,
    TextStreamed,
    TransientEvent,
)
from engines.core.state.fold import fold, fold_events
from engines.core.types import NO_USAGE, CallKey
from studio.session.feed import Feed, Outbox
from tests.support.builders import a_rollout_finished, a_run, a_step


class RunFeed(Feed):
    """A feed whose state takes every event in first, as the recorder of a run has it do."""

    def __init__(self) -> None:
        super().__init__(fold_events([a_run(), a_step()]))

    def __call__(self, event: DurableEvent | TransientEvent) -> None:
        fold(self._state, event)
        super().__call__(event)


class Wire:
    """What would be written to a screen's socket."""

    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None: ...

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.sent.splitlines()]


async def heard_by_who_joins(feed: Feed) -> list[dict[str, Any]]:
    outbox, wire = Outbox(feed), Wire()
    feed.add(outbox)
    outbox.enqueue(b'{"answer": 1}\n')
    await sleep(0)
    outbox.end()
    await outbox.send(wire)  # type: ignore[arg-type]
    return wire.lines


async def test_who_comes_while_a_set_is_measured_is_told_how_far_behind_the_answer() -> None:
    feed = RunFeed()
    assert await heard_by_who_joins(feed) == [{"answer": 1}]
    feed(EvaluationProgressed(0, "held-out", 0, 20))
    answer, told = await heard_by_who_joins(feed)
    assert answer == {"answer": 1}
    assert (told["event"]["kind"], told["event"]["total"]) == ("EvaluationProgressed", 20)


async def test_a_measuring_that_is_over_is_not_told_again() -> None:
    feed = RunFeed()
    feed(EvaluationProgressed(0, "held-out", 3, 20))
    feed(
        EvaluationFinished(
            step=0,
            data="held-out",
            policy_version=0,
            library_version=0,
            k=1,
            n=20,
            unjudged=0,
            mean=0.5,
            usage=NO_USAGE,
            fingerprint="",
        )
    )
    assert await heard_by_who_joins(feed) == [{"answer": 1}]


def test_a_feed_is_followed_while_an_outlet_subscribes_to_a_rollout() -> None:
    feed = RunFeed()
    outlet = Outbox(feed)
    feed.add(outlet)
    assert not feed.is_followed()
    feed.subscribe(outlet, ["1/0/0"])
    assert feed.is_followed()
    feed.remove(outlet)
    assert not feed.is_followed()


async def test_held_out_tries_stream_under_ids_of_their_own_and_are_told_to_who_comes_late() -> (
    None
):
    feed = RunFeed()
    held, practice = CallKey("evaluation", 0, 1, 2, 0), CallKey("rollout", 1, 1, 2, 0)
    feed(EvaluationProgressed(1, "held-out", 0, 20))
    for key, said in ((held, "measured"), (practice, "practised")):
        feed(RolloutStarted(key, "q"))
        feed(TextStreamed(key, said))
    assert feed.rollouts == ["s1p2r0"]
    assert [line["event"]["kind"] for line in (await heard_by_who_joins(feed))[1:]] == [
        "EvaluationProgressed",
        "RolloutStarted",
    ]
    outbox, wire = Outbox(feed), Wire()
    feed.add(outbox)
    feed.subscribe(outbox, ["h1p2r0"])
    feed(TextStreamed(held, " whole"))
    feed(EvaluationProgressed(1, "held-out", 1, 20, key=held, reward=1.0))
    outbox.end()
    await outbox.send(wire)  # type: ignore[arg-type]
    pieces = [piece for line in wire.lines for piece in line.get("streams", ())]
    assert "".join(text for _, _, text in pieces) == "measured whole"
    assert {name for name, _, _ in pieces} == {"h1p2r0"}
    assert len(await heard_by_who_joins(feed)) == 2  # none is under way any more
    feed.close()


async def test_who_comes_while_weights_are_restored_is_told_so_until_a_step_begins() -> None:
    feed = RunFeed()
    feed(StageEntered(3, "restore"))
    told = (await heard_by_who_joins(feed))[1:]
    assert [line["event"]["stage"] for line in told] == ["restore"]
    feed(EvaluationProgressed(3, "held-out", 19, 20))
    assert [line["event"]["kind"] for line in (await heard_by_who_joins(feed))[1:]] == [
        "EvaluationProgressed"
    ]


async def test_who_comes_late_is_told_of_nodes_and_of_the_tries_that_are_made_there() -> None:
    feed = RunFeed()
    feed(NodesChanged(("n1", "n2")))
    keys = [CallKey("rollout", 1, 1, 0, index) for index in range(2)]
    for key, node in zip(keys, ("n1", "n2"), strict=True):
        feed(RolloutStarted(key, "p"))
        feed(RolloutPlaced(key, node))
    feed(a_rollout_finished(0, 0))
    _, *told = await heard_by_who_joins(feed)
    assert [one["event"]["kind"] for one in told] == ["NodesChanged", "RolloutPlaced"]
    assert told[0]["event"]["nodes"] == ["n1", "n2"]
    assert (told[1]["event"]["key"]["index"], told[1]["event"]["node"]) == (1, "n2")
