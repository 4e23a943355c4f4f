"""Other spellings of our settings, and the nearest name for one that is unknown.

Owns the table of aliases (Youtu-Agent's field names) and the rule for a setting that
is given under two names. Knows names only, no values.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from studio.compose import Composed, dotted
from studio.yaml_marks import Key

ALIASES = {
    "evaluation.agent": "agent",
    "agent.agent": "agent",
    "data.practice_dataset_name": "data.practice",
    "data.rollout_data_truncate": "data.truncate",
    "data.shuffle_data": "data.shuffle",
    "practice.rollout_data_truncate": "data.truncate",
    "practice.shuffle_data": "data.shuffle",
    "practice.grpo_n": "practice.group_size",
    "practice.rollout_concurrency": "practice.concurrency",
    "practice.rollout_temperature": "practice.temperature",
    "practice.task_timeout": "practice.task_timeout_s",
    "practice.num_experiences_per_query": "practice.experiences_per_query",
    "practice.do_eval": "evaluation.do_eval",
    "practice.eval_strategy": "evaluation.strategy",
    "practice.eval_steps": "evaluation.every_steps",
    "practice.eval_data": "evaluation.data",
    "practice.eval_data_truncate": "evaluation.limit",
    "evaluation.pass_k": "evaluation.k",
}
"""Alias → our name. Moved in this order: an agent mounted below `evaluation` comes first."""

_ABSENT = object()


def unify(composed: Composed) -> None:
    """Move every alias to our own name, in place, with the places of its keys.

    Of two spellings an override beats a file.

    Raises:
        ConfigError: a setting is given twice, under two names.
    """
    for alias, name in ALIASES.items():
        _move(composed, tuple(alias.split(".")), tuple(name.split(".")))


def nearest(key: Key, siblings: Iterable[str], every: Iterable[str]) -> str:
    """The next move for an unknown key.

    Args:
        key: the unknown one.
        siblings: names known where it stands.
        every: all settings, dotted; searched for its last part when no sibling is near.
    """
    known = sorted(siblings)
    parent = dotted(key[:-1])
    aliases = [a.rpartition(".")[2] for a in ALIASES if a.rpartition(".")[0] == parent]
    if close := get_close_matches(key[-1], [*known, *aliases], n=1, cutoff=0.6):
        return f'Did you mean "{dotted((*key[:-1], close[0]))}"?'
    leaves = {name.rpartition(".")[2]: name for name in (*every, *ALIASES)}
    if close := get_close_matches(key[-1], list(leaves), n=1, cutoff=0.7):
        return f'Did you mean "{leaves[close[0]]}"?'
    return f"Known here: {', '.join(known)}."


def _move(composed: Composed, old: Key, new: Key) -> None:
    value = _take(composed.tree, old)
    if value is _ABSENT:
        return
    if old[: len(new)] == new and not isinstance(value, dict):
        # `agent.agent: x` is no mounted agent file; validation says what is wrong with it.
        _give(composed.tree, old, value)
        return
    present = _see(composed.tree, new)
    if isinstance(value, dict) and isinstance(present, dict):
        _give(composed.tree, old, value)
        for name in list(value):
            composed.places.setdefault((*old, name), composed.place(old))
            _move(composed, (*old, name), (*new, name))
        if not value:
            _take(composed.tree, old)
        return
    if present is not _ABSENT:
        first, second = composed.place(old), composed.place(new)
        if first.override == second.override:
            where = "" if first == second else f" (the other at {second.text})"
            raise composed.error(
                old,
                f'"{dotted(old)}" and "{dotted(new)}" are two names of one setting{where}.',
                f'Keep "{dotted(new)}".',
            )
        if second.override:
            return
    _give(composed.tree, new, value)
    for key in [k for k in composed.places if k[: len(new)] == new and present is not _ABSENT]:
        del composed.places[key]
    for key in [k for k in composed.places if k[: len(old)] == old]:
        composed.places[(*new, *key[len(old) :])] = composed.places.pop(key)


def _see(tree: Any, key: Key) -> Any:
    for part in key:
        if not isinstance(tree, dict) or part not in tree:
            return _ABSENT
        tree = tree[part]
    return tree


def _take(tree: Any, key: Key) -> Any:
    parent = _see(tree, key[:-1])
    return parent.pop(key[-1], _ABSENT) if isinstance(parent, dict) else _ABSENT


def _give(tree: Any, key: Key, value: Any) -> None:
    for part in key[:-1]:
        # A null section is an empty one: `evaluation:` with nothing below it.
        if tree.get(part) is None:
            tree[part] = {}
        tree = tree[part]
        if not isinstance(tree, dict):
            return  # `evaluation: foo`; validation refuses it under its own name
    tree[key[-1]] = value
