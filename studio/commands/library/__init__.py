"""`studio library`: what was learned, how it came about, and changes by hand."""

from __future__ import annotations

import typer

from studio.commands.library import change, publish, read, travel

app = typer.Typer(no_args_is_help=True)


@app.callback()
def library() -> None:
    """Show what was learned, and change it by hand. Alone it lists the libraries.

    Examples:
        studio library
        studio library show rehearsal
    """


app.command("list")(read.list_libraries)
app.command("show")(read.show)
app.command("history")(read.history)
app.command("edit")(change.edit)
app.command("utility")(change.utility)
app.command("pin")(change.pin)
app.command("unpin")(change.unpin)
app.command("revert")(change.revert)
app.command("label")(publish.label)
app.command("serve")(publish.serve)
app.command("export")(travel.export)
app.command("import")(travel.import_file)
app.command("merge")(travel.merge)
