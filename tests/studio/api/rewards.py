"""A reward of one's own, as HelloAgents documents its form."""

from __future__ import annotations

import re
from typing import Any


def tolerant_reward(completions: list[str], **kwargs: Any) -> list[float]:
    rewards = []
    for text, truth in zip(completions, kwargs["ground_truth"], strict=True):
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text)
        error = abs(float(numbers[-1]) - float(truth)) if numbers else 1e9
        reward = next((r for most, r in ((0.01, 1.0), (1, 0.8), (5, 0.5)) if error < most), 0.0)
        rewards.append(min(1.0, reward + 0.1 * (reward > 0 and "Step" in text)))
    return rewards
