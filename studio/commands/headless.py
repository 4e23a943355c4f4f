"""`studio headless`: practise in this process, without a screen."""

from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands import (
    AcceptChanges,
    ConfigName,
    DryRun,
    EventsAsJson,
    FromYoutu,
    Name,
    Overrides,
    PlayedCassette,
    Record,
    RestartStep,
    RunFile,
    open_workspace,
    read_tape,
)

_Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Resume this run, by its id.")]
_Review = Annotated[
    str | None,
    typer.Option(
        metavar="auto|wait|rules:FILE",
        help="Who decides operations: everything that fits is approved (auto), a person decides "
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
        cause = "it takes the run's own run file and name."
        raise ConfigError("--resume", cause, "Leave RUNFILE and --name out.")
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
        move = "Leave it out: `studio run` sets it."
        raise ConfigError(f"--ready-fd {fd}", "no such file is open.", move) from error
