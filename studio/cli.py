"""The command line: names and order of the commands, where errors end, exit codes.

Owns nothing else. Each command imports what it needs when it runs, so that `--help`
stays instant.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError, StudioError
from studio import exit_codes
from studio.commands import (
    attach,
    control,
    data,
    diff,
    doctor,
    evaluate,
    export,
    headless,
    home,
    library,
    presets,
    rehearsal,
    review,
    runs,
    start,
    train,
)
from studio.commands import run as practise
from studio.process_security import harden
from studio.secrets.output import forget, mask_output, mask_tracebacks, remember
from studio.secrets.rules import environment_secrets
from studio.secrets.sanitize import sanitize

_MOVES = {
    errno.ENOSPC: "Make room and try again.",
    errno.EDQUOT: "Make room and try again.",
    errno.EACCES: "Mend its permissions and try again.",
    errno.EPERM: "Mend its permissions and try again.",
    errno.EROFS: "Choose a place that can be written to.",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ELOOP: "Take the link away, or give another name.",
    errno.EISDIR: "Give a file, or move the folder out of the way.",
    errno.ENOTDIR: "Give another place: something on its way is no folder.",
    errno.EINVAL: "Give another name.",
    errno.EIO: "Look at the disk, then try again.",
    errno.EBADF: "Leave the stream open, or send it to /dev/null.",
    errno.ENOENT: "Look where it should be, then try again.",
}
"""What the files and the disk of the user say: theirs to mend, and no bug."""

app = typer.Typer(
    name="studio",
    help="Make a language-model agent better at a kind of task by practice.",
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
            help="Folder of runs, libraries and data sets; before or after the command.",
        ),
    ] = Path("practice"),
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    """Make a language-model agent better at a kind of task by practice."""
    if version:
        from importlib.metadata import version as installed

        print(f"practice-studio {installed('practice-studio')}")
        raise typer.Exit
    context.obj = _check_workspace(workspace.expanduser())
    if context.invoked_subcommand is None:
        raise typer.Exit(home.home(context.obj))


def _check_workspace(path: Path) -> Path:
    """Refuse what cannot become a folder; one that is not there yet is made when needed."""
    if os.path.lexists(path) and not os.path.isdir(path):
        what = "a link that leads nowhere" if os.path.islink(path) else "no folder"
        if os.path.islink(path) and os.path.exists(path):
            what = "a link to no folder"
        raise ConfigError(
            f"workspace {path}", f"it is {what}.", "Choose another one with --workspace DIR."
        )
    return path


app.command("init")(start.init)
app.command("try")(start.try_once)
app.command("run")(practise.run)
app.command("attach")(attach.attach)
app.command("headless")(headless.headless)
app.add_typer(control.app, name="ctl")
app.command("review")(review.review)
app.command("eval")(evaluate.evaluate)
app.command("diff")(diff.diff)
app.add_typer(library.app, name="library")
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
app.add_typer(presets.app, name="presets")
app.command("train")(train.train)
app.command("export")(export.export)
app.add_typer(rehearsal.app, name="rehearsal")
app.command("doctor")(doctor.doctor)


def run(arguments: Sequence[str]) -> int:
    """Carry a command line out and return its exit code; bugs are raised.

    From its beginning no secret is printed that the environment holds, and none of a run
    file from when that has been read.
    """
    forget()
    remember(environment_secrets())
    with mask_output():
        return _carry_out(arguments)


def _carry_out(arguments: Sequence[str]) -> int:
    words = move_workspace_first(arguments)
    try:
        if _run_without_parser(words):
            return exit_codes.DONE
        command = typer.main.get_command(app)
        result = command.main(words, prog_name="studio", standalone_mode=False)
    except StudioError as error:
        return _report_refusal(str(error))
    except typer.TyperException as error:
        return _report_refusal(_usage_error_text(error))
    except (KeyboardInterrupt, typer.Abort):
        _tell("interrupted; what was recorded is kept")
        return exit_codes.INTERRUPTED
    except OSError as error:
        if error.filename is None and error.errno not in _MOVES:
            raise
        # Without a name it is what is written to without one.
        place = "standard output" if error.filename is None else os.fsdecode(error.filename)
        move = _MOVES.get(error.errno or 0, "Mend it and try again.")
        return _report_refusal(f"{place}: {error.strerror or error}. {move}")
    except RecursionError:
        return _report_refusal("input: it is nested too deeply to be read. Write it flatter.")
    except RuntimeError as error:
        # How a path is told that leads in a circle.
        if not str(error).startswith("Symlink loop"):
            raise
        return _report_refusal(f"{error}: it leads in a circle. Take the link away.")
    except SystemExit as leaving:
        # typer leaves with 1 when the reader of our output left; `head` is no bug of ours.
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return exit_codes.DONE
    return result if isinstance(result, int) else exit_codes.DONE


def _run_without_parser(words: Sequence[str]) -> bool:
    """Carry out what needs no parser: a shell prompt may ask for `ctl status` all day."""
    folder = os.environ.get("STUDIO_WORKSPACE") or "practice"
    if words[:1] == ["--workspace"] and len(words) > 1:
        folder, words = words[1], words[2:]
    asked = control.parse_status(words)
    try:
        return asked is not None and control.print_status(Path(folder).expanduser(), *asked)
    except BrokenPipeError:  # `head` has read enough
        from studio.report.tables import silence_stream

        silence_stream(sys.stdout)
        return True


def _report_refusal(why: str) -> int:
    _tell(sanitize(why))
    return exit_codes.USER_ERROR


def _tell(text: str) -> None:
    with suppress(OSError):  # nobody can be told: the exit code still says it
        print(f"studio: {text}", file=sys.stderr, flush=True)


def _usage_error_text(error: typer.TyperException) -> str:
    """What is wrong with the words of a command, as place, cause and next move."""
    context = getattr(error, "ctx", None)
    place = context.command_path if context is not None else "studio"
    described = getattr(error, "format_message", error.__str__)()
    if described.startswith("Usage:"):  # a group without one of its commands shows its help
        described = "it needs one of its commands"
    cause, _, hint = described.partition(". ")
    more = f" {hint.rstrip('.')}." if hint and not hint.endswith("?") else f" {hint}".rstrip()
    return f"{place}: {cause.rstrip('.')}.{more} See `{place} -h`."


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


def main() -> None:
    """Run the command line and leave with its exit code."""
    from studio.report.tables import silence_stream

    harden()
    _open_streams()
    mask_tracebacks()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an ASCII locale must not end in a traceback
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stream(sys.stdout)
    except OSError as error:
        silence_stream(sys.stdout)
        code = _report_refusal(
            f"standard output: {error.strerror}. {_MOVES.get(error.errno or 0, '')}"
        )
    try:
        sys.stderr.flush()
    except OSError:
        silence_stream(sys.stderr)  # Python would leave with another code
    sys.exit(code)


def _open_streams() -> None:
    """Let streams that were closed at the start go nowhere.

    Else a journal could be opened under their number, and a print would end in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
