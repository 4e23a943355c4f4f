"""Builds folders laid out as a Youtu-Agent checkout, with configs as it writes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

GONE = object()
"""As a change: the key is not there."""

_FILES: dict[str, tuple[str, list[str]]] = {
    "practice": ("practice/math_reasoning.yaml", ["/eval/math/math_set@evaluation", "_self_"]),
    "eval": ("eval/math/math_set.yaml", ["/agents/practice/math_agent@agent", "_self_"]),
    "agent": (
        "agents/practice/math_agent.yaml",
        ["/model/base@model", "/tools/python_executor@toolkits.python_executor", "_self_"],
    ),
    "model": ("model/base.yaml", []),
    "tool": ("tools/python_executor.yaml", []),
}

_BASE: dict[str, dict[str, Any]] = {
    "practice": {
        "exp_id": "math_practice",
        "practice": {
            "epochs": 1,
            "batch_size": 2,
            "grpo_n": 3,
            "rollout_concurrency": 8,
            "rollout_temperature": 0.7,
            "task_timeout": 3600,
            "do_eval": False,
            "eval_strategy": "epoch",
            "restart_step": None,
            "rollout_data_truncate": 4,
            "eval_data_truncate": 2,
            "agent_objective": "input: A sum\noutput: Its solution",
            "learning_objective": "Find rules for sums.",
            "num_experiences_per_query": 1,
        },
        "data": {"practice_dataset_name": "arithmetic"},
    },
    "eval": {
        "exp_id": "math_eval",
        "data": {"dataset": "arithmetic-heldout", "type": "single"},
        "concurrency": 8,
        "pass_k": 1,
    },
    "agent": {
        "agent": {"name": "math_agent", "instructions": "Solve it. End with #### answer"},
        "max_turns": 50,
        "model": {"model_settings": {"temperature": 0.2, "top_p": 0.95}},
    },
    "model": {
        "model_provider": {
            "type": "${oc.env:UTU_LLM_TYPE}",
            "model": "${oc.env:UTU_LLM_MODEL}",
            "base_url": "${oc.env:UTU_LLM_BASE_URL}",
            "api_key": "${oc.env:UTU_LLM_API_KEY,none}",
        },
    },
    "tool": {"mode": "builtin", "name": "python_executor"},
}

ENV = {
    "UTU_LLM_TYPE": "chat.completions",
    "UTU_LLM_MODEL": "rehearsal",
    "UTU_LLM_BASE_URL": "http://127.0.0.1:9/v1",
    "UTU_LLM_API_KEY": "sk-from-the-file",
}

_VERIFIERS = {
    "mine.py": """\
from utu.db import EvaluationSample


def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    return {"reward": 1.0, "reasoning": "all are right"}


def never(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    return {"reward": 0.0, "reasoning": None}
""",
    "half.py": """\
from utu.db import EvaluationSample


def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    return {"reward": 0.5, "reasoning": None}
""",
}


def checkout(
    folder: Path, changes: Mapping[str, object] | None = None, env: Mapping[str, str] = ENV
) -> Path:
    """Write a checkout and return its folder.

    Args:
        folder: made here.
        changes: `FILE.dotted.key` → value, with FILE one of practice, eval, agent, model
            and tool; GONE takes a key away.
        env: what its `.env` sets.
    """
    tree = copy.deepcopy(_BASE)
    for name, value in (changes or {}).items():
        _change(tree, name.split("."), value)
    for name, (path, defaults) in _FILES.items():
        text = yaml.safe_dump(tree[name], sort_keys=False)
        if defaults:
            text = yaml.safe_dump({"defaults": defaults}) + "\n" + text
        write(folder / "configs" / path, "# @package _global_\n" + text)
    for path, text in _VERIFIERS.items():
        write(folder / "utu" / "practice" / "verify" / path, text)
    write(folder / ".env", "".join(f'{name}="{value}"\n' for name, value in env.items()))
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _change(tree: dict[str, Any], key: list[str], value: object) -> None:
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
    if value is GONE:
        del tree[key[-1]]
    else:
        tree[key[-1]] = copy.deepcopy(value)
