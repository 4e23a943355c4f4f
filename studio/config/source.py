"""What a command line names to be run or measured: a run file, a run, or a foreign config.

Owns telling them apart, and the refusals of combinations that contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.errors import ConfigError
from studio.config.youtu import Kind, YoutuConfig, youtu_eval, youtu_practice


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
