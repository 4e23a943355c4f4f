"""A checkout of Youtu-Agent: where its parts lie, and the options of its own programs.

`run_training_free_GRPO.py` and `run_eval.py` have options in --snake_case; here each is an override
of the field that it sets there, or an option of ours.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.core.errors import ConfigError, suggest_name
from engines.data.source import is_database
from studio.config.env_file import read_env_file

Kind = Literal["practice", "eval"]


@dataclass(frozen=True, slots=True)
class YoutuConfig:
    """One config of a checkout. `root` is the checkout, `file` the config in it."""

    root: Path
    file: Path
    kind: Kind

    def data_roots(self, environ: Mapping[str, str], notes: list[str]) -> tuple[Path, ...]:
        """Where its data sets are looked up; `notes` is told of a database that is not read."""
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
        move = "Give the folder of a Youtu-Agent checkout, or its configs folder."
        raise ConfigError(f"--from-youtu {folder}", f"There is no configs/{kind} in it.", move)
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
