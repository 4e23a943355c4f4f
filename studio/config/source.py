"""What a command line names to be run or measured: a run file, a run, or a foreign config.

Owns telling them apart, finding a run file, and the refusal of what contradicts itself.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.core.errors import ConfigError, did_you_mean
from studio.config.youtu.checkout import Kind, YoutuConfig, find_youtu_config
from studio.presets import list_presets, preset_path
from studio.secrets.run_files import mask_override


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
    """Tell what is asked for; a refusal names the `command` and a preset to try, `example`.

    `runfile` is the first word of the command line, an override where something else says what to
    run; `resume` is the id of a run, and `from_youtu` the folder of a Youtu-Agent checkout, with
    the name of one of its configs of this `kind`.

    Raises ConfigError: none or several are given, or the checkout has no such config.
    """
    given = list(overrides or [])
    if (resume or from_youtu) is not None and runfile is not None and "=" in runfile:
        given, runfile = [runfile, *given], None
    if from_youtu is None and config_name is not None:
        move = "Give --from-youtu DIR too."
        raise ConfigError("--config-name", "it names a config of a checkout.", move)
    if from_youtu is not None and (resume or runfile) is not None:
        move = f"Leave {'--resume' if resume is not None else 'RUNFILE'} out."
        raise ConfigError("--from-youtu", "it takes the checkout's config.", move)
    if runfile is None and resume is None and from_youtu is None:
        move = f"Try `{command} {example}`, or see `studio presets list`."
        raise ConfigError(command, "it needs a run file or a preset.", move)
    if from_youtu is None:
        return Source(tuple(given), runfile, resume)
    return Source(tuple(given), youtu=find_youtu_config(from_youtu, config_name or "", kind))


def find_run_file(name_or_path: str) -> tuple[Path, bool]:
    """The file of a run file or preset, and whether it is a preset. Raises ConfigError: neither."""
    given = Path(name_or_path).expanduser()
    if given.is_file():
        return given.resolve(), False
    if found := preset_path(name_or_path):
        return found, True
    if "=" in name_or_path:
        cause = "It looks like an override, and no run file stands before it."
        move = "Write the run file or preset first, then key=value."
        raise ConfigError(f"run file '{mask_override(name_or_path)}'", cause, move)
    if os.path.lexists(given):
        raise ConfigError(f'run file "{name_or_path}"', _no_file_text(given), "Give a run file.")
    names = [name for name, _ in list_presets()]
    beside = given.parent if given.parent.is_dir() else Path()
    files = [str(file) for file in beside.glob("*.yaml")]
    cause = "There is no such file and no preset of that name."
    move = f"{did_you_mean(name_or_path, [*names, *files])}Presets: {', '.join(names)}."
    raise ConfigError(f'run file "{name_or_path}"', cause, move)


def _no_file_text(path: Path) -> str:
    if os.path.isdir(path):
        return "It is a folder."
    return "It is a link that leads nowhere." if path.is_symlink() else "It is no file."
