"""`studio review`: decide open operations in line mode."""

from __future__ import annotations

from typing import Annotated

import typer


def review(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Argument(help="Run-id; default: the newest living run, else the newest.")
    ] = None,
) -> None:
    """Decide open operations one by one, as `git add -p` does it."""
    import shutil
    import sys

    from engines.record.run_dir import Workspace
    from studio.desk import desk_of
    from studio.editor import edited
    from studio.evidence import EvidenceRoom
    from studio.line_review import Sitting
    from studio.person import person
    from studio.printing import folded
    from studio.steering import chosen_run

    def ask(prompt: str) -> str | None:
        print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            print()
        return line.rstrip("\n") if line else None

    def say(text: str) -> None:
        wide = shutil.get_terminal_size().columns
        print(folded(text, wide) if sys.stdout.isatty() else text)

    workspace = Workspace(context.obj)
    folder = chosen_run(workspace, run)
    with desk_of(workspace, folder) as desk:
        if not desk.sheet().open:
            print(f"run {folder.run}: nothing is open")
            return
        sitting = Sitting(
            desk, EvidenceRoom(folder), reviewer=person(), ask=ask, edit=edited, say=say
        )
        try:
            sitting.run()
        finally:
            left = len(folder.state().open)
            print(f"run {folder.run}: {sitting.decided} decided, {left} open")
            if closing := desk.close():
                print(closing)
