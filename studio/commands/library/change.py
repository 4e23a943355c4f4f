"""Changes of a library by hand, and what its experiences are worth."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from engines.core.errors import ConfigError, ConflictError
from studio.commands import AsObject, DryRun, open_workspace
from studio.commands.library.read import Name
from studio.process import login_name
from studio.render.lines import tell_next


def edit(
    context: typer.Context,
    name: Name,
    experience: Annotated[
        str | None, typer.Argument(metavar="ID", help="The experience to change; none with --add.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Its new wording. Default: $EDITOR asks for it."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the experience.")] = False,
    add: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Add an experience of this wording.")
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is recorded with the decision.")
    ] = "",
) -> None:
    """Change, add or delete one experience. It is recorded as a decided operation.

    Examples:
        studio library edit rehearsal E1 --text "Check every carry."
        studio library edit rehearsal --add "Check the units." --reason "seen in class"
        studio library edit rehearsal E2 --delete
    """
    from studio.facts.next_command import command_after_version
    from studio.library.edit import commit_changes, requested_change
    from studio.library.references import library_folder
    from studio.review.editor import edit_text

    workspace = open_workspace(context, masks=True)
    head = library_folder(name, workspace).head()
    change = requested_change(head, experience, text=text, delete=delete, add=add, edit=edit_text)
    if change is None:
        print(f"library {name}: nothing was changed")
        return
    done = commit_changes(workspace, name, lambda _: [change], person=login_name(), reason=reason)
    print(f"library {name} is at v{done.version}")
    tell_next(command_after_version(name, done.version), context.obj)


def utility(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME[@V]", help="A library.")],
    run: Annotated[
        str | None,
        typer.Option(metavar="RUNFILE|RUN", help="Whose settings hold. Default: the library's."),
    ] = None,
    rollouts: Annotated[
        int | None, typer.Option(min=8, max=10**7, help="Tries at most. Default: 1024.")
    ] = None,
    problems: Annotated[
        str | None, typer.Option(metavar="DATA", help="Problems to try. Default: those practised.")
    ] = None,
    k: Annotated[
        int | None, typer.Option(min=2, max=4096, help="Tries of each. Default: all alike.")
    ] = None,
    from_practice: Annotated[
        bool, typer.Option("--from-practice", help="Only what practice with dropout tells.")
    ] = False,
    offer: Annotated[
        bool, typer.Option("--offer", help="Ask a reviewer to delete what can go.")
    ] = False,
    dry_run: DryRun = False,
    json: AsObject = False,
) -> int:
    """Measure what every experience is worth.

    Each try carries a random half of them, so that all are told at once. What practice with
    `practice.dropout` has shown is told for free where no try is asked for.

    Examples:
        studio library utility rehearsal --dry-run
        studio library utility rehearsal --rollouts 256 --offer
    """
    from studio.evaluation import utility as worth
    from studio.evaluation.utility import measure_utility, print_utility

    asked = dry_run or any(value is not None for value in (run, rollouts, problems, k))
    if from_practice and asked:
        raise ConfigError("--from-practice", "it makes no tries.", "Leave out what is about tries.")
    workspace = open_workspace(context, masks=True)
    priced = worth.find_priced(reference, workspace)
    found = None if asked else worth.read_practice(priced, workspace)
    if from_practice and found is None:
        cause = "no practice of it left experiences out."
        raise ConflictError(f"library {reference}", cause, "Practise with practice.dropout=0.1.")
    if found is None:
        most, of = rollouts or worth.ROLLOUTS, {"run": run, "problems": problems}
        plan = worth.plan_utility(priced, workspace, **of, rollouts=most, k=k, keyless=dry_run)
        made = measure_utility(priced, *plan, json=json, dry_run=dry_run)
        if isinstance(made, int):
            return made
        found = made
    return print_utility(found, workspace, offer=offer, json=json)


Experience = Annotated[str, typer.Argument(metavar="ID", help="The experience, such as E3.")]
Reason = Annotated[str, typer.Option(help="Why; recorded with the decision.")]


def pin(context: typer.Context, name: Name, experience: Experience, reason: Reason = "") -> None:
    """Pin an experience. Nothing may change or delete it until it is unpinned.

    Examples:
        studio library pin rehearsal E1 --reason "It is right as it is."
    """
    _set_pin(context, name, experience, "pin", reason)


def unpin(context: typer.Context, name: Name, experience: Experience, reason: Reason = "") -> None:
    """Unpin an experience. It may be changed and deleted again.

    Examples:
        studio library unpin rehearsal E1
    """
    _set_pin(context, name, experience, "unpin", reason)


def _set_pin(
    context: typer.Context, name: str, experience: str, kind: Literal["pin", "unpin"], reason: str
) -> None:
    from studio.library.edit import commit_changes
    from studio.library.references import library_folder

    workspace = open_workspace(context, masks=True)
    library_folder(name, workspace)  # it names the libraries there are
    change = (kind, experience, "")
    done = commit_changes(workspace, name, lambda _: [change], person=login_name(), reason=reason)
    print(f"library {name} is at v{done.version}: {experience} is {kind}ned")


def revert(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME@V|NAME@LABEL", help="The version to return to.")
    ],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is recorded with the decisions.")
    ] = "",
) -> None:
    """Make a new version with the texts of an older one. Nothing is lost.

    Examples:
        studio library revert rehearsal@1
        studio library revert rehearsal@0 --reason "start again"
    """
    from engines.pipeline.effect.roll_back import revert_changes
    from studio.facts.next_command import command_after_version
    from studio.library.edit import commit_changes
    from studio.library.references import follow_version

    if "@" not in reference:
        cause = "it is not NAME@V or NAME@LABEL."
        raise ConflictError(reference, cause, "See `studio library history NAME`.")
    workspace = open_workspace(context, masks=True)
    folder, read_version = follow_version(reference, workspace)
    older, name = read_version(), folder.name
    why = reason or f"back to v{older.version}"
    done = commit_changes(workspace, name, revert_changes(older), person=login_name(), reason=why)
    print(f"library {name} is at v{done.version}, with the texts of v{older.version}")
    tell_next(command_after_version(name, done.version), context.obj)
