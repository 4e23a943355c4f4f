"""`studio doctor`: check a workspace and repair it."""

from __future__ import annotations

from typing import Annotated

import typer

from studio import exit_codes
from studio.commands import AsObject, open_workspace
from studio.report.tables import print_result


def doctor(
    context: typer.Context,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair what can be repaired; the files as they were are kept."
        ),
    ] = False,
    json: AsObject = False,
) -> int:
    """Check journals, records, libraries and the machine. Exit code 2 means damage.

    Examples:
        studio doctor
        studio doctor --repair
    """
    import asyncio
    from dataclasses import replace

    from engines.tools.sandbox.tiers import find_tier
    from studio.workspace.doctor import diagnose
    from studio.workspace.doctor_text import doctor_data, doctor_text
    from studio.workspace.preflight import machine_facts, machine_troubles

    machine = machine_facts(context.obj)
    around = machine_troubles(context.obj, machine)
    found = diagnose(open_workspace(context), repair=repair)
    found = replace(found, findings=(*found.findings, *around))
    machine["sandbox"] = asyncio.run(find_tier()).sentence
    text = doctor_text(found, machine, repair=repair)
    print_result(doctor_data(found, machine), text, json=json)
    return exit_codes.DONE if found.is_healthy else exit_codes.USER_ERROR
