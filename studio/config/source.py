"""What a command line names to be run or measured: a run file, a run, or a foreign config.

Owns telling them apart, finding a run file, where the parts of a Youtu-Agent checkout lie, reading
`.env` files, and the options of its own programs: each is an override of the field that it sets
there, or one of ours.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from engines.core.errors import ConfigError, did_you_mean, suggest_name
from engines.core.frozen import frozen
from studio.presets import list_presets, preset_path
from studio.secrets.run_files import mask_override

Kind = Literal["practice", "eval"]


@frozen
class YoutuConfig:
    """One config of a checkout. `root` is the checkout, `file` the config in it."""

    root: Path
    file: Path
    kind: Kind

    def data_roots(self, environ: Mapping[str, str], notes: list[str]) -> tuple[Path, ...]:
        """Where its data sets are looked up; `notes` is told of a database that is not read."""
        from engines.data.source import is_database  # takes 5 ms, and every command loads this file

        folders = (self.root / "utu" / "practice" / "dataset", self.root / "data")
        scheme, _, path = (environ.get("UTU_DB_URL") or "sqlite:///test.db").partition(":///")
        if not scheme.startswith("sqlite"):
            move = "add its data sets as files: studio data add FILE --name NAME"
            notes.append(f"the database that UTU_DB_URL names is not read; {move}")
        elif is_database(self.root / path):
            return (*folders, self.root / path)
        return folders

    @property
    def verifiers(self) -> Path:
        return self.root / "utu" / "practice" / "verify"

    def agent_file(self, name: str) -> Path:
        """`agents/NAME.yaml` of its configs. Raises ConfigError: none."""
        configs = self.root / "configs"
        home = (configs if configs.is_dir() else self.root) / "agents"
        return _find_file(home, name.removeprefix("agents/"), "agent_config")

    @property
    def env_file(self) -> Path:
        return self.root / ".env"

    def environment(self) -> dict[str, str]:
        """What `.env` sets; empty where there is none. Raises ConfigError: it cannot be read."""
        return read_env_file(self.env_file, foreign=True)


def find_youtu_config(folder: str, name: str, kind: Kind) -> YoutuConfig:
    """`configs/KIND/NAME.yaml` of a checkout or its configs folder. Raises ConfigError: none."""
    given = Path(folder).expanduser().resolve()
    configs = given if (given / kind).is_dir() else given / "configs"
    home = configs / kind
    if not home.is_dir():
        raise ConfigError(
            f"--from-youtu {folder}",
            f"There is no configs/{kind} in it.",
            "Give the folder of a Youtu-Agent checkout, or its configs folder.",
        )
    file = _find_file(home, name, "--config-name")
    root = configs.parent if configs.name == "configs" else configs
    return YoutuConfig(root, file, kind)


def _find_file(home: Path, name: str, option: str) -> Path:
    file = (home / f"{name.removesuffix('.yaml')}.yaml").resolve()
    if file.is_file() and file.is_relative_to(home):
        return file
    names = sorted(str(f.relative_to(home).with_suffix("")) for f in home.glob("**/*.yaml"))
    cause = f"There is no {name}.yaml in {home}." if name else f"It names a config of {home}."
    raise ConfigError(f"{option} {name}" if name else option, cause, suggest_name(name, names))


_PRACTICE = {
    "": "config_name agent_config",
    "practice.": "epochs batch_size grpo_n rollout_concurrency rollout_temperature task_timeout "
    "rollout_data_truncate shuffle_data restart_step do_eval eval_strategy eval_steps "
    "eval_data_truncate agent_objective learning_objective num_experiences_per_query",
    "data.": "practice_dataset_name",
    "evaluation.": "verify_filename verify_func_name pass_k",
}
_EVAL = {"": "config_name exp_id concurrency judge_concurrency", "data.": "dataset"}
_RENAMED = {
    "experiment_name": "exp_id",
    "dataset_type": "data.type",
    "agent_model": "agent.model.model_provider.model",
}
_FIELDS = {"headless": _PRACTICE, "eval": _EVAL}
_PLAIN = re.compile(r"[\w./@:-]+")


def translate_flags(words: Sequence[str]) -> list[str]:
    """A command line with `--from-youtu` in our words; any other as it is.

    An option that neither has is left for our parser to refuse. Raises ConfigError: one of theirs
    has no value.
    """
    command = next((word for word in words if word in _FIELDS), "")
    if not command or not any(word.partition("=")[0] == "--from-youtu" for word in words):
        return list(words)
    fields = _FIELDS[command].items()
    keys = _RENAMED | {name: f"{at}{name}" for at, names in fields for name in names.split()}
    queue, found = list(words), list[str]()
    while queue:
        word = queue.pop(0)
        name, given, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in keys:
            found.append(word)
            continue
        following = queue[0] if queue else "--"
        if not given and name == "do_eval" and following.lower() not in ("true", "false"):
            value = "true"
        elif not given and following.startswith("--"):
            raise ConfigError(word, "its value is missing.", f"Write {word} VALUE.")
        elif not given:
            value = queue.pop(0)
        if name == "config_name":
            found += ["--config-name", value]
        else:
            quoted = json.dumps(value, ensure_ascii=False)
            found.append(f"{keys[name]}={value if _PLAIN.fullmatch(value) else quoted}")
    return found


@frozen
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
        raise ConfigError(
            f"run file '{mask_override(name_or_path)}'",
            "It looks like an override, and no run file stands before it.",
            "Write the run file or preset first, then key=value.",
        )
    if os.path.lexists(given):
        raise ConfigError(f'run file "{name_or_path}"', "It is no file.", "Give a run file.")
    names = [name for name, _ in list_presets()]
    beside = given.parent if given.parent.is_dir() else Path()
    files = [str(file) for file in beside.glob("*.yaml")]
    raise ConfigError(
        f'run file "{name_or_path}"',
        "There is no such file and no preset of that name.",
        f"{did_you_mean(name_or_path, [*names, *files])}Presets: {', '.join(names)}.",
    )


def read_env_file(path: Path, *, foreign: bool = False) -> dict[str, str]:
    """What it sets; empty where there is none. `export`, quotes and comments as in a shell.

    Variables inside a value are not expanded. Lines of a `foreign` file that are nothing of all
    this are passed over.

    Raises ConfigError: it cannot be read, or a line of it cannot. Neither quotes the file: it holds
    keys.
    """
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = type(error).__name__
        raise ConfigError(
            str(path), f"It cannot be read ({reason}).", "Save it as UTF-8 text."
        ) from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        assigned = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", line)
        quoted = (
            re.match(r"""(['"])(.*?)(?<!\\)\1\s*(?:#.*)?$""", assigned[2]) if assigned else None
        )
        if assigned and quoted:
            found[assigned[1]] = quoted[2]
        elif assigned and (foreign or assigned[2][:1] not in ("'", '"')):
            # As in a shell, a `#` inside a word is part of it: URL#part stays whole.
            found[assigned[1]] = re.sub(r"(^|\s+)#.*$", "", assigned[2]).strip()
        elif not foreign and line.strip() and not line.lstrip().startswith("#"):
            cause = "a quote does not end on its line." if assigned else "it is not NAME=VALUE."
            raise ConfigError(f"{path}:{number}", cause, "Correct it, or write # in front of it.")
    return found
