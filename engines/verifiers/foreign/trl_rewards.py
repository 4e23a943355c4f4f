"""The reward functions that TRL's documentation imports from `trl.rewards`, where it is missing.

Written from their documented formulas (TRL 1.16); the installed package is used where it is there.
Each takes whole columns and returns a reward for each completion, None for no opinion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

Completions = Sequence[Sequence[dict[str, str]]]
Ids = Sequence[Sequence[int]]
Rewards = list[float | None]

_THOUGHT = re.compile(r"<think>(?!.*<think>).*?</think>", re.DOTALL)


def accuracy_reward(completions: Completions, solution: Sequence[str], **columns: Any) -> Rewards:
    """1 where the answer in LaTeX equals the solution; None where that is no mathematics."""
    texts = [completion[0]["content"] for completion in completions]
    return [_accuracy(text, truth) for text, truth in zip(texts, solution, strict=True)]


def reasoning_accuracy_reward(
    completions: Completions,
    solution: Sequence[str],
    reasoning_delimiters: Sequence[str] | None = None,
    **columns: Any,
) -> Rewards:
    """`accuracy_reward` of what follows the reasoning; 0 where the reasoning has no end."""
    rewards: Rewards = []
    for completion, truth in zip(completions, solution, strict=True):
        text = completion[0]["content"]
        ends = [end for end in reasoning_delimiters or ("</think>",) if end in text]
        rewards.append(_accuracy(text.split(ends[0])[-1], truth) if ends else 0.0)
    return rewards


def think_format_reward(completions: Completions, **columns: Any) -> Rewards:
    """1 for a completion that begins with one whole `<think>…</think>`."""
    return [float(bool(_THOUGHT.match(c[0]["content"]))) for c in completions]


def get_cosine_scaled_reward(
    max_len: int,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> Callable[..., Rewards]:
    """Accuracy scaled by length along a cosine. Source: arXiv:2502.03373, appendix C.1."""

    def cosine_scaled_reward(
        completions: Completions, solution: Sequence[str], completion_ids: Ids, **columns: Any
    ) -> Rewards:
        rewards: Rewards = []
        found = accuracy_reward(completions, solution)
        for right, ids in zip(found, completion_ids, strict=True):
            low, high = min_value_correct, max_value_correct
            if not right:  # a short wrong answer costs the most
                low, high = max_value_wrong, min_value_wrong
            share = (1 + math.cos(math.pi * min(len(ids) / max_len, 1.0))) / 2
            rewards.append(None if right is None else low + (high - low) * share)
        return rewards

    return cosine_scaled_reward


def get_soft_overlong_punishment(
    max_completion_len: int, soft_punish_cache: int
) -> Callable[..., Rewards]:
    """0 up to a length, then falling to -1. Source: DAPO, arXiv:2503.14476, equation 13."""
    free = max_completion_len - soft_punish_cache

    def soft_overlong_punishment_reward(completion_ids: Ids, **columns: Any) -> Rewards:
        beyond = [max(0, len(ids) - free) for ids in completion_ids]
        return [-min(1.0, n / soft_punish_cache) if n else 0.0 for n in beyond]

    return soft_overlong_punishment_reward


def get_repetition_penalty_reward(
    ngram_size: int = 3, max_penalty: float = -1.0
) -> Callable[..., Rewards]:
    """The share of repeated n-grams of tokens. Source: arXiv:2502.03373, appendix C.2."""
    if max_penalty > 0:
        raise ValueError(f"max_penalty {max_penalty} must not be above 0")

    def repetition_penalty_reward(completion_ids: Ids, **columns: Any) -> Rewards:
        if any(token < 0 for ids in completion_ids for token in ids):
            raise ValueError("it needs token ids, and this policy tells only how many")
        starts = range(ngram_size)
        grams = [list(zip(*(ids[at:] for at in starts), strict=False)) for ids in completion_ids]
        return [max_penalty * (1 - len(set(g)) / len(g)) + 0.0 if g else 0.0 for g in grams]

    return repetition_penalty_reward


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(accuracy_reward, reasoning_accuracy_reward, think_format_reward, get_cosine_scaled_reward),
    *(get_soft_overlong_punishment, get_repetition_penalty_reward),
)


def _accuracy(text: str, truth: str) -> float | None:
    # Inside: the worker that loads this file must stay light for files that do without.
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    gold = parse(truth, parsing_timeout=None)
    if not gold:
        return None
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    answer = parse(
        text, extraction_config=[config], extraction_mode="first_match", parsing_timeout=None
    )
    return float(verify(gold, answer, timeout_seconds=None))
