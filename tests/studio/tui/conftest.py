"""For the tests of the screen: how they wait, what they share, and how pictures are written."""

from __future__ import annotations

import pytest
import textual.pilot

from tests.support.quick_screens import quicken
from tests.support.quiet_loop import wait_for_screen, wait_until_quiet

textual.pilot.wait_for_idle = wait_until_quiet
textual.pilot.Pilot._wait_for_screen = wait_for_screen  # type: ignore[method-assign]
quicken()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-pictures",
        action="store_true",
        help="write tests/studio/tui/snapshots anew instead of comparing with it",
    )


@pytest.fixture(autouse=True)
def _pictures(request: pytest.FixtureRequest) -> None:
    from tests.studio.tui.pictures import update

    # The option is known only where this folder is named: whole runs compare.
    update(bool(request.config.getoption("update_pictures", default=False)))
