"""A text edited in the person's own editor."""

from __future__ import annotations

import click

from engines.core.errors import ConfigError


def edit_text(text: str) -> str | None:
    """Open $VISUAL or $EDITOR on a text; None when it was not saved."""
    try:
        return click.edit(text, extension=".txt")
    except click.ClickException as error:
        raise ConfigError(
            "$EDITOR",
            f"{error.message}.",
            "Set it to an editor that is installed, or give the text on the command line.",
        ) from error
