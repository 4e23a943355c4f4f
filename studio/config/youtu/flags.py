"""The options of Youtu-Agent's own programs, in front of a config of its checkout.

`run_training_free_GRPO.py` and `run_eval.py` have them in --snake_case; here each is an override of
the field that it sets there, or an option of ours.
"""

import json
import re
from collections.abc import Sequence

from engines.core.errors import ConfigError

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
