"""`studio review`: decide open operations, and mend replies, in line mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")


def review(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run-id; default: the newest living run, else the newest.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay for the run's next steps, until it ends.")
    ] = False,
) -> None:
    """Decide open operations one by one, as `git add -p` does it.

    Replies that could not be understood come last: mend them, or let them go.
    """
    import shutil
    import sys

    from studio.process import login_name
    from studio.report.progress import to_stderr
    from studio.report.summary import count_text
    from studio.report.tables import wrap_text
    from studio.review.editor import edit_text
    from studio.review.evidence import EvidenceLoader
    from studio.review.line_mode import LineReview
    from studio.secrets.workspace import masking_workspace
    from studio.session.offline import ControlledElsewhereError, open_review_session
    from studio.workspace.run_control import choose_run

    def ask(prompt: str) -> str | None:
        print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            print()
        return line.rstrip("\n") if line else None

    def say(text: str) -> None:
        wide = shutil.get_terminal_size().columns
        print(wrap_text(text, wide) if sys.stdout.isatty() else text)

    def tell(text: str) -> None:
        wide = shutil.get_terminal_size().columns
        to_stderr(wrap_text(text, wide) if sys.stderr.isatty() else text)

    workspace = masking_workspace(context.obj)
    folder = choose_run(workspace, run)
    with open_review_session(workspace, folder, tell) as desk:

        def wait_for_control(do: Callable[[], T]) -> T:
            """With --wait a screen that decides is waited for."""
            while True:
                try:
                    return do()
                except ControlledElsewhereError as error:
                    if not wait:
                        raise
                    tell(f"{error.cause} Waiting until it is left; Ctrl-C ends the waiting")
                    desk.wait()

        sheet = wait_for_control(desk.review_queue)
        waits = wait and desk.living
        if wait and not waits:
            tell(f"note: no process of run {folder.run} goes on, so there is nothing to wait for")
        if not sheet.open and not sheet.repairs:
            print(f"run {folder.run}: nothing is open", flush=True)
            if not waits:
                if desk.living and (told := desk.close()):
                    print(told)
                return
        sitting = LineReview(
            desk, EvidenceLoader(folder), reviewer=login_name(), ask=ask, edit=edit_text, say=say
        )
        made = -1
        try:
            for _ in desk.watch_changes() if waits else (None,):
                if not wait_for_control(sitting.run):
                    break
                if waits and made != (made := sitting.decided_count + sitting.settled):
                    tell("waiting for the run's next step; Ctrl-C ends the waiting, not the run")
        finally:
            state = folder.state()
            counted = [f"{sitting.decided_count} decided, {len(state.open_operations)} open"]
            if sitting.settled or state.repairs:
                counted.append(
                    f"{count_text(sitting.settled, 'reply', 'replies')} settled, "
                    f"{len(state.repairs)} to mend"
                )
            print(f"run {folder.run}: {'; '.join(counted)}")
            if closing := desk.close():
                print(closing)
