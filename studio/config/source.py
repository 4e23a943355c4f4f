"""What a command line names to be run or measured: a run file, a run, or a foreign config.

Owns telling them apart, where a run file is found, and the refusals of combinations that
contradict each other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from engines.core.errors import ConfigError
from studio.config.youtu import Kind, YoutuConfig, youtu_eval, youtu_practice
from studio.presets import list_presets, preset_path
from studio.secrets.rules import mask_override


@dataclass(frozen=True, slots=True)
class Source:
    """Exactly one of `runfile`, `resume` and `youtu` is given."""

    overrides: tuple[str, ...]
    runfile: str | None = None
    resume: str | None = None
    youtu: YoutuConfig | None = None


def parse_source(
    command: str,
    kind: Kind,
    runfile: str | None,
    overrides: Sequence[str] | None,
    *,
    resume: str | None = None,
    from_youtu: str | None = None,
    config_name: str | None = None,
    example: str = "rehearsal",
) -> Source:
    """Tell what is asked for.

    Args:
        command: what to call it in a refusal.
        kind: which of a Youtu-Agent checkout's configs are meant.
        runfile: the first word of the command line; an override where something else says
            what to run.
        overrides: the other words.
        resume: the id of a run.
        from_youtu: the folder of a checkout.
        config_name: which of its configs.
        example: a preset to try.

    Raises:
        ConfigError: none or several are given, or the checkout has no such config.
    """
    given = list(overrides or [])
    if (resume or from_youtu) is not None and runfile is not None and "=" in runfile:
        given, runfile = [runfile, *given], None
    if from_youtu is None and config_name is not None:
        raise ConfigError(
            "--config-name", "it names a config of a checkout.", "Give --from-youtu DIR too."
        )
    if from_youtu is not None and (resume or runfile) is not None:
        raise ConfigError(
            "--from-youtu",
            "it takes the checkout's config.",
            f"Leave {'--resume' if resume is not None else 'RUNFILE'} out.",
        )
    if runfile is None and resume is None and from_youtu is None:
        raise ConfigError(
            command,
            "it needs a run file or a preset.",
            f"Try `{command} {example}`, or see `studio presets list`.",
        )
    youtu = None
    if from_youtu is not None:
        find = youtu_practice if kind == "practice" else youtu_eval
        youtu = find(from_youtu, config_name or "")
    return Source(tuple(given), runfile, resume, youtu)


def find_run_file(name_or_path: str) -> tuple[Path, bool]:
    """The file of a run file or preset, and whether it is a preset.

    Raises:
        ConfigError: there is neither; names the nearest.
    """
    given = Path(name_or_path).expanduser()
    if given.is_file():
        return given.resolve(), False
    if found := preset_path(name_or_path):
        return found, True
    if "=" in name_or_path:
        raise ConfigError(
            f"run file '{mask_override(name_or_path)}'",
            "It looks like an override, and no run file stands before it.",
            "Write the run file or preset first, then key=value.",
        )
    if os.path.lexists(given):
        raise ConfigError(f'run file "{name_or_path}"', _no_file_text(given), "Give a run file.")
    names = [name for name, _ in list_presets()]
    beside = given.parent if given.parent.is_dir() else Path()
    close = get_close_matches(given.name, [*names, *(f.name for f in beside.glob("*.yaml"))], n=1)
    raise ConfigError(
        f'run file "{name_or_path}"',
        "There is no such file and no preset of that name.",
        f'Did you mean "{close[0]}"?' if close else f"Presets: {', '.join(names)}.",
    )


def _no_file_text(path: Path) -> str:
    if os.path.isdir(path):
        return "It is a folder."
    return "It is a link that leads nowhere." if path.is_symlink() else "It is no file."
