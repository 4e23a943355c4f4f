"""Which version of a library is in use, and serving it to agents."""

from __future__ import annotations

from typing import Annotated

import typer

from studio.process import login_name


def label(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="NAME[@V]", help="A version of a library. Default: its head.")
    ],
    label: Annotated[str, typer.Argument(metavar="LABEL", help="What it is called from now on.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Take the label away.")] = False,
) -> None:
    """Call a version by a label. NAME@LABEL then names it wherever a version is named.

    Examples:
        studio library label rehearsal@1 production --reason "62 % on AIME24"
        studio library label rehearsal@production stable
        studio library label rehearsal stable --remove
    """
    from studio.library.edit import set_label
    from studio.secrets.workspace import masking_workspace

    workspace = masking_workspace(context.obj)
    print(set_label(workspace, reference, label, person=login_name(), reason=reason, remove=remove))
