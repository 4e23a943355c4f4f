"""The line that says what to look at: it follows the state, the page and the cursor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core import events as ev
from engines.core.state.fold import fold_events
from engines.core.state.run_state import RunState
from engines.core.types import Decision
from engines.record.run_dir import RunDir, Workspace
from studio.tui.keymap import KEYS
from studio.tui.pages.demo_hint import DemoHints, is_demo
from studio.tui.settings import ScreenSettings
from tests.studio.tui.stage import FakeSession, app_on, picture
from tests.support.demo_run import demo_workspace


@pytest.fixture
def workspace() -> Workspace:
    return demo_workspace()


def state_at_review(run: RunDir, step: int) -> RunState:
    """As it stands when the step's lesson waits for a person."""
    events = [entry.event for entry in run.entries()]
    end = next(
        n for n, e in enumerate(events) if isinstance(e, ev.LessonProposed) and e.step == step
    )
    return fold_events(events[: end + 1])


def hint(state: RunState, page: str = "review", cursor: str = "", **more: bool) -> str:
    return DemoHints(KEYS).hint(state, page, cursor, **more)


def test_each_proposal_is_told_by_what_is_so_of_it(workspace: Workspace) -> None:
    run = workspace.run("demo")
    first = state_at_review(run, 1)
    assert hint(first, "live") == "3 proposals to decide: 2 opens Review."
    assert hint(first, cursor="op1.1") == (
        "op1.1 rewords E2 (what is new is marked): a approves, r rejects."
    )
    assert hint(first, cursor="op1.3").startswith("op1.3 deletes E3 (see why")
    assert hint(first, cursor="op9.9") == "3 left: n goes to the next."
    copy, opposite = state_at_review(run, 2), state_at_review(run, 4)
    said = "resembles another: r rejects it, M merges the two."
    assert hint(copy, cursor="op2.1") == f"op2.1 {said}"
    assert hint(opposite, cursor="op4.2") == f"op4.2 {said}"
    leak = state_at_review(run, 3)
    assert hint(leak, cursor="op3.1").startswith("op3.1 gives a problem away: e takes that out")
    assert hint(leak, cursor="op3.1", types=True).startswith("Change the wording")
    assert hint(leak, cursor="s3p1") == "s3p1 was unreadable. e mends it."


def test_it_follows_what_the_person_does(workspace: Workspace) -> None:
    state = state_at_review(workspace.run("demo"), 3)
    state.decisions["op3.1"] = Decision("op3.1", "reject", reviewer="ann")
    said = "All is decided: c commits."
    assert hint(state, cursor="op3.1") == said
    assert hint(state, "live") == said
    assert hint(state, cursor="s3p1").endswith("e mends it.")


def test_it_is_there_from_the_first_event_to_the_last_and_never_of_another_run(
    workspace: Workspace,
) -> None:
    events = [entry.event for entry in workspace.run("demo").entries()]
    assert isinstance(events[0], ev.RunStarted)
    other = [replace(events[0], exp_id="mine"), *events[1:]]
    for n in range(1, len(events) + 1):
        state = fold_events(events[:n])
        for page in ("live", "review", "library"):
            for name in ("", *state.operations, *state.repairs):
                said = hint(state, page, name)
                assert 0 < len(said) <= 73, said  # of 80 columns
        assert is_demo(state) and not is_demo(fold_events(other[:n]))
    assert hint(state, "live") == (
        "Done: held out 0.53 -> 0.93. 4 says whether that is chance, q leaves."
    )
    assert hint(fold_events(events[:2]), "live").startswith("First the held-out")
    unseen = state_at_review(workspace.run("demo"), 2)
    unseen.reviewer = "auto"  # nobody is asked
    assert hint(unseen, "live").endswith("approved unseen, as --auto asks.")
    state.reviewer = "auto"
    assert hint(state, "live").endswith("0.53 -> 0.93. Now decide yourself: studio demo.")


async def test_the_screen_shows_it_with_the_keys_as_they_are_bound(workspace: Workspace) -> None:
    run = workspace.run("demo")
    session = FakeSession(run)
    session.state = state_at_review(run, 1)
    settings = ScreenSettings(theme="studio-dark", keys={"review.approve": "U"})
    app = app_on(session, workspace, settings)
    async with app.run_test(size=(120, 36)) as pilot:
        app.open_page("review")
        await app.wait_for_requests()
        for _ in range(2):  # its rows are drawn, then what is said of the one under the cursor
            await pilot.pause()
            app.draw_now()
        assert "look: op1.1 rewords E2 (what is new is marked): U approves" in picture(app)[2]
        await pilot.press("down", "down")
        app.draw_frame()
        assert "look: op1.3 deletes E3" in picture(app)[2]
        session.state = RunState()
        app.draw_now()
        await pilot.pause()
        assert "look:" not in "\n".join(picture(app))
