"""`studio review`: decide open operations, and correct replies, in line mode."""

from __future__ import annotations

import shutil
import sys
from shlex import quote
from typing import Annotated

import typer

from studio.commands import AsJson, DryRun, NewestRun, Run, require_mcp
from studio.process import login_name
from studio.report.tables import wrap_text

_ByMcp = Annotated[
    bool, typer.Option("--mcp", help="Serve the review to an agent's session, on stdio.")
]


def review(
    context: typer.Context,
    run: NewestRun = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay for the next steps of the run, until it ends.")
    ] = False,
    mcp: _ByMcp = False,
) -> None:
    """Decide open operations one by one, as `git add -p` does it.

    Replies that could not be understood come last: correct them, or let them go.

    Examples:
        studio review
        studio review mine --wait
        studio review mine --mcp
    """
    from studio.report.next_step import command_after_run, tell_next
    from studio.report.progress import to_stderr
    from studio.review.editor import edit_text
    from studio.review.review_run import RunReview, open_session
    from studio.run.linter import LazyLinter
    from studio.secrets.workspace import masking_workspace
    from studio.session.client import is_alive
    from studio.workspace.run_control import choose_run

    def ask(prompt: str) -> str | None:
        print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            print()
        return line.rstrip("\n") if line else None

    def say(text: str) -> None:
        wide = shutil.get_terminal_size().columns
        print(wrap_text(text, wide) if sys.stdout.isatty() else text, flush=True)

    def tell(text: str) -> None:
        wide = shutil.get_terminal_size().columns
        to_stderr(wrap_text(text, wide) if sys.stderr.isatty() else text)

    workspace = masking_workspace(context.obj)
    folder, person = choose_run(workspace, run), login_name()
    if mcp:
        import asyncio

        require_mcp()
        from studio.serving.review_mcp import serve_review

        return asyncio.run(serve_review(workspace, folder, person, tell))
    linter = LazyLinter(workspace, folder, tell)
    with open_session(workspace, folder, person, linter) as (session, wait_for):
        reviewing = RunReview(session, wait_for, waits=wait, say=say, tell=tell)
        reviewing.run(reviewer=person, ask=ask, edit=edit_text)
    state = folder.state()
    if is_alive(folder) and not state.open_operations:
        tell_next(f"studio attach {quote(folder.run)}", context.obj)
    else:
        tell_next(command_after_run(state), context.obj)


def gate(
    context: typer.Context,
    run: Run,
    operations: Annotated[
        list[str] | None,
        typer.Argument(metavar="OP", help="Open operations. Default: all that change a wording."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=8, help="Problems to try on. Default: review.gate.problems.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Tries of each at most. Default: review.gate.k."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SET", help="Problems of this set, not of practice.")
    ] = None,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> int:
    """Try open operations before deciding about them.

    The library with each is compared with the library without it, on the same problems. Verdicts
    stand beside the operations in the review. Tries end as soon as they tell.

    Examples:
        studio gate rehearsal --dry-run
        studio gate rehearsal --problems 24
    """
    from studio.config.source import Source
    from studio.evaluation.gate import gate_run, load_gate_request
    from studio.run.new_or_resume import RunRequest
    from studio.secrets.workspace import masking_workspace

    workspace = masking_workspace(context.obj)
    request = load_gate_request(
        RunRequest(workspace=workspace, source=Source(overrides=(), resume=run)),
        run,
        problems=problems,
        k=k,
        data=data,
    )
    return gate_run(request, workspace.run(run), operations or [], dry_run=dry_run, json=json)
