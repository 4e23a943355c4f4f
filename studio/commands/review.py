"""`studio review`: decide open operations, and correct replies, in line mode."""

import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from engines.core.errors import ConfigError
from studio import exit_codes, process
from studio.commands import (
    AsJson,
    DryRun,
    NewestRun,
    Run,
    argument,
    ask_line,
    flag,
    open_workspace,
    option,
    require_mcp,
)
from studio.render.lines import tell_next, to_stderr, wrap_text

if TYPE_CHECKING:
    from engines.record.run_dir import RunDir, Workspace

_InEditor = Annotated[bool, flag("Decide in one file, in $VISUAL or $EDITOR.", "--editor")]
_ByMcp = Annotated[bool, flag("Serve the review to an agent's session, on stdio.", "--mcp")]
_Decisions = Annotated[
    Path | None,
    option("FILE|-", "Decide what this JSON says; nothing is asked."),
]


def review(
    context: typer.Context,
    run: NewestRun = None,
    wait: Annotated[
        bool, flag("Stay for the next steps of the run, until it ends.", "--wait")
    ] = False,
    editor: _InEditor = False,
    yes: Annotated[bool, flag("With --editor: ask nothing.", "--yes")] = False,
    json: Annotated[
        bool, flag("Print what is open, or what came of --decisions.", "--json")
    ] = False,
    decisions: _Decisions = None,
    mcp: _ByMcp = False,
) -> int:
    """Decide open operations one by one, as `git add -p` does it.

    Replies that could not be understood come last: correct them, or let them go. `--json FILE.json`
    decides, too. After --editor and --decisions exit code 3 says that something is open.

    Examples:
        studio review
        studio review mine --wait
        studio review mine --editor
        studio review --json
        studio review mine --mcp
    """
    from studio.facts.next_command import command_after_review
    from studio.review import evidence, line_mode, review_run, scripted
    from studio.review.editor import EditorReview, edit_text
    from studio.run.held_out import LazyLinter
    from studio.session.control_socket import is_alive
    from studio.workspace.run_control import choose_run

    if wait + editor + mcp + (json or decisions is not None) > 1 or (yes and not editor):
        raise ConfigError(
            "studio review",
            "--wait, --editor [--yes], --json and --mcp exclude each other.",
            "Give one of them.",
        )
    workspace = open_workspace(context, masks=True)
    folder, person = choose_run(workspace, run), process.login_name()
    if mcp:
        return _review_by_mcp(workspace, folder, person)
    linter = LazyLinter(workspace, folder, _tell)
    with review_run.open_session(workspace, folder, person, linter) as (session, wait_for):
        reviewing = review_run.RunReview(session, wait_for, waits=wait, say=_say, tell=_tell)
        if decisions is not None:
            scripted.review_by_script(reviewing, decisions, json=json)
        elif json:
            scripted.print_queue(reviewing)
        elif editor:
            EditorReview(reviewing, ask=_ask_aside, yes=yes).run()
        else:
            line_mode.LineReview(
                reviewing, ask_line, edit_text, evidence.EvidenceLoader(folder)
            ).run()
    state = folder.state()
    goes_on = is_alive(folder) and not state.open_operations
    after = command_after_review(state, committed=reviewing.committed)
    tell_next(f"studio attach {quote(folder.run)}" if goes_on else after, context.obj)
    is_left = (editor or decisions is not None) and state.open_operations
    return exit_codes.OPERATIONS_OPEN if is_left else exit_codes.DONE


def _review_by_mcp(workspace: "Workspace", run: "RunDir", person: str) -> int:
    import asyncio

    require_mcp()
    from studio.serving.review_mcp import serve_review

    asyncio.run(serve_review(workspace, run, person, _tell))
    return exit_codes.DONE


def _ask_aside(prompt: str) -> str | None:
    with redirect_stdout(sys.stderr):
        return ask_line(prompt)


def _say(text: str) -> None:
    wide = shutil.get_terminal_size().columns
    print(wrap_text(text, wide) if sys.stdout.isatty() else text, flush=True)


def _tell(text: str) -> None:
    wide = shutil.get_terminal_size().columns
    to_stderr(wrap_text(text, wide) if sys.stderr.isatty() else text)


def gate(
    context: typer.Context,
    run: Run,
    operations: Annotated[
        list[str] | None,
        argument("OP", "Open operations. Default: all that change a wording."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=8, help="Problems to try on. Default: review.gate.problems.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Tries of each at most. Default: review.gate.k."),
    ] = None,
    data: Annotated[str | None, option("SET", "Problems of this set, not of practice.")] = None,
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
    from studio.evaluation.effects import gate_run
    from studio.run.new_or_resume import RunRequest

    workspace = open_workspace(context, masks=True)
    given = {"problems": problems, "k": k, "data": data}
    settings = (f"review.gate.{name}={v}" for name, v in given.items() if v is not None)
    request = RunRequest(workspace=workspace, source=Source(tuple(settings), resume=run))
    return gate_run(request, workspace.run(run), operations or [], dry_run=dry_run, json=json)
