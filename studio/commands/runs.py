"""`studio runs`, `report` and `doctor`: the runs of the workspace, one of them, what is damaged."""

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import (
    AsJson,
    AsObject,
    Overrides,
    Run,
    RunFile,
    argument,
    flag,
    open_workspace,
    option,
)
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.secrets.sanitize import sanitize

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def runs() -> None:
    """List, show and remove runs. Alone it lists them.

    Examples:
        studio runs
        studio runs show rehearsal
    """


@app.command("list")
def list_runs(context: typer.Context, json: AsJson = False) -> None:
    """List the runs, newest first. It says what is to be decided.

    Examples:
        studio runs list
        studio runs list --json
    """
    from studio.workspace.listing import listed_runs, runs_table

    found = listed_runs(open_workspace(context))
    if json:
        print_json([run.data for run in found])
    elif found:
        print(runs_table(found))
        tell_next(f"studio runs show {quote(found[0].data['run'])}", context.obj)
    else:
        to_stderr(f"no run in {sanitize(str(context.obj))} yet")
        tell_next("studio headless rehearsal", context.obj)


@app.command()
def show(
    context: typer.Context,
    run: Run,
    step: Annotated[
        int | None,
        option("N", "Show one step: the reflector's replies, and decisions."),
    ] = None,
    prompts: Annotated[
        bool, flag("Show also the reflector's prompts; needs --step.", "--prompts")
    ] = False,
    rollout: Annotated[str | None, option("ID", "Show one rollout whole, such as s1p0r2.")] = None,
    json: AsJson = False,
) -> None:
    """Show how a run went, step by step, and where its files are.

    Examples:
        studio runs show rehearsal
        studio runs show rehearsal --step 1 --prompts
        studio runs show rehearsal --rollout s1p0r2
    """
    from studio.facts.next_command import command_after_run
    from studio.facts.run import load_run_facts
    from studio.facts.step import rollout_facts, step_facts
    from studio.render.run_lines import rollout_text, run_text, step_text
    from studio.session.control_socket import is_alive

    if prompts and step is None:
        raise ConfigError(
            "--prompts", "it shows the prompts of one step.", "Give --step N with it."
        )
    if rollout is not None and step is not None:
        raise ConfigError("--rollout", "it shows a rollout, --step a step.", "Give one of them.")
    workspace = open_workspace(context)
    folder = workspace.run(run)
    if rollout is not None:
        of_rollout = rollout_facts(folder, rollout)
        print_result(of_rollout, rollout_text(of_rollout), json=json)
    elif step is not None:
        of_step = step_facts(folder, step)
        print_result(of_step, step_text(of_step, prompts=prompts), json=json)
    else:
        of_run = load_run_facts(folder, workspace, alive=is_alive(folder))
        print_result(of_run, run_text(of_run), json=json)
    following = command_after_run(folder.state())
    if not json and not following.startswith("studio runs show"):
        tell_next(following, context.obj)


@app.command()
def replay(
    context: typer.Context,
    run: Run,
    speed: Annotated[float, option("X", "How much faster than it went.", min=0.1, max=1000)] = 1.0,
) -> int:
    """Play a run through the screen as it went, text and all. Nothing in it can be changed.

    Long waits are cut. Behind s: p pauses or goes on, s plays one step, + and - set the speed.

    Examples:
        studio runs replay rehearsal --speed 10
    """
    from studio.commands.run import show_replay

    return show_replay(open_workspace(context), run, speed)


