"""A verify function as Youtu-Agent documents it: rules first, the judge for the rest."""

from utu.db import EvaluationSample
from utu.utils import SimplifiedAsyncOpenAI


async def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    llm: SimplifiedAsyncOpenAI = kwargs["llm"]
    if sample.response == sample.correct_answer:
        return {"reward": 1.0, "reasoning": f"{sample.raw_question} is answered as expected."}
    reply = await llm.query_one(
        messages=[
            {"role": "system", "content": "Say yes or no."},
            {"role": "user", "content": f"Is {sample.response} {sample.correct_answer}?"},
        ]
    )
    return {"reward": float(reply.strip() == "yes"), "reasoning": None}
