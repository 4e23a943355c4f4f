"""What an exception means for whoever typed the command: place, cause, next move, exit code.

Only what a person can act on is described. Everything else is a bug and ends in a traceback.
"""

import errno
import os
from typing import Any

import typer

from engines.core.errors import AnswersPending, StudioError, did_you_mean, suggest_name
from studio import exit_codes

_MOVES = {
    errno.ENOSPC: "Make room and try again.",
    errno.EDQUOT: "Make room and try again.",
    errno.EACCES: "Change its permissions and try again.",
    errno.EPERM: "Change its permissions and try again.",
    errno.EROFS: "Choose a place that can be written to.",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ELOOP: "Remove the link, or give another name.",
    errno.EISDIR: "Give a file, or move the folder out of the way.",
    errno.ENOTDIR: "Give another place: a part of the path is not a folder.",
    errno.EINVAL: "Give another name.",
    errno.EIO: "Check the disk, then try again.",
    errno.EBADF: "Leave the stream open, or send it to /dev/null.",
    errno.ENOENT: "Check where it should be, then try again.",
}


def describe_error(error: BaseException) -> tuple[str, int] | None:
    """The message, "" where none is needed, and the exit code; None for a bug."""
    match error:
        case AnswersPending():
            return str(error), exit_codes.ANSWERS_PENDING
        case StudioError():
            return str(error), exit_codes.USER_ERROR
        case typer.TyperException():
            return usage_error_text(error), exit_codes.USER_ERROR
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted; what was recorded is kept", exit_codes.INTERRUPTED
        # Without a file's name only the errors of a stream are the user's to correct.
        case OSError() if error.filename is not None or error.errno in _MOVES:
            return os_error_text(error), exit_codes.USER_ERROR
        case RecursionError():
            return (
                "input: it is nested too deeply to be read. Write it flatter.",
                exit_codes.USER_ERROR,
            )
        case RuntimeError() if str(error).startswith("Symlink loop"):  # of pathlib
            return f"{error}: it leads in a circle. Remove the link.", exit_codes.USER_ERROR
        # typer exits with 1 when the reader of our output is gone; `head` is no bug of ours.
        case SystemExit() if isinstance(error.__context__, BrokenPipeError):
            return "", exit_codes.DONE
    return None


def os_error_text(error: OSError) -> str:
    """Place, cause and next move of what the operating system refused."""
    # Only writing to a stream reports no name.
    place = "standard output" if error.filename is None else os.fsdecode(error.filename)
    move = _MOVES.get(error.errno or 0, "Correct it and try again.")
    return f"{place}: {error.strerror or error}. {move}"


_PLAIN = {
    "a valid tuple": "a list",  # what pydantic says
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
    "Input should be a valid integer": "it must be a whole number",
    "Input should be a valid number": "it must be a number",
    "Input should be greater than or equal to": "it must be at least",
    "Input should be less than or equal to": "it must be at most",
    "Input should be greater than": "it must be above",
    "Input should be less than": "it must be below",
    "Input should be": "it must be",
    "Value error, ": "",
}


def plain_words(refusal: str) -> str:
    """A refusal of pydantic, which typer and run files share, in the words of the bounds."""
    for theirs, ours in _PLAIN.items():
        refusal = refusal.replace(theirs, ours)
    return refusal


def _unknown_command_text(context: typer.Context, name: str) -> str:
    """What to type instead of a word that is no command of this group."""
    known: dict[str, Any] = getattr(context.command, "commands", {})
    inside = [group for group, found in known.items() if name in getattr(found, "commands", ())]
    if inside:
        move = f"Did you mean {' or '.join(f'`studio {group} {name}`' for group in inside)}?"
    else:  # the commands of all are too many for a line
        move = (suggest_name if context.parent else did_you_mean)(name, known)
    return f"No such command '{name}'. {move.strip()}"


def usage_error_text(error: typer.TyperException) -> str:
    """What is wrong with the words of a command, as place, cause and next move."""
    context = getattr(error, "ctx", None)
    place = context.command_path if context is not None else "studio"
    described = plain_words(getattr(error, "format_message", error.__str__)())
    described = " ".join(described.split())  # choices come a line each
    if context is not None and described.startswith("No such command"):
        described = _unknown_command_text(context, described.split("'")[1])
    if described.startswith("Usage:"):  # a group without one of its commands shows its help
        described = "it needs one of its commands"
    cause, _, hint = described.partition(". ")
    more = f" {hint.rstrip('.')}." if hint and not hint.endswith("?") else f" {hint}".rstrip()
    return f"{place}: {cause.rstrip('.')}.{more} See `{place} -h`."
