"""Other spellings of settings, such as Youtu-Agent's."""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.config.aliases import ALIASES
from studio.config.settings.policy import PolicyConfig
from studio.config.settings.run import RunConfig
from tests.studio.config.run_files import SMALL, loaded

ALIAS_VALUES = {
    "evaluation.agent": ("{name: x}", "x"),
    "agent.agent": ("{name: x}", "x"),
    "data.practice_dataset_name": ("other", "other"),
    "data.rollout_data_truncate": ("7", 7),
    "data.shuffle_data": ("false", False),
    "practice.rollout_data_truncate": ("7", 7),
    "practice.shuffle_data": ("false", False),
    "practice.grpo_n": ("7", 7),
    "practice.rollout_concurrency": ("7", 7),
    "practice.rollout_temperature": ("0.1", 0.1),
    "practice.task_timeout": ("7", 7.0),
    "practice.num_experiences_per_query": ("7", 7),
    "practice.do_eval": ("false", False),
    "practice.eval_strategy": ("steps", "steps"),
    "practice.eval_steps": ("7", 7),
    "practice.eval_data": ("[a, b]", ("a", "b")),
    "practice.eval_data_truncate": ("7", 7),
    "evaluation.pass_k": ("7", 7),
    "evaluation.verify_filename": ("math.py", "math.py"),
    "evaluation.verify_func_name": ("f", "f"),
    "verifier.verify_filename": ("math.py", "math.py"),
    "verifier.verify_func_name": ("f", "f"),
    "verify_filename": ("math.py", "math.py"),
    "verify_func_name": ("f", "f"),
    "evaluation.judge_model": ("{model: rehearsal}", PolicyConfig(model="rehearsal")),
    "judge_model": ("{model: rehearsal}", PolicyConfig(model="rehearsal")),
    "evaluation.judge_concurrency": ("7", 7),
    "judge_concurrency": ("7", 7),
    "tracing.endpoint": ("http://127.0.0.1:6006", "http://127.0.0.1:6006"),
    "grpo.tensorboard": ("false", False),
}


def value_at(config: RunConfig, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def nested(name: str, text: str) -> str:
    """`a.b` and `x` as YAML lines of their own, two spaces a level."""
    parts = name.split(".")
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {text}", ""])


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_sets_our_name_from_file_and_override(tmp_path: Path, alias: str) -> None:
    text, value = ALIAS_VALUES[alias]
    name = ALIASES[alias] + (".name" if ALIASES[alias] == "agent" else "")
    base = "policy: rehearsal\n"
    if name != "data.practice":
        base += "" if alias.startswith("data.") else "data: {practice: sums}\n"
    needed = ["data.practice=sums"] if alias.startswith("data.") and name != "data.practice" else []
    from_file = loaded(tmp_path, base + nested(alias, text), *needed)
    from_override = loaded(tmp_path, base, f"{alias}={text.replace(': ', ':')}", *needed)
    assert value_at(from_file.config, name) == value_at(from_override.config, name) == value
    assert from_file.place(name).startswith(str(tmp_path / "mine.yaml:"))
    assert from_override.place(name).startswith(f"override '{alias}=")


def test_an_override_beats_the_file_in_either_spelling(tmp_path: Path) -> None:
    ours, theirs = SMALL + "practice: {group_size: 3}\n", SMALL + "practice: {grpo_n: 3}\n"
    assert loaded(tmp_path, ours, "practice.grpo_n=5").config.practice.group_size == 5
    assert loaded(tmp_path, theirs, "practice.group_size=5").config.practice.group_size == 5
