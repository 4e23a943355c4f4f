"""The command line: names and order of the commands, and where errors end.

Each command imports what it needs when it runs, so that `--help` stays instant.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, cast

import typer
from typer.core import TyperCommand, TyperGroup

from engines.core.errors import ConfigError, installed_version
from studio import errors, exit_codes
from studio.commands import control, data, evaluate, library, review, runs, serve, train
from studio.commands import run as screen
from studio.commands.reference import completion, guide
from studio.config.source import translate_flags
from studio.process import harden, open_streams, silence_stream
from studio.secrets import output, run_files
from studio.secrets.sanitize import sanitize

AnyCommand = TyperCommand | TyperGroup

app = typer.Typer(
    name="studio",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def studio(
    context: typer.Context,
    workspace: Annotated[
        Path,
        typer.Option(
            envvar="STUDIO_WORKSPACE",
            readable=False,  # `_check_workspace` says more
            help="Folder of runs, libraries and data sets; before or after the command.",
        ),
    ] = Path("practice"),
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    """Make a language-model agent better at a kind of task by practice.

    Alone it opens the screen on what there is to do, or prints that where there is no terminal.

    Examples:
        studio
        studio headless rehearsal
        studio --workspace elsewhere runs
    """
    if show_version:
        print(f"practice-studio {installed_version('practice-studio')}")
        raise typer.Exit
    context.obj = _check_workspace(workspace.expanduser())
    if context.invoked_subcommand is None:
        raise typer.Exit(screen.home(context.obj))


def _check_workspace(path: Path) -> Path:
    """Refuse what cannot become a folder; one that is not there yet is made when needed."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise ConfigError(
            f"workspace {path}",
            "it is no folder, or a link to none.",
            "Choose another one with --workspace DIR.",
        )
    if os.path.lexists(path) and not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(
            f"workspace {path}",
            "it cannot be read.",
            "Mend its permissions or choose another one with --workspace DIR.",
        )
    return path


COMMANDS: dict[str, typer.Typer | Callable[..., object]] = {
    "demo": screen.demo,
    "init": guide.init,
    "try": evaluate.try_once,
    "run": screen.run,
    "attach": screen.attach,
    "headless": screen.headless,
    "ctl": control.app,
    "review": review.review,
    "gate": review.gate,
    "eval": evaluate.evaluate,
    "compare": evaluate.compare,
    "sweep": evaluate.sweep,
    "diff": library.diff,
    "query": library.query,
    "library": library.app,
    "data": data.app,
    "runs": runs.app,
    "presets": guide.presets,
    "report": runs.report,
    "train": train.train,
    "export": train.export,
    "chat": serve.chat,
    "serve": serve.serve_calls,
    "rehearsal": serve.app,
    "doctor": runs.doctor,
    "guide": guide.guide,
    "config": guide.config_app,
    "version": guide.version,
    "completion": completion.completion,
}
"""In the order of the help: a function, or a group of its own."""

for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def run(arguments: Sequence[str]) -> int:
    """Carry a command line out and return its exit code; bugs are raised.

    From the start no secret of the environment is printed, and none of a run file once that
    has been read.
    """
    output.forget()
    output.remember(run_files.environment_secrets())
    with output.mask_output():
        try:
            return _carry_out(arguments)
        except BaseException as error:
            if (described := errors.describe_error(error)) is None:
                raise  # a bug
            text, code = described
            if text:
                _tell(text)
            return code


def _carry_out(arguments: Sequence[str]) -> int:
    words = translate_flags(name_file(name_subcommand(move_workspace_first(arguments))))
    if (code := _run_without_parser(words)) is not None:
        return code
    try:
        result = build_parser().main(words, prog_name="studio", standalone_mode=False)
    except typer.TyperException as error:
        if getattr(error, "ctx", 0) is None:  # an option without its value names no command
            command, path = _named_command(words)
            vars(error)["ctx"] = typer.Context(command, info_name=path)
        raise
    return result if isinstance(result, int) else exit_codes.DONE


def _named_command(words: Sequence[str]) -> tuple[AnyCommand, str]:
    found: AnyCommand = build_parser()
    path = "studio"
    for word in words:
        if isinstance(found, TyperGroup) and word in found.commands:
            found, path = cast("AnyCommand", found.commands[word]), f"{path} {word}"
    return found, path