@app.command()
def trace(
    context: typer.Context,
    run: Run,
    endpoint: Annotated[
        str | None,
        option("URL", "Address of the collector. Default: the run file's, else $PHOENIX_ENDPOINT."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Send the spans of a run to Phoenix.

    Any other collector of OpenTelemetry takes them, too. A span has the same id whenever it is
    sent, so that Phoenix keeps it once.

    Examples:
        studio runs trace rehearsal --endpoint http://127.0.0.1:6006
    """
    from studio.config.loading import load_run
    from studio.tracing.collector import send_run

    workspace = open_workspace(context)
    folder = workspace.run(run)
    given = [] if endpoint is None else [f"tracing.base_url={endpoint}"]
    loaded = load_run(str(folder.run_file), given, workspace.path, keyless=True)
    sent = send_run(loaded, folder)
    print_result({"run": run, "spans": sent}, f"run {run}: {sent} spans sent", json=json)


@app.command()
def export(
    context: typer.Context,
    run: Run,
    to: Annotated[Path, option("DIR", "A new or empty folder to write to.")],
    rollout: Annotated[str | None, option("ID", "Only this rollout, such as s1p0r2.")] = None,
    json: AsJson = False,
) -> None:
    """Write the rollouts of a run as ATIF.

    Each is a JSON file, with tools, tokens and the reward.

    Examples:
        studio runs export rehearsal --to trajectories
    """
    from studio.tracing.trajectories import export_trajectories

    workspace = open_workspace(context, masks=True)
    folder = to.expanduser().absolute()
    written = export_trajectories(workspace.run(run), folder, workspace.mask, rollout)
    print_result(
        {"run": run, "rollouts": written, "folder": str(folder)},
        f"{written} rollouts: {sanitize(str(folder))}",
        json=json,
    )


@app.command()
def rm(
    context: typer.Context,
    run: Run,
    yes: Annotated[bool, flag("Do not ask.", "--yes", "-y")] = False,
) -> None:
    """Remove a run and all its records, or the file of an archived one. Its library stays.

    Examples:
        studio runs rm rehearsal --yes
    """
    from studio.workspace.archive import (
        check_removable,
        find_archived,
        library_of,
        remove_archive,
        remove_run,
    )

    workspace = open_workspace(context)
    if (archived := find_archived(run, workspace)) is not None:
        if yes or _confirm_removal(archived.file):
            told = f"removed the archive of run {run}"
            if not remove_archive(archived, workspace):
                told = f"run {run} is listed no more; its archive was not at {archived.file}"
            to_stderr(told)
        return
    folder = workspace.run(run)
    library = library_of(folder)
    check_removable(folder, workspace)
    if not (yes or _confirm_removal(str(folder.path))):
        return
    is_link, target = folder.path.is_symlink(), folder.path.resolve()
    remove_run(folder, workspace)
    to_stderr(f"removed run {run}")
    if is_link:
        to_stderr(f"it was a link: {target} stays")
    if library:
        to_stderr(
            f"library {library} stays: a new run goes on from it with library.start="
            f"{library}@V, or begins another with library.name=NAME"
        )


def _confirm_removal(what: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("studio runs rm", "nobody is there to confirm it.", "Give --yes.")
    if typer.confirm(f"Remove {sanitize(what)} for good?", err=True):
        return True
    to_stderr("nothing was removed")
    return False


@app.command()
def archive(
    context: typer.Context,
    run: Run,
    to: Annotated[
        Path | None,
        option("FILE", "Write it there. Default: archives/RUN.tar.gz."),
    ] = None,
    remove: Annotated[bool, flag("Remove the run once its file was verified.", "--remove")] = False,
    json: AsObject = False,
) -> None:
    """Pack a run into one compressed file. It stays where it is.

    With --remove it is in its file alone. The list still shows it, and `restore` brings it back.

    Examples:
        studio runs archive rehearsal
        studio runs archive rehearsal --to copy.tar.gz --json
        studio runs archive rehearsal --remove
    """
    from engines.core.codec import to_dict
    from studio.workspace.archive import archive_run

    workspace = open_workspace(context)
    target = to.expanduser() if to else None
    made = archive_run(workspace.run(run), workspace, target, remove=remove)
    packed = f"{made.files} files, {made.unpacked_bytes / 1e6:,.1f} MB, in {made.bytes / 1e6:,.1f}"
    stays = "removed" if remove else "still in the workspace"
    print_result(
        {**to_dict(made), "removed": remove},
        f"run {run}: {packed} MB, verified: {sanitize(made.file)}\nrun {run} is {stays}",
        json=json,
    )
    if remove and not json:
        tell_next(f"studio runs restore {quote(run)}", context.obj)


@app.command()
def restore(
    context: typer.Context,
    what: Annotated[str, argument("RUN|FILE", "An archived run, or its file.")],
) -> None:
    """Bring an archived run back into the workspace. Its file stays.

    Examples:
        studio runs restore rehearsal
    """
    from studio.workspace.archive import restore_run

    run = restore_run(what, open_workspace(context))
    to_stderr(f"run {run.run} is back in {sanitize(str(run.path))}")
    tell_next(f"studio runs show {quote(run.run)}", context.obj)


def report(
    context: typer.Context,
    run: Run,
    html: Annotated[
        Path | None,
        option("FILE", "Write a page with charts to this file; - prints it."),
    ] = None,
    md: Annotated[Path | None, option("FILE", "Write Markdown to this file; - prints it.")] = None,
    json: AsObject = False,
) -> None:
    """Report on a run in one file. Alone it prints Markdown.

    It tells what practice brought, each lesson with its evidence, decisions, cost and losses.
    The page needs no network and no script.

    Examples:
        studio report rehearsal
        studio report rehearsal --html report.html
    """
    from studio.render.page import render_html, render_markdown
    from studio.report.page import report_facts, report_page, write_report
    from studio.secrets import output, run_files
    from studio.session.control_socket import is_alive

    if sum(map(bool, (html, md, json))) > 1:
        raise ConfigError("--html, --md, --json", "each is a form of its own.", "Give one of them.")
    workspace = open_workspace(context)
    folder = workspace.run(run)
    output.remember(run_files.run_file_secrets(folder.run_file))
    facts = report_facts(folder, workspace, alive=is_alive(folder))
    if json:
        print_json(facts)
        return
    page = report_page(facts)
    text = render_html(page) if html else render_markdown(page)
    target = html or md
    if target is None or str(target) == "-":
        sys.stdout.write(output.MaskedText(text))
        return
    write_report(target.expanduser(), text.encode(), workspace)
    to_stderr(f"report of run {run}: {target}")


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

    from studio.commands.run import why_no_screen
    from studio.render.doctor_lines import doctor_text
    from studio.workspace import doctor, machine

    facts = machine.machine_facts(context.obj)
    no_screen = why_no_screen(sys.stdin, sys.stderr, os.environ)
    checking = doctor.check_up(
        context.obj, facts, no_screen, runfile, overrides or (), tell=to_stderr
    )
    findings = asyncio.run(checking)
    diagnosis = doctor.diagnose(open_workspace(context), repair=repair).add(facts, findings)
    print_result(diagnosis, doctor_text(diagnosis), json=json)
    return exit_codes.DONE if diagnosis.well else exit_codes.USER_ERROR
