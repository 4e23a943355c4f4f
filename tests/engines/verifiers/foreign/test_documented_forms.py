"""Functions in the forms that TRL 1.16 and AgentScope 1.0 document, run by path without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.core.types import Problem
from tests.support.builders import FakePolicy
from tests.support.foreign_files import a_file, judged, judging

THIRD = Problem("p", "What is a third?", r"\frac{1}{3}", "sums", {"level": 2, "task": "math"})
RIGHT, WRONG = r"So it is \boxed{\frac{1}{3}}", r"So it is \boxed{\frac{1}{2}}"
THOUGHT = r"<think>3 parts</think>So \boxed{\frac{1}{3}}"

# The file, its answers, the rewards as the function gives them, and settings.
Form = tuple[str, tuple[str, ...], list[float | None], dict[str, Any]]
TRL: dict[str, Form] = {
    "texts": (
        "def f(completions, **kwargs):\n    return [float(len(set(c)) > 3) for c in completions]",
        ("aaa", "abcd"), [0, 1], {},
    ),
    "messages": (
        "def f(prompts, completions, **kwargs):\n"
        "    assert prompts[0][0]['role'] == 'user'\n"
        "    return [float('x' in c[0]['content']) for c in completions]",
        ("x", "y"), [1, 0], {},
    ),
    "a pattern": (
        "import re\n"
        "def f(completions, **kwargs):\n"
        "    found = [re.match(r'^<think>.*?</think>', c[0]['content']) for c in completions]\n"
        "    return [1.0 if match else 0.0 for match in found]",
        (THOUGHT, RIGHT), [1, 0], {},
    ),
    "a column": (
        "import re\n"
        "def f(completions, ground_truth, **kwargs):\n"
        "    found = [re.search(r'boxed\\{(.*)\\}', c) for c in completions]\n"
        "    return [float(m[1] == t) for m, t in zip(found, ground_truth)]",
        (RIGHT, WRONG), [1, 0], {},
    ),
    "no opinion on other tasks": (
        "def f(prompts, completions, task, **kwargs):\n"
        "    return [1.0 if t == 'coding' else None for t in task]",
        (RIGHT,), [None], {},
    ),
    "token ids": (
        "def f(completion_ids, **kwargs):\n    return [len(ids) / 8 for ids in completion_ids]",
        ("four tokens",), [0.5], {},
    ),
    "a coroutine": (
        "import asyncio\n"
        "async def f(prompts, completions, **kwargs):\n"
        "    await asyncio.sleep(0)\n    return [1.0] * len(completions)",
        ("a", "b"), [1, 1], {},
    ),
    "the trainer's state": (
        "def f(completions, trainer_state=None, **kwargs):\n"
        "    return [1.0 if trainer_state.global_step < 10 else 0.0 for _ in completions]",
        ("a",), [1], {},
    ),
    "its logs": (
        "def f(completions, log_extra=None, log_metric=None, **kwargs):\n"
        "    log_extra('length', [len(c) for c in completions])\n"
        "    log_metric('mean', 3.0)\n    return [1.0 for _ in completions]",
        ("abc",), [1], {},
    ),
    "a comparison": (
        "def f(completions, **kwargs):\n"
        "    best = min(len(c) for c in completions)\n"
        "    return [float(len(c) == best) for c in completions]",
        ("long", "no"), [0, 1], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", TRL)
async def test_a_reward_function_of_trl_runs_by_its_path(tmp_path: Path, form: str) -> None:
    source, answers, rewards, settings = TRL[form]
    found = await judged(a_file(tmp_path, source), *answers, problem=THIRD, **settings)
    assert [verdict.reward for verdict in found] == pytest.approx(rewards), found


JUDGE = (
    "from typing import Any, Dict\n"
    "from agentscope.model import ChatModelBase\n"
    "from agentscope.tuner import JudgeOutput\n"
    "from agentscope.message import Msg, TextBlock\n"
    "from agentscope.evaluate import MetricBase, MetricResult, MetricType, SolutionOutput\n"
    "async def judge(task: Dict, response: Any,\n"
    "        auxiliary_models: Dict[str, ChatModelBase] | None = None) -> JudgeOutput:\n    "
)
NUMBER = (
    "from agentscope.evaluate import MetricBase, MetricResult, MetricType, SolutionOutput\n"
    "class Check(MetricBase):\n"
    "    def __init__(self, ground_truth):\n"
    "        super().__init__('check', MetricType.NUMERICAL, 'Is it equal?', ['pass', 'fail'])\n"
    "        self.ground_truth = ground_truth\n"
    "    def __call__(self, solution: SolutionOutput) -> MetricResult:\n"
    "        right = solution.success and solution.output == self.ground_truth\n"
    "        return MetricResult(self.name, 1.0 if right else 0.0, message='told')\n"
)
AGENTSCOPE: dict[str, str] = {
    "the text": JUDGE + "return JudgeOutput(reward=float(response.get_text_content() == '5'))",
    "the content": JUDGE + "return JudgeOutput(reward=1.0 if '5' in response.content else 0.0)",
    "blocks": JUDGE + (
        "assert response.has_content_blocks('text') and not response.has_content_blocks('image')\n"
        "    (block,) = response.get_content_blocks(['text'])\n"
        "    return JudgeOutput(reward=float(block['text'] == task['answer']))"
    ),
    "the whole message": JUDGE + (
        "again = Msg.from_dict(response.to_dict())\n"
        "    assert (again.id, again.role, again.name) == (response.id, 'assistant', 'agent')\n"
        "    assert response.metadata == {} and response.timestamp and not response.invocation_id\n"
        "    return JudgeOutput(reward=float(again.get_text_content() == task['answer']))"
    ),
    "metrics": JUDGE + "return JudgeOutput(reward=float(response == '5'), metrics={'length': 1.0})",
    "a model": JUDGE + (
        "ask = Msg('user', [TextBlock(type='text', text=f'Is {response} right?')], 'user')\n"
        "    said = await auxiliary_models['judge']([ask.to_dict()])\n"
        "    return JudgeOutput(reward=float('yes' in said.content[0]['text']\n"
        "                                    and response == '5'))"
    ),
    "a metric in a judge": NUMBER + JUDGE + (
        "metric = Check(task['ground_truth'])\n"
        "    output = SolutionOutput(success=True, output=response.get_text_content(),\n"
        "                            trajectory=[])\n"
        "    return JudgeOutput(reward=metric(output).result)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", AGENTSCOPE)
async def test_a_judge_of_agentscope_runs_by_its_path(tmp_path: Path, form: str) -> None:
    path = a_file(tmp_path, AGENTSCOPE[form])
    asked = judging(FakePolicy().enqueue(["yes", "yes"]))
    found = await judged(path, "5", "6", asks=asked, function="judge")
    assert [verdict.reward for verdict in found] == [1.0, 0.0], found
