"""A reward function of TRL that does whatever the first completion says, for the worse."""


def closeness_reward(completions, ground_truth, **kwargs):
    def failing():
        return {}["missing"]

    match completions[0]:
        case "raises":
            return failing()
        case "too few":
            return [1.0] * (len(completions) - 1)
        case "too many":
            return [1.0] * (len(completions) + 1)
        case "no list":
            return 1.0
        case "text":
            return ["1.0"] * len(completions)
        case "nan":
            return [float("nan")] * len(completions)
        case "infinite":
            return [float("inf")] * len(completions)
        case "beyond":
            return [1.5] * len(completions)
        case "nothing":
            return None
    return [float(text == truth) for text, truth in zip(completions, ground_truth, strict=True)]