@cache
def build_parser() -> TyperGroup:
    """Of all commands; once a process, since it reads the signature of each."""
    group = typer.main.get_group(app)
    for _, command in walk_commands(group):
        # Examples stand in a docstring, beside the code; in a help their lines stay as they are.
        text, found, examples = (command.help or "").partition("Examples:\n")
        if found:
            command.help, command.epilog = text, f"\b\nExamples:\n{examples}"
    return group


def walk_commands(group: TyperGroup, path: str = "studio") -> Iterator[tuple[str, AnyCommand]]:
    """Every command below and with a group, by the words that name it."""
    yield path, group
    for name, command in group.commands.items():
        words = f"{path} {name}"
        if isinstance(command, TyperGroup):
            yield from walk_commands(command, words)
        elif isinstance(command, TyperCommand):
            yield words, command


def _run_without_parser(words: Sequence[str]) -> int | None:
    """Carry out what needs no parser: home, and what a shell prompt may call all day."""
    folder = os.environ.get("STUDIO_WORKSPACE") or "practice"
    if words[:1] == ["--workspace"] and len(words) > 1:
        folder, words = words[1], words[2:]
    place, status = Path(folder).expanduser(), control.parse_status(words)
    try:
        if not words:
            return screen.home(_check_workspace(place))
        is_done = status is not None and control.print_status(place, *status)
        return exit_codes.DONE if is_done else None
    except BrokenPipeError:  # `head` has read enough
        silence_stream(sys.stdout)
        return exit_codes.DONE


def _tell(text: str) -> None:
    with suppress(OSError):  # stderr is closed or full: the exit code still says it
        place = "" if text.startswith(("studio ", "studio:")) else "studio: "
        print(f"{place}{sanitize(text)}", file=sys.stderr, flush=True)


def move_workspace_first(arguments: Sequence[str]) -> list[str]:
    """Move `--workspace DIR` to the front, since it may stand behind the command too."""
    front: list[str] = []
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        word = queue.pop(0)
        if word == "--":
            rest += [word, *queue]
            break
        if word == "--workspace" and queue:
            front = [word, queue.pop(0)]
        elif word.startswith("--workspace="):
            front = [word]
        else:
            rest.append(word)
    return front + rest


_ALONE = {
    **dict.fromkeys(("config", "data", "library", "presets", "runs"), "list"),
    "ctl": "status",
    "rehearsal": "--help",
}
"""What a group does without a word behind it, or with options alone."""


def name_subcommand(words: Sequence[str]) -> list[str]:
    """`studio runs --json` is `studio runs list --json`."""
    at = {"--workspace": 2, "--workspace=": 1}.get("".join(words[:1])[:12], 0)
    rest = words[at + 1 :]
    alone = not rest or (rest[0].startswith("-") and rest[0] not in ("-h", "--help"))
    default = _ALONE.get("".join(words[at : at + 1])) if alone else None
    return [*words[: at + 1], *([default] if default else []), *rest]


def name_file(words: Sequence[str]) -> list[str]:
    """`studio review --json FILE.json` is `studio review --json --decisions FILE.json`."""
    found = list(words)
    if "review" in words[:3]:
        for at, (word, following) in enumerate(pairwise(found)):
            if word == "--json" and (following == "-" or following.endswith(".json")):
                found.insert(at + 1, "--decisions")
                break
    return found


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(10_000)  # what is read stays: at 700, as usual, it is searched all the time
    harden()
    open_streams()
    if (line := os.environ.get(completion.VARIABLE)) is not None:  # a shell asks at TAB
        code = exit_codes.DONE
        with suppress(BrokenPipeError):
            completion.print_candidates(line, build_parser())
    else:
        output.mask_tracebacks()
        code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stream(sys.stdout)
    except OSError as error:
        silence_stream(sys.stdout)
        code = exit_codes.USER_ERROR
        _tell(errors.os_error_text(error))
    try:
        sys.stderr.flush()
    except OSError:
        silence_stream(sys.stderr)  # Python would exit with another code
    sys.exit(code)
