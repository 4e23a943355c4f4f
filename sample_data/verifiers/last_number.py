"""The nearer the last number is to the expected one, the more reward; shown steps add some.

Written for the signature of TRL's reward functions.
"""

import re

NUMBER = re.compile(r"(?:(?<![\d.])-)?\d[\d,]*(?:\.\d+)?")
STEP = re.compile(r"^\s*(?:step\s*\d+|\d+[.)]\s)|=", re.IGNORECASE | re.MULTILINE)


def reward_func(completions, ground_truth, **kwargs):
    return [score(text, truth) for text, truth in zip(completions, ground_truth, strict=True)]


def score(text, truth):
    if truth is None:
        return None  # nothing to compare with: no opinion
    numbers = NUMBER.findall(text)
    if not numbers:
        return 0.0
    error = abs(as_number(numbers[-1]) - as_number(str(truth)))
    reward = 1.0 if error < 0.01 else 0.8 if error < 1 else 0.5 if error < 5 else 0.0
    if STEP.search(text):
        reward += 0.1
    return min(reward, 1.0)


def as_number(text):
    return float(text.strip().lstrip("$").replace(",", ""))
