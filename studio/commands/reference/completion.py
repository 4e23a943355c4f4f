"""`studio completion`: what may stand where the cursor is, for bash, zsh and fish.

The scripts hand the line over in `_STUDIO_COMPLETE` and get a candidate a line, with its meaning
behind a tab. Typer 0.29 has a protocol of its own, which converts the words before it completes:
that loads pydantic, and for the meanings in zsh and fish rich. It took 130 ms of CPU more in bash
and 280 in fish (2026-11, least of 7, on a machine where `studio --help` took 240).
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from typer.core import TyperCommand, TyperGroup

from studio.commands import argument

VARIABLE = "_STUDIO_COMPLETE"
KEYS_FILE = "completion_keys.tsv"
"""Name, choices and meaning of every setting; a test holds it equal to their declarations, whose
import takes 0.2 s."""

Candidates = Iterable[tuple[str, str]]
"""What may stand there, with its meaning; "" where there is none to tell."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "Your shell.")],
) -> None:
    """Print a script that completes words of `studio` at TAB. Its head says where it goes.

    Examples:
        studio completion bash
        studio completion zsh
        studio completion fish
    """
    script = files("studio.commands.reference").joinpath(f"completion.{shell}")
    print(script.read_text(encoding="utf-8"), end="")


def print_candidates(line: str, parser: TyperGroup) -> None:
    """Print what fits at the end of a command line, for a shell."""
    *words, current = _split_words(line)
    for value, meaning in _candidates(words[1:], current, parser):
        # A shell would take a name with a blank for two.
        if value.startswith(current) and value.isprintable() and " " not in value:
            print(f"{value}\t{meaning}" if meaning else value)


