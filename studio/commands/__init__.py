"""What commands share: options and arguments of one meaning, and the workspace."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from engines.record.cassette import Tape
    from engines.record.run_dir import Workspace

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
AsObject = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
EventsAsJson = Annotated[
    bool, typer.Option("--json", help="Print the stream of events on stdout, a JSON object a line.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, as `studio runs` lists it.")]
NewestRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="Id of a run. Default: the newest living run, else the newest."
    ),
]
RunFile = Annotated[
    str | None,
    typer.Argument(metavar="RUNFILE|PRESET", help="A run file, or a preset (`studio presets`)."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Settings instead of the file's (`studio config list`)."
    ),
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the run. Default: exp_id.")]
RestartStep = Annotated[
    str | None,
    typer.Option(
        metavar="null|0|N",
        help="null resumes the newest run of the name, 0 starts a new one, N starts a new one "
        "that adopts the first N steps. Default: practice.restart_step, usually null.",
    ),
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Resume a run although settings that change results differ."
    ),
]
FromYoutu = Annotated[
    str | None, typer.Option(metavar="DIR", help="Use a config of this Youtu-Agent checkout.")
]
ConfigName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which of its configs of this kind, as math/NAME."),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the token of clients, 16 characters.")
]
TokenEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds it.")
]
Record = Annotated[
    Path | None,
    typer.Option(
        "--record", metavar="FILE", help="Keep every reply of models and tools in this new file."
    ),
]
PlayedCassette = Annotated[
    Path | None,
    typer.Option(
        "--cassette",
        metavar="FILE",
        help="Take every reply from such a file: nothing is asked, and it costs nothing.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print what it would cost; nothing is asked.")
]


def choose_form(json: bool, form: str | None) -> str:
    """`--format`, which `--json` must not contradict."""
    if json and form not in (None, "json"):
        from engines.core.errors import ConfigError

        cause = f"it contradicts --format {form}."
        raise ConfigError("--json", cause, "Leave one of the two out.")
    return "json" if json else form or "text"


def open_workspace(context: typer.Context, *, masks: bool = False) -> "Workspace":
    """`masks`: nothing is written into it that holds a secret, see `masking_workspace`."""
    if masks:
        from studio.secrets.workspace import masking_workspace

        return masking_workspace(context.obj)
    from engines.record.run_dir import Workspace  # a good third of the start of `ctl status`

    return Workspace(context.obj)


def read_tape(record: Path | None, cassette: Path | None) -> "Tape | None":
    """The cassette that is to be recorded or played."""
    path = record or cassette
    if path is None:
        return None
    from engines.record.cassette import Tape

    if record is not None and cassette is not None:
        from engines.core.errors import ConfigError

        cause = "what --cassette plays is recorded already."
        raise ConfigError("--record", cause, "Leave one of the two out.")
    return Tape(path.expanduser().absolute(), plays=record is None)


def ask_line(prompt: str) -> str | None:
    """A line of standard input; None at its end."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    if not (line and sys.stdin.isatty()):  # nothing else has ended the prompt's line
        print()
    return line.rstrip("\n") if line else None


def require_mcp() -> None:
    """Refuse to serve by MCP where its SDK is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        from engines.core.errors import ConfigError, install_command

        move = f"Run: {install_command('mcp')}"
        raise ConfigError("the package mcp", "it is not installed.", move)
