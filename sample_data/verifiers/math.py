"""Right when math-verify finds the response equal to the expected answer.

Written for Youtu-Agent's signature, as an example. The built-in verifier `math` is
faster and survives answers that hang.
"""

from math_verify import parse, verify
from math_verify.errors import TimeoutException
from utu.db import EvaluationSample


def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    try:
        expected = parse(f"\\boxed{{{sample.correct_answer}}}", raise_on_error=True)
        given = parse(sample.response, raise_on_error=True)
        right = verify(expected, given, raise_on_error=True)
    except TimeoutException:
        return {"reward": timeout_score, "reasoning": "Comparing the answers took too long."}
    return {
        "reward": float(right),
        "reasoning": None if right else f"Expected {sample.correct_answer}.",
    }
