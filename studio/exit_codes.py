"""What the process tells its caller, in order of precedence."""

BUG = 1
USER_ERROR = 2
INTERRUPTED = 130
BUDGET_REACHED = 5
OPERATIONS_OPEN = 3
WITH_LOSSES = 4  # finished, or stopped early because nothing worked any more
DONE = 0
