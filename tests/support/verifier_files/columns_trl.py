"""A reward function of TRL that repeats, as metrics, what it was given of each column."""


def seen_reward(prompts, completions, ground_truth, answer, level, tags, extra, **columns):
    n = len(completions)
    given = {"ground_truth": ground_truth, "answer": answer, "level": level, "tags": tags}
    given |= {"extra": extra, "prompts": prompts, **columns}
    lists = [name for name, column in given.items() if isinstance(column, list)]
    assert all(len(given[name]) == n for name in lists), given
    assert ground_truth == answer == ["0.50"] * n, "as the data has it, not as a number"
    assert level == [2] * n and type(level[0]) is int
    assert tags == [["easy", "sums"]] * n
    assert extra == [{"tolerance": 0.01, "none": None, "deep": [1, {"a": "é"}]}] * n
    assert columns["solution"] == ["worked out: 1/2"] * n, "the data's own, not the answer"
    columns["log_metric"]("completions", n)
    return [1.0] * n
