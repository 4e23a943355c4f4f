"""Right when the response is the expected answer, upper and lower case aside."""


def verify_func(sample, timeout_score=0, **kwargs):
    given = sample.response.strip().lower()
    wanted = str(sample.correct_answer).strip().lower()
    if given == wanted:
        return {"reward": 1.0, "reasoning": None}
    return {"reward": 0.0, "reasoning": f"Expected {sample.correct_answer!r}."}
