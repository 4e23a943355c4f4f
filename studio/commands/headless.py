"""`studio headless`: practise in this process, without a screen.

Owns the arguments that `studio run`, `studio train` and `studio.launch` share with it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from engines.core.errors import ConfigError

RunFile = Annotated[str | None, typer.Argument(metavar="RUNFILE|PRESET", help="What to practise.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override.")
]
Name = Annotated[str | None, typer.Option(help="Name of the run instead of exp_id.")]
RestartStep = Annotated[
    str | None,
    typer.Option(
        metavar="null|0|N",
        help="null resumes the newest run of the name (default), 0 starts a new one, N "
        "starts a new one that adopts the first N steps.",
    ),
]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Resume although settings that change results differ."),
]


def headless(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    name: Name = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Take up this run by its run-id.")
    ] = None,
    restart_step: RestartStep = None,
    review: Annotated[
        str | None,
        typer.Option(
            metavar="auto|wait|rules:FILE",
            help="Who decides operations. Default: the run file's review.by, else auto; a "
            "resumed run keeps its reviewer.",
        ),
    ] = None,
    from_youtu: Annotated[
        str | None,
        typer.Option(
            "--from-youtu", metavar="DIR", help="Practise by a config of this Youtu-Agent checkout."
        ),
    ] = None,
    config_name: Annotated[
        str | None,
        typer.Option("--config-name", metavar="NAME", help="Which of its configs/practice."),
    ] = None,
    accept_changes: AcceptChanges = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only print what it would cost; asks and writes nothing."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the event stream on stdout.")] = False,
    ready_fd: Annotated[
        int | None,
        typer.Option(
            "--ready-fd", min=3, hidden=True, help="Where to say that the run can be attached to."
        ),
    ] = None,
) -> int:
    """Practise without a screen; starts or resumes a run."""
    import asyncio
    import os

    from engines.record.run_dir import Workspace
    from studio.config.source import parse_source
    from studio.run import headless as session

    source = parse_source(
        "studio headless",
        "practice",
        runfile,
        overrides,
        resume=resume,
        from_youtu=from_youtu,
        config_name=config_name,
    )
    if resume is not None and (source.runfile is not None or name is not None):
        raise ConfigError(
            "--resume", "it takes the run's own run file and name.", "Leave RUNFILE and --name out."
        )
    if ready_fd is not None:
        check_pipe(ready_fd)
        os.set_inheritable(ready_fd, False)  # none of our own children hold it open
    plan = session.load_plan(
        Workspace(context.obj),
        source,
        name=name,
        restart_step=restart_step,
        review=review,
        accept_changes=accept_changes,
        # Whoever waits to attach is a person.
        default_review="auto" if ready_fd is None else "wait",
        keyless=dry_run,
    )
    if dry_run:
        return asyncio.run(session.dry_run(plan, json=json))
    return asyncio.run(session.run_headless(plan, json=json, ready_fd=ready_fd))


def check_pipe(fd: int) -> None:
    """Refuse a number under which nothing is open that could be told anything."""
    import os

    try:
        os.fstat(fd)
    except OSError as error:
        raise ConfigError(
            f"--ready-fd {fd}", "no such file is open.", "Leave it out: `studio run` sets it."
        ) from error