def _split_words(line: str) -> list[str]:
    """The last one is the word at the cursor, "" where it is only begun."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return words if words and not (line[-1:].isspace() and not closing) else [*words, ""]
    return ["", ""]


@dataclass(slots=True)
class _Position:
    """Where the cursor stands: in which command, and behind what."""

    command: TyperCommand | TyperGroup
    workspace: Path
    arguments: int = 0  # how many stand there already
    options: list[str] = field(default_factory=list)
    pending: str = ""  # the option whose value comes next


def _candidates(words: Sequence[str], current: str, parser: TyperGroup) -> Candidates:
    at = _find_position(words, parser)
    options = {name: one for one in at.command.params for name in one.opts}
    name, given, _ = current.partition("=")
    if given and name in options:
        found = _values(options[name].metavar, current[len(name) + 1 :], at.workspace)
        return [(f"{name}={value}", meaning) for value, meaning in found]
    if at.pending:
        return _values(options[at.pending].metavar, current, at.workspace)
    if current.startswith("-"):
        listed = [one for one in at.command.params if not getattr(one, "hidden", False)]
        texts = [(o, getattr(one, "help", "") or "") for one in listed for o in one.opts]
        return [(o, text) for o, text in (*texts, ("--help", "")) if o.startswith("-")]
    if isinstance(at.command, TyperGroup):
        return [(n, c.get_short_help_str(80)) for n, c in at.command.commands.items()]
    arguments = [one for one in at.command.params if one.param_type_name == "argument"]
    without_file = {"--resume", "--from-youtu"} & set(at.options)
    number = at.arguments + bool(without_file)
    if number >= len(arguments):
        if not arguments or arguments[-1].nargs != -1:
            return []
        number = len(arguments) - 1
    return _values(arguments[number].metavar, current, at.workspace)


def _find_position(words: Sequence[str], parser: TyperGroup) -> _Position:
    at = _Position(parser, Path(os.environ.get("STUDIO_WORKSPACE") or "practice"))
    for word in words:
        name, given, value = word.partition("=")
        if at.pending or (given and name == "--workspace"):
            if "--workspace" in (at.pending, name):
                at.workspace = Path(value if given else word).expanduser()
            at.pending = ""
        elif word.startswith("-"):
            known = (*at.command.params, *parser.params)  # --workspace stands anywhere
            option = next((one for one in known if name in one.opts), None)
            at.options.append(name)
            if option is not None and not given and not getattr(option, "is_flag", True):
                at.pending = name
        elif isinstance(at.command, TyperGroup) and word in at.command.commands:
            inner = at.command.commands[word]
            assert isinstance(inner, TyperCommand | TyperGroup)
            at.command = inner
        else:
            at.arguments += 1
    return at


def _values(metavar: str | None, current: str, workspace: Path) -> Candidates:
    """What the placeholder of a help text stands for."""
    match metavar:
        case "RUN" | "A B [C…]":
            return _folders(workspace / "runs")
        case "RUNFILE|PRESET":
            from studio.presets import list_presets

            return [*list_presets(), *((str(file), "") for file in sorted(Path().glob("*.yaml")))]
        case "PRESET":
            from studio.presets import list_presets

            return list_presets()
        case "LIBRARY":
            return _folders(workspace / "libraries")
        case "NAME[@V]" | "NAME@V" | "A" | "B" | "AGENT|LIBRARY":
            return _versions(current, workspace)
        case "NAME[@V]|none":
            return [("none", "no experiences"), *_versions(current, workspace)]
        case "NAME[:SPLIT]":
            folders = (workspace / "datasets", Path(str(files("sample_data"))))
            return [(file.stem, "") for folder in folders for file in folder.glob("*.jsonl")]
        case "TOPIC":
            from studio.guide import TOPICS, title_of

            return [(topic, title_of(topic)) for topic in TOPICS]
        case "KEY=VALUE":
            return _assignments(current)
        case "KEY" | "SECTION":
            keys = [(key, meaning) for key, _, meaning in setting_keys()]
            return [*((name, "") for name in {key.rpartition(".")[0] for key, _ in keys}), *keys]
    choices = (metavar or "").split("|") if "|" in (metavar or "") else []
    return [(c.removesuffix("FILE"), "") for c in choices if c[0].islower() or c[0] == "0"]


def _folders(folder: Path) -> Candidates:
    """Those of runs or libraries, the newest first."""
    try:
        found = [(entry.stat().st_mtime, entry.name) for entry in folder.iterdir()]
    except OSError:
        return []
    return [(name, "") for _, name in sorted(found, reverse=True) if name[0] != "."]


def _versions(current: str, workspace: Path) -> Candidates:
    """Libraries; behind `@` the versions of one, and the epochs of a run."""
    name, at, _ = current.partition("@")
    if not at:
        return _folders(workspace / "libraries")
    found = sorted((workspace / "libraries" / name).glob("v*.yaml"))
    numbers = [(f"{name}@{int(f.stem[1:])}", "") for f in found if f.stem[1:].isdecimal()]
    is_run = (workspace / "runs" / name).is_dir()
    return [*numbers, *([(f"{name}@epoch:", "as it stood after an epoch")] if is_run else [])]


def _assignments(current: str) -> Iterator[tuple[str, str]]:
    """Sections first, then the keys of one, then the values of a key."""
    key, given, _ = current.partition("=")
    for name, choices, meaning in setting_keys():
        if given:
            if name == key:
                yield from ((f"{key}={choice}", "") for choice in choices)
        elif "." in current or "." not in name:
            yield f"{name}=", meaning
    if "." not in current:
        sections = dict.fromkeys(
            name.partition(".")[0] for name, *_ in setting_keys() if "." in name
        )
        yield from ((f"{section}.", "") for section in sections)


def setting_keys() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Name, choices and meaning of every setting of a run file that holds a value."""
    text = files("studio.config.settings").joinpath(KEYS_FILE).read_text(encoding="utf-8")
    for line in text.splitlines():
        name, choices, meaning = line.split("\t")
        yield name, tuple(choices.split("|") if choices else ()), meaning
