"""What the process tells its caller, in order of precedence, and what a run ends with."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engines.core.state.run_state import RunState

BUG = 1
USER_ERROR = 2
INTERRUPTED = 130
BUDGET_REACHED = 5
OPERATIONS_OPEN = ANSWERS_PENDING = 3  # something waits for a person
WORSE = 6  # or short of what was demanded: `studio compare`
WITH_LOSSES = 4  # finished, or stopped early because nothing worked any more
DONE = 0


def run_exit_code(state: "RunState") -> int:
    """The process's exit code for a run that ended as its journal says."""
    if state.ending == "stopped" and state.reason != "after this step":
        return INTERRUPTED
    if state.ending == "budget":
        return BUDGET_REACHED
    if state.ending == "waiting":
        return ANSWERS_PENDING
    if state.open_operations:
        return OPERATIONS_OPEN
    return WITH_LOSSES if state.ending == "failed" or state.lost else DONE
