"""What a screen knows of the batch under way, beyond the state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engines.core import events as ev
from engines.core.state.fold import fold, fold_events
from engines.core.state.run_state import RunState
from engines.core.types import CallKey
from studio.tui.pages.live.page import load_event_history
from studio.tui.pages.live.view import BatchTracker
from tests.studio.tui.stage import finished_workspace, held_workspace
from tests.support.builders import a_rollout_finished, a_run, a_step


def a_state(folder: Path, upto: type) -> RunState:
    """Of a run up to its first event of a kind, that included."""
    state = RunState()
    for entry in held_workspace(folder).run("mine").entries():
        fold(state, entry.event)
        if isinstance(entry.event, upto):
            return state
    raise AssertionError(upto)


def hear(
    tracker: BatchTracker, state: RunState, event: ev.DurableEvent | ev.TransientEvent
) -> None:
    fold(state, event)
    tracker.update(state)


def test_weights_that_are_restored_are_told_until_something_else_begins() -> None:
    tracker, state = BatchTracker(), RunState()
    choosing = ev.StageEntered(7, "choice", {"lessons": 3})
    hear(tracker, state, choosing)
    assert tracker.doing == "trying 3 lessons to choose one"
    hear(tracker, state, ev.StageEntered(7, "restore"))
    assert tracker.doing == "restoring the weights after step 7 …"
    hear(tracker, state, ev.EvaluationProgressed(7, "aime", 0, 20))
    assert tracker.doing == ""


def begun(position: int, index: int) -> ev.RolloutStarted:
    return ev.RolloutStarted(CallKey("rollout", 1, 1, position, index), "")


def test_a_rollout_is_under_way_from_its_beginning_or_first_text_to_its_end(tmp_path: Path) -> None:
    state = a_state(tmp_path, ev.StepStarted)
    watched = BatchTracker()
    watched.handle_snapshot(state, anew=True)
    hear(watched, state, begun(0, 0))
    watched.handle_text("s1p0r1")
    watched.handle_text("s9p0r1")  # of no rollout of this batch
    assert watched.under_way == {"s1p0r0", "s1p0r1"}
    assert watched.take_begun() == {"s1p0r0"}
    hear(watched, state, begun(0, 0))
    assert watched.take_begun() == {"s1p0r0"}, "it begins once more"
    hear(watched, state, a_rollout_finished(0, 0))
    assert watched.under_way == {"s1p0r1"}
    assert watched.take_begun() == set()
    hear(watched, state, ev.RunEnded("stopped"))
    assert watched.under_way == set()


def test_between_steps_the_last_batch_is_the_journals_and_whole(tmp_path: Path) -> None:
    run = finished_workspace(tmp_path).run("rehearsal")
    state = run.state()
    watched = BatchTracker()
    watched.handle_snapshot(state, anew=True)
    assert watched.batch is None  # the state has let go of the rollouts of steps that are through
    _, last_batch = load_event_history(run)
    watched.restore_batch(last_batch, state)
    assert watched.batch is not None
    assert (watched.batch.step, len(watched.batch.rollouts)) == (4, watched.batch.size)
    assert len(watched.batch.verdicts) == watched.batch.size


def test_a_batch_that_is_under_way_is_the_states_and_never_an_older_one(tmp_path: Path) -> None:
    state = a_state(tmp_path, ev.StepStarted)
    watched = BatchTracker()
    watched.handle_snapshot(state, anew=True)
    known = watched.batch
    watched.restore_batch(replace(known, rollouts={}), state)
    assert watched.batch is known
    watched.restore_batch(None, None)
    assert watched.batch is known


def test_a_screen_knows_where_each_try_is_made_until_it_ends_or_its_node_is_lost() -> None:
    tracker, state = BatchTracker(), fold_events([a_run(), a_step()])
    hear(tracker, state, ev.NodesChanged(("n1", "n2")))
    for index, node in enumerate(("n1", "n2", "n2")):
        hear(tracker, state, begun(0, index))
        hear(tracker, state, ev.RolloutPlaced(begun(0, index).key, node))
    hear(tracker, state, a_rollout_finished(0, 1))
    assert tracker.places == {"s1p0r0": "n1", "s1p0r2": "n2"}
    hear(tracker, state, ev.NodesChanged(("n1",), "node n2 was lost: it cannot be reached"))
    assert (tracker.nodes, tracker.places) == (("n1",), {"s1p0r0": "n1"})
    hear(tracker, state, ev.RunEnded("stopped"))
    assert (tracker.nodes, tracker.places) == (None, {})
