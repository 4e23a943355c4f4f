"""`studio doctor`: check a workspace and repair it, and find out why a run does not work."""

from typing import Annotated

import typer

from studio import exit_codes
from studio.commands import AsObject, Overrides, RunFile, flag, open_workspace
from studio.render.json import print_result
from studio.render.lines import to_stderr


def doctor(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    repair: Annotated[
        bool,
        flag("Repair what can be repaired; the files as they were are kept.", "--repair"),
    ] = False,
    json: AsObject = False,
) -> int:
    """Find out what is damaged here, or why a run does not work.

    With a run file its models, verifier and tools are tried, too: endpoints are asked a few short
    questions, and it is said before what these cost at most. Exit code 2 means damage, or something
    that does not work.

    Examples:
        studio doctor
        studio doctor --repair
        studio doctor rehearsal
    """
    import asyncio
    import os
    import sys

    from studio.commands.run import why_no_screen
    from studio.render.doctor_lines import doctor_text
    from studio.workspace.checkup import Around, check_up
    from studio.workspace.doctor import diagnose
    from studio.workspace.machine import basic_findings, machine_facts

    machine = machine_facts(context.obj)
    missing = why_no_screen(sys.stdin, sys.stderr, os.environ)
    columns, rows = os.get_terminal_size(2) if missing is None else (0, 0)
    around = Around(context.obj, os.environ, missing, (columns, rows))
    checks = asyncio.run(check_up(around, runfile, overrides or (), to_stderr))
    found = (*basic_findings(context.obj, machine), *checks)
    diagnosis = diagnose(open_workspace(context), repair=repair).add(machine, found)
    print_result(diagnosis, doctor_text(diagnosis), json=json)
    return exit_codes.DONE if diagnosis.well else exit_codes.USER_ERROR
