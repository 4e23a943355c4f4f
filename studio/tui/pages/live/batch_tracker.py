"""The batch a screen looks at, and what the folded state does not know of it.

Which rollouts are under way, the evaluation under way, and what is shown between two steps.
"""

from __future__ import annotations

from collections.abc import Collection

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, rollout_id, try_id
from studio.report.summary import count_text
from studio.tui.pages.live.batch import Batch, current_batch
from studio.tui.pages.live.held_out import HeldOut


class BatchTracker:
    """Follows one run by its events; what has ended is the state's own at every look."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.under_way: set[str] = set()  # ids of rollouts that have begun and not ended
        self.held_out = HeldOut()
        self.doing = ""  # what is done before the first step
        self.nodes: tuple[str, ...] | None = None  # of a cluster
        self.places: dict[str, str] = {}  # tries under way there → their node

    @property
    def evaluating(self) -> ev.EvaluationProgressed | None:
        """How far the evaluation under way is; None where there is none."""
        return self.held_out.progress

    def update(self, state: RunState | None) -> None:
        """Take the batch under way from the state; between two steps the one before stays."""
        self.batch = current_batch(state) or self.batch

    def handle_snapshot(
        self, state: RunState | None, under_way: Collection[str] | None, *, anew: bool
    ) -> None:
        """The state is another object, of another run where `anew`.

        `under_way` is the run's own word on which rollouts are; None: it gave none.
        """
        if anew:
            self.batch = None
        if under_way is not None or anew:
            self.under_way = set(under_way or ())
        self.held_out.clear()  # one under way is told of anew
        self.doing = ""
        self.update(state)
        if self.batch is not None:
            self.under_way = {name for name in self.under_way if not self.has_ended(name)}

    def restore_batch(self, batch: Batch | None, state: RunState | None) -> None:
        """Take the journal's last batch between two steps: only there it is still known whole.

        A batch that the state does not know of will be told by its own events.
        """
        if batch is None or state is None or state.current is not None:
            return
        if batch.step in state.steps and (self.batch is None or self.batch.step <= batch.step):
            self.batch = batch

    def has_ended(self, rollout: str) -> bool:
        place = self.batch.place(rollout) if self.batch else None
        return self.batch is not None and place in self.batch.rollouts

    def handle_text(self, rollout: str) -> None:
        """A text grows, so its rollout is under way, whether its beginning was heard or not."""
        if self.batch is not None and self.batch.place(rollout) and not self.has_ended(rollout):
            self.under_way.add(rollout)

    def handle_disconnect(self) -> None:
        """Nobody knows what is under way while there is no line to the run."""
        self.under_way.clear()
        self.held_out.clear()
        self.nodes, self.places = None, {}

    def handle_event(
        self,
        event: ev.DurableEvent | ev.TransientEvent,
        state: RunState | None,
        now: float = 0.0,
    ) -> None:
        self.held_out.handle_event(event, now)
        self.doing = ""
        match event:
            case ev.NodesChanged(nodes=nodes):
                self.nodes = nodes
                self.places = {name: at for name, at in self.places.items() if at in nodes}
            case ev.RolloutPlaced(key=key, node=node):
                self.places[try_id(key)] = node
            case ev.EvaluationProgressed(key=CallKey() as key):
                self.places.pop(try_id(key), None)
            case ev.RolloutStarted(key=key) if key.purpose == "rollout":
                self.under_way.add(rollout_id(key.step, key.position, key.index))
            case ev.RolloutFinished():
                name = rollout_id(event.step, event.position, event.index)
                self.under_way.discard(name)
                self.places.pop(name, None)
            case ev.StageEntered(stage="restore", step=step):
                self.doing = f"restoring the weights after step {step} …"
            case ev.StageEntered(stage="choice", detail=detail):
                self.doing = f"trying {detail['lessons']} lessons to choose one"
            case ev.StageEntered(stage="gate", detail=detail):
                tries = f"{detail['made']} of at most {detail['most']} tries"
                self.doing = f"trying {count_text(detail['operations'], 'operation')}: {tries}"
            case ev.StepStarted():
                self.under_way.clear()
                self.update(state)
            case ev.RunEnded():
                self.handle_disconnect()
