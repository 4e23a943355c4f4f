"""`studio review`: decide open operations, and correct replies, in line mode."""

from __future__ import annotations

import shutil
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import AsJson, DryRun, NewestRun, Run
from studio.process import login_name
from studio.report.tables import print_json, print_result, wrap_text

if TYPE_CHECKING:
    from engines.record.run_dir import RunDir, Workspace
    from studio.review.line_mode import WaitFor
    from studio.session.base import Session


def review(
    context: typer.Context,
    run: NewestRun = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay for the next steps of the run, until it ends.")
    ] = False,
    editor: Annotated[
        bool, typer.Option("--editor", help="Decide in one file, in $VISUAL or $EDITOR.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --editor: record without asking.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print what is open as JSON, or with --decisions results."),
    ] = False,
    decisions: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Decide what a JSON file or stdin says; asks nothing."),
    ] = None,
) -> int:
    """Decide open operations one by one, as `git add -p` does it.

    Replies that could not be understood come last: correct them, or let them go. In one file, or
    by script, the exit code is 3 where something stays open. `--json FILE.json` is `--decisions`.

    Examples:
        studio review
        studio review mine --wait
        studio review mine --editor
        studio review mine --json
    """
    from studio.report.next_step import command_after_run, tell_next
    from studio.session.client import is_alive

    given = (wait, editor, json or decisions is not None)
    if sum(given) > 1 or (yes and not editor):
        cause = "--wait, --editor (with or without --yes) and --json exclude each other."
        raise ConfigError("studio review", cause, "Give one of them.")
    desk = _Desk.open(context.obj, run)
    if json and decisions is None:
        desk.print_queue()
        return exit_codes.DONE
    if decisions is not None:
        desk.decide(decisions, json=json)
    elif editor:
        desk.open_editor(yes=yes)
    else:
        desk.ask_in_lines(wait=wait)
    state = desk.run.state()
    if is_alive(desk.run) and not state.open_operations:
        tell_next(f"studio attach {quote(desk.run.run)}", context.obj)
    else:
        tell_next(command_after_run(state), context.obj)
    by_batch = editor or decisions is not None
    return exit_codes.OPERATIONS_OPEN if by_batch and state.open_operations else exit_codes.DONE


@dataclass(frozen=True, slots=True)
class _Desk:
    """One person at one run, with a command line's streams."""

    workspace: Workspace
    run: RunDir
    person: str

    @classmethod
    def open(cls, folder: Path, run: str | None) -> _Desk:
        from studio.secrets.workspace import masking_workspace
        from studio.workspace.run_control import choose_run

        workspace = masking_workspace(folder)
        return cls(workspace, choose_run(workspace, run), login_name())

    def session(self) -> AbstractContextManager[tuple[Session, WaitFor]]:
        from studio.review.review_run import open_session
        from studio.run.linter import LazyLinter

        linter = LazyLinter(self.workspace, self.run, self.tell)
        return open_session(self.workspace, self.run, self.person, linter)

    def say(self, text: str) -> None:
        wide = shutil.get_terminal_size().columns
        print(wrap_text(text, wide) if sys.stdout.isatty() else text, flush=True)

    def tell(self, text: str) -> None:
        from studio.report.progress import to_stderr

        wide = shutil.get_terminal_size().columns
        to_stderr(wrap_text(text, wide) if sys.stderr.isatty() else text)

    def finish(self, session: Session, wait_for: WaitFor) -> str:
        from studio.review.review_run import RunReview

        return RunReview(
            session, wait_for, waits=False, say=self.say, tell=self.tell
        ).closing_text()

    def ask_in_lines(self, *, wait: bool) -> None:
        from studio.review.editor import edit_text
        from studio.review.review_run import RunReview

        with self.session() as (session, wait_for):
            reviewing = RunReview(session, wait_for, waits=wait, say=self.say, tell=self.tell)
            reviewing.run(reviewer=self.person, ask=_ask, edit=edit_text)

    def open_editor(self, *, yes: bool) -> None:
        from studio.review.editor import edit_file
        from studio.review.editor_review import EditorReview

        EditorReview(
            self.workspace,
            self.run,
            self.person,
            open_session=self.session,
            finish=self.finish,
            ask=partial(_ask, stream=sys.stderr),
            edit=edit_file,
            say=self.say,
            tell=self.tell,
            yes=yes,
        ).review()

    def print_queue(self) -> None:
        from studio.review.evidence import EvidenceLoader
        from studio.review.scripted import queue_facts

        with self.session() as (session, wait_for):
            queue = wait_for(session.review_queue())
        print_json(queue_facts(self.run, queue, EvidenceLoader(self.run).operation_groups))

    def decide(self, file: str, *, json: bool) -> None:
        from studio.review import scripted

        name = "standard input" if file == "-" else file
        data = sys.stdin.read().encode() if file == "-" else Path(file).read_bytes()
        wishes = scripted.read_wishes(data, name)
        with self.session() as (session, wait_for):
            wait_for(session.review_queue())  # as the library is by now
            state = self.run.state()
            base = scripted.base_library(self.workspace, state)
            checked = scripted.check_wishes(name, wishes, state, base, self.person)
            results = wait_for(scripted.carry_out(session, checked))
            closing = self.finish(session, wait_for)
        left = [operation.id for operation in self.run.state().open_operations]
        facts = {"run": self.run.run, "results": results, "open": left, "closing": closing}
        text = [*map(scripted.result_text, results), f"{len(left)} open", closing]
        print_result(facts, "\n".join(filter(None, text)), json=json)


def _ask(prompt: str, stream: TextIO | None = None) -> str | None:
    out = stream or sys.stdout
    print(prompt, end="", flush=True, file=out)
    line = sys.stdin.readline()
    if not line:
        print(file=out)
    return line.rstrip("\n") if line else None


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
