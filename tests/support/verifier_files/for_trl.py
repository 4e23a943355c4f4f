"""A reward function as TRL documents it, for conversational data."""

import re


def digits_reward(prompts, completions, ground_truth, **kwargs):
    """Reward the number in the completion; no opinion where there is none."""
    rewards = []
    for prompt, completion, truth in zip(prompts, completions, ground_truth, strict=True):
        assert prompt[-1]["role"] == "user"
        found = re.search(r"\d+", completion[0]["content"])
        rewards.append(None if found is None else float(found.group() == truth))
    kwargs["log_extra"]("truth", list(ground_truth))
    kwargs["log_metric"]("numbers", sum(reward is not None for reward in rewards))
    return rewards
