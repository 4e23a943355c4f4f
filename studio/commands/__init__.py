"""What commands share: options and arguments of one meaning, and the workspace."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from engines.record.cassette import Tape
    from engines.record.run_dir import Workspace


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help)


def flag(help: str, *names: str) -> Any:
    """An option of a plain name, whose placeholder is that of its type."""
    return typer.Option(*names, help=help)


AsJson = Annotated[bool, flag("Print JSON on stdout.", "--json")]
AsObject = Annotated[bool, flag("Print one JSON object on stdout.", "--json")]
EventsAsJson = Annotated[
    bool, flag("Print the stream of events on stdout, a JSON object a line.", "--json")
]
Run = Annotated[str, argument("RUN", "Id of a run, as `studio runs` lists it.")]
NewestRun = Annotated[
    str | None,
    argument("RUN", "Id of a run. Default: the newest living run, else the newest."),
]
RunFile = Annotated[
    str | None,
    argument("RUNFILE|PRESET", "A run file, or a preset (`studio presets`)."),
]
Overrides = Annotated[
    list[str] | None,
    argument("KEY=VALUE", "Settings instead of the file's (`studio config list`)."),
]
Name = Annotated[str | None, option("NAME", "Name of the run. Default: exp_id.")]
RestartStep = Annotated[
    str | None,
    option(
        "null|0|N",
        "null resumes the newest run of the name, 0 starts a new one, N starts a new one "
        "that adopts the first N steps. Default: practice.restart_step, usually null.",
    ),
]
AcceptChanges = Annotated[
    bool,
    flag("Resume a run although settings that change results differ.", "--accept-changes"),
]
FromYoutu = Annotated[str | None, option("DIR", "Use a config of this Youtu-Agent checkout.")]
ConfigName = Annotated[
    str | None,
    option("NAME", "Which of its configs of this kind, as math/NAME."),
]
TokenFile = Annotated[Path | None, option("FILE", "File with the token of clients, 16 characters.")]
TokenEnv = Annotated[str | None, option("VARIABLE", "Environment variable that holds it.")]
Record = Annotated[
    Path | None,
    option("FILE", "Keep every reply of models and tools in this new file.", "--record"),
]
PlayedCassette = Annotated[
    Path | None,
    option(
        "FILE",
        "Take every reply from such a file: nothing is asked, and it costs nothing.",
        "--cassette",
    ),
]
DryRun = Annotated[bool, flag("Only print what it would cost; nothing is asked.", "--dry-run")]


def choose_form(json: bool, form: str | None) -> str:
    """`--format`, which `--json` must not contradict."""
    if json and form not in (None, "json"):
        from engines.core.errors import ConfigError

        raise ConfigError("--json", f"it contradicts --format {form}.", "Leave one of the two out.")
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

        raise ConfigError(
            "--record", "what --cassette plays is recorded already.", "Leave one of the two out."
        )
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

        raise ConfigError(
            "the package mcp", "it is not installed.", f"Run: {install_command('mcp')}"
        )
