"""Right when a model says that the response agrees with the expected answer.

Written for Youtu-Agent's signature. A reply that says neither word raises, so that the
answer is unjudged and never counted as wrong.
"""

import re

from utu.db import EvaluationSample

PROMPT = """Compare an answer with the reference. Judge agreement in content only: wording,
length and order do not matter, but every fact of the reference must be there.

Question: {question}

Reference: {reference}

Answer: {answer}

First explain in one or two sentences. Then end with a line that says
VERDICT: RIGHT or VERDICT: WRONG."""


async def verify_func(sample: EvaluationSample, timeout_score: float = 0, **kwargs) -> dict:
    prompt = PROMPT.format(
        question=sample.raw_question, reference=sample.correct_answer, answer=sample.response
    )
    reply = await kwargs["llm"].query_one(messages=prompt)
    verdicts = re.findall(r"VERDICT:\W*(RIGHT|WRONG)\b", reply, re.IGNORECASE)
    if not verdicts:
        raise ValueError(f"the judge gave no verdict: {reply[:200]!r}")
    reason = re.split(r"\W*VERDICT:", reply, flags=re.IGNORECASE)[0].strip()
    return {"reward": float(verdicts[-1].upper() == "RIGHT"), "reasoning": reason or None}
