"""What a run does just now that its journal does not tell: read from its passing events."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.core import events as ev
from engines.core.types import CallKey

Place = tuple[str, int, int, int]
"""Purpose, step, position and index of a rollout: the same however often it is tried."""


def place_of(key: CallKey) -> Place:
    return key.purpose, key.step, key.position, key.index


@dataclass(slots=True)
class UnderWay:
    """Whoever comes later is sent `events`, and sees what those see that were there before."""

    evaluation: ev.EvaluationProgressed | None = None  # the last, of the running one
    restoring: ev.StageEntered | None = None  # weights, before the first step
    nodes: ev.NodesChanged | None = None  # of a cluster
    held_out: dict[Place, ev.RolloutStarted] = field(default_factory=dict)
    placed: dict[Place, ev.RolloutPlaced] = field(default_factory=dict)  # rollouts, on nodes

    @property
    def events(self) -> list[ev.TransientEvent]:
        single = (self.restoring, self.evaluation, self.nodes)
        told = [event for event in single if event is not None]
        return [*told, *self.held_out.values(), *self.placed.values()]

    def take(
        self, event: ev.DurableEvent | ev.TransientEvent
    ) -> tuple[CallKey | None, Place | None]:
        """Take an event in; returns the rollout that begins with it, and the one that ends."""
        self.restoring = None
        match event:
            case ev.StageEntered(stage="restore"):
                self.restoring = event
            case ev.RolloutStarted(key=key):
                if key.purpose == "evaluation":
                    self.held_out[place_of(key)] = event
                return key, None
            case ev.RolloutPlaced(key=key):
                self.placed[place_of(key)] = event
            case ev.NodesChanged():
                self.nodes = event
            case ev.RolloutFinished():
                return None, self._end(("rollout", event.step, event.position, event.index))
            case ev.EvaluationProgressed():
                self.evaluation = event
                if event.key is not None:
                    return None, self._end(place_of(event.key))
            case ev.EvaluationFinished():
                self.evaluation = None
                self.held_out.clear()
        return None, None

    def _end(self, place: Place) -> Place:
        self.held_out.pop(place, None)
        self.placed.pop(place, None)
        return place
