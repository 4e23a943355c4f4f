"""`studio`, `run`, `attach`, `demo` and `headless`: practise with the screen and without it.

They know whether it can be drawn, what is printed once it is left, and the exit code.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Protocol, TextIO

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import (
    AcceptChanges,
    ConfigName,
    DryRun,
    EventsAsJson,
    FromYoutu,
    Name,
    NewestRun,
    Overrides,
    PlayedCassette,
    Record,
    RestartStep,
    RunFile,
    open_workspace,
    option,
    read_tape,
)
from studio.render.lines import tell_next, to_stderr
from studio.secrets.sanitize import sanitize
from studio.tui.terminal.opening import opening_line

if TYPE_CHECKING:
    from engines.record.run_dir import Workspace
    from studio.run.detached import StartingProcess


DEMO = "demo"
"""Preset, experiment and library of `studio demo`."""
WITHOUT = "Use `studio headless` to practise and `studio review` to decide: both need no screen."


class ClosedScreen(Protocol):
    """What is known of a screen once it is closed."""

    shown_run: str | None  # the run it showed last
    ended_here: str  # how that ended while it was shown; "" where it did not


Screen = Callable[..., "tuple[ClosedScreen, int]"]
"""`studio.tui.app.open_screen`."""


def home(folder: Path) -> int:
    """Show where things stand: on the start screen, or without a terminal as a page of text."""
    if has_screen():
        return show(folder)
    from engines.record.run_dir import Workspace
    from studio.workspace.listing import home_text, listed_runs

    workspace = Workspace(folder)
    print(home_text(listed_runs(workspace), workspace))
    return exit_codes.DONE


def run(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    name: Name = None,
    restart_step: RestartStep = None,
    review: Annotated[
        str | None,
        option(
            "wait|auto|rules:FILE",
            "Who decides operations: you (wait), everything that fits is approved (auto), or "
            "rules decide. Default: review.by, else wait; a resumed run keeps its reviewer.",
        ),
    ] = None,
    accept_changes: AcceptChanges = False,
    record: Record = None,
    cassette: PlayedCassette = None,
) -> int:
    """Practise with the screen. It starts a run, resumes it, or attaches where it goes on.

    The run is a process of its own: leaving the screen (q) or losing the terminal ends nothing.
    A file .env in the working folder gives the variables that the environment does not set.

    Examples:
        studio run rehearsal
        studio run my-run.yaml --name mine practice.epochs=2
    """
    if runfile is None:
        raise ConfigError(
            "studio run",
            "it needs a run file or a preset.",
            "Try `studio run rehearsal`, or see `studio presets list`.",
        )
    is_run = _is_run(context.obj, runfile)
    check_terminal("studio run")
    # The new process checks the rest: reading the run file twice would take a second.
    options: dict[str, object] = {"name": name, "restart-step": restart_step, "review": review}
    options |= {"record": record, "cassette": cassette}
    choices = [f"--{option}={value}" for option, value in options.items() if value is not None]
    changes = ["--accept-changes"] if accept_changes else []
    what = [f"--resume={runfile}"] if is_run else ["--", runfile]
    words = [*choices, *changes, *what, *(overrides or [])]
    with opening_line():
        from studio.run.detached import start

        return show(context.obj, starting=start(words, context.obj))


def _is_run(workspace: Path, name: str) -> bool:
    """Whether it is the run-id of a run, and no run file or preset. ConfigError: none of them."""
    from studio.presets import preset_path

    if Path(name).expanduser().exists() or preset_path(name) is not None:
        return False
    if "/" not in name and (workspace / "runs" / name).is_dir():
        return True
    from studio.config.source import find_run_file  # takes long, and says what there is

    find_run_file(name)
    return False


def attach(context: typer.Context, run: NewestRun = None) -> int:
    """Open the screen on a run. One without a process is opened from its journal.

    Examples:
        studio attach
        studio attach rehearsal
    """
    from studio.workspace.run_control import choose_run

    with opening_line():
        folder = choose_run(open_workspace(context), run)
        folder.state()  # a damaged journal is reported before the screen is drawn
        check_terminal("studio attach")
        return show(context.obj, run=folder.run)


def show_replay(workspace: "Workspace", run: str, speed: float) -> int:
    folder = workspace.run(run)
    folder.state()  # a damaged journal is reported before the screen is drawn
    check_terminal("studio runs replay", f"`studio runs show {quote(run)}` needs no screen.")
    with opening_line():
        from studio.session.replay import ReplaySession

        _, code = _load_screen()(workspace.path, session=ReplaySession(workspace, folder, speed))
    return code


def demo(context: typer.Context) -> int:
    """Watch a minute of practice, and decide what is learned. A line says what to look at.

    It works offline: the agent and its lessons are scripted (a rehearsal), and some lessons are
    careless on purpose. A demo that was left goes on; after its end another one begins.

    Examples:
        studio demo
    """
    from studio.run.detached import start

    check_terminal("studio demo")
    with opening_line():
        words = demo_words(open_workspace(context))
        code = show(context.obj, starting=start(words, context.obj))
    # A reply that nobody mended is part of the show.
    return exit_codes.DONE if code == exit_codes.WITH_LOSSES else code


def demo_words(workspace: "Workspace") -> list[str]:
    """What `studio headless` is started with: the last demo where it is not finished, or another.

    A library outlives a run that was removed, and no new run goes on from it unasked.
    """
    from studio.presets import preset_path

    last = workspace.newest_run(DEMO)
    if last is not None and last.state().status != "finished":
        return [f"--resume={last.run}"]  # with the library that it began with
    taken = {folder.name for folder in workspace.libraries()}
    names = (DEMO, *(f"{DEMO}-{number}" for number in range(2, len(taken) + 2)))
    name = next(name for name in names if name not in taken)
    return ["--restart-step=0", "--", str(preset_path(DEMO)), f"library.name={name}"]


def why_no_screen(
    stdin: TextIO, stderr: TextIO, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """The place and the cause where no screen can be drawn; None where one can."""
    if not stdin.isatty():
        return "standard input", "it is no terminal, and the screen needs keys"
    if not stderr.isatty():  # where it is drawn, so that stdout stays free for data
        return "standard error", "it is no terminal, and the screen is drawn there"
    if environ.get("TERM", "") in ("", "dumb", "unknown"):
        named = environ.get("TERM") or "not set"
        return "TERM", f"it is {named}: such a terminal cannot draw a screen"
    return None


def check_terminal(command: str, move: str = WITHOUT) -> None:
    """Raise ConfigError where no screen can be drawn."""
    if (found := why_no_screen(sys.stdin, sys.stderr, os.environ)) is not None:
        raise ConfigError(f"{command}, {found[0]}", f"{found[1]}.", move)


def has_screen() -> bool:
    """Whether all three streams are a terminal that a screen can be drawn on."""
    return sys.stdout.isatty() and why_no_screen(sys.stdin, sys.stderr, os.environ) is None


def show(
    workspace: Path,
    *,
    run: str | None = None,
    starting: "StartingProcess | None" = None,
    screen: Screen | None = None,
) -> int:
    """Open the screen; once it is closed, print how to come back or how the run ended.

    `screen` is what to open, None for the real one. The exit code is that of a run that ended
    meanwhile, else 0.
    """
    with opening_line():
        from studio.run.detached import RefusedStart

        closed, code = (screen or _load_screen())(workspace, run=run, starting=starting)
    outcome = starting.outcome if starting is not None else None
    if isinstance(outcome, RefusedStart):
        to_stderr(outcome.text)
        return outcome.code
    shown = closed.shown_run or (outcome.run if outcome is not None else None)
    if code:
        return code
    if shown is None:
        if starting is not None:
            said = "left before it was open: a run that began goes on, and studio lists it"
            to_stderr(said)
        return exit_codes.DONE
    return _print_outcome(workspace, shown, ended=bool(closed.ended_here))


def _load_screen() -> Screen:
    configure_textual()
    from studio.tui.app import open_screen

    return open_screen


def configure_textual() -> None:
    """Set how Textual draws; it reads its environment once, when it is imported.

    At 120 frames a second a key waits half as long for its frame as at the usual 60. Streams have
    a clock of their own, so that this costs nothing.
    """
    os.environ.setdefault("TEXTUAL_FPS", "120")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")


def _print_outcome(workspace: Path, run: str, *, ended: bool) -> int:
    from engines.record.run_dir import RunDir
    from studio.facts.next_command import command_after_run
    from studio.facts.run import run_facts
    from studio.render.run_lines import status_line
    from studio.session.control_socket import is_alive

    folder = RunDir(workspace / "runs" / run)
    if is_alive(folder) and not ended:
        to_stderr(f"run {run} goes on: studio attach {quote(run)}")
        return exit_codes.DONE
    state = folder.state()
    to_stderr(status_line(run_facts(state)))
    if state.started is not None and state.started.exp_id == DEMO:
        place = sanitize(quote(str(folder.path)))
        to_stderr(f"it is in {place}; studio runs rm {quote(run)} removes it")
    tell_next(command_after_run(state), workspace)
    return exit_codes.run_exit_code(state) if ended else exit_codes.DONE


_Resume = Annotated[str | None, option("RUN", "Resume this run, by its id.")]
_Review = Annotated[
    str | None,
    option(
        "auto|wait|rules:FILE",
        "Who decides operations: everything that fits is approved (auto), a person decides "
        "(wait), or rules do. Default: review.by, else auto; a resumed run keeps its reviewer.",
    ),
]
_ReadyFd = Annotated[
    int | None, typer.Option(min=3, hidden=True, help="Where to say that a screen can attach.")
]


def headless(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    name: Name = None,
    resume: _Resume = None,
    restart_step: RestartStep = None,
    review: _Review = None,
    from_youtu: FromYoutu = None,
    config_name: ConfigName = None,
    accept_changes: AcceptChanges = False,
    record: Record = None,
    cassette: PlayedCassette = None,
    dry_run: DryRun = False,
    json: EventsAsJson = False,
    ready_fd: _ReadyFd = None,
) -> int:
    """Practise without a screen. It starts a run, or resumes the newest of that name.

    A file .env in the working folder gives the variables that the environment does not set.

    Examples:
        studio headless my-run.yaml practice.epochs=2 --review rules:my-rules.yaml
        studio headless --resume rehearsal
        studio headless rehearsal --name taped --record rehearsal.cassette
        studio headless rehearsal --name again --cassette rehearsal.cassette
    """
    import asyncio

    from studio.config.source import parse_source
    from studio.estimate.cost import print_dry_run, tell_estimate
    from studio.run.headless import run_headless
    from studio.run.new_or_resume import RunRequest, load_plan

    source = parse_source(
        *("studio headless", "practice", runfile, overrides),
        resume=resume,
        from_youtu=from_youtu,
        config_name=config_name,
    )
    if resume is not None and (source.runfile is not None or name is not None):
        raise ConfigError(
            "--resume", "it takes the run's own run file and name.", "Leave RUNFILE and --name out."
        )
    take_pipe(ready_fd)
    request = RunRequest(
        workspace=open_workspace(context),
        source=source,
        name=name,
        restart_step=restart_step,
        review=review,
        accept_changes=accept_changes,
        default_review="auto" if ready_fd is None else "wait",  # who waits to attach is a person
        keyless=dry_run,
        tape=read_tape(record, cassette),
    )
    plan = load_plan(request)
    if dry_run:
        return asyncio.run(print_dry_run(plan, json=json))
    practice = run_headless(plan, json=json, tell_estimate=tell_estimate, ready_fd=ready_fd)
    return asyncio.run(practice)


def take_pipe(fd: int | None) -> None:
    """Keep a pipe from child processes; refuse a number under which none is open."""
    import os

    if fd is None:
        return
    try:
        os.set_inheritable(fd, False)  # a child that held it open would keep the screen waiting
    except OSError as error:
        raise ConfigError(
            f"--ready-fd {fd}", "no such file is open.", "Leave it out: `studio run` sets it."
        ) from error
