"""Functions written for other frameworks: what they get, and what their word becomes."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import CallFailed
from engines.core.types import (
    CallKey,
    Completion,
    Message,
    Problem,
    RecordRef,
    ToolCall,
    Usage,
    Verdict,
)
from engines.record.ledger import RecordLedger
from engines.verifiers.foreign.calls import detect_signature, reads_messages
from engines.verifiers.foreign.verifier import FunctionSettings, FunctionVerifier
from tests.support.builders import a_timeout, answering
from tests.support.foreign_files import (
    FILES,
    PROBLEM,
    SHIPPED,
    FakeLedger,
    a_file,
    a_rollout,
    judged,
    judging,
)


async def test_a_function_of_youtu_agent_runs_unchanged() -> None:
    policy, ledger = answering("yes"), FakeLedger()
    same, asked = await judged(FILES / "for_youtu.py", "5", "five", asks=judging(policy, ledger))
    assert same == Verdict(1.0, "What is 2 + 3? is answered as expected.")
    assert asked.reward == 1.0
    assert asked.usage == Usage(10, 5, 1)
    assert len(asked.refs) == 1
    assert policy.requests == [(Message("system", "Say yes or no."), Message("user", "Is five 5?"))]
    assert policy.samplings[0].temperature == 0.5
    assert ledger.keys == [CallKey(purpose="judge", epoch=1, step=1, position=0, index=1, turn=0)]


async def test_a_reward_function_of_trl_runs_unchanged() -> None:
    verdicts = await judged(FILES / "for_trl.py", "It is 5.", None, "It is 6.", "I cannot say.")
    metrics = {"numbers": 2.0}
    assert verdicts[0] == Verdict(1.0, metrics=metrics)
    assert verdicts[1] == Verdict(None, error="failed: rollout failed: no reply")
    assert verdicts[2] == Verdict(0.0, metrics=metrics)
    assert verdicts[3] == Verdict(None, metrics=metrics)  # no opinion is no error


async def test_a_judge_of_agentscope_runs_unchanged() -> None:
    policy = answering("0.25")
    right, asked = await judged(FILES / "for_agentscope.py", "5", "six", asks=judging(policy))
    assert right == Verdict(1.0, metrics={"length": 1.0})
    assert (asked.reward, asked.metrics) == (0.25, {"asked": 1.0})
    assert policy.requests == [(Message("user", "What is 2 + 3? six?"),)]


async def test_a_recorded_judgement_is_not_paid_for_again(tmp_path: Path) -> None:
    policy = answering("yes", "no")
    for _ in range(2):
        ledger = RecordLedger(tmp_path, 1)
        (verdict,) = await judged(FILES / "for_youtu.py", "five", asks=judging(policy, ledger))
        await ledger.aclose()
        assert (verdict.reward, len(verdict.refs)) == (1.0, 1)
    assert len(policy.requests) == 1


async def test_questions_of_one_call_have_turns_of_their_own(tmp_path: Path) -> None:
    source = """
        async def verify_func(sample, timeout_score=0, **kwargs):
            first = await kwargs["llm"].query_one(messages="one")
            second = await kwargs["llm"].query_one("two")
            return float(first + second)
        """
    ledger, policy = FakeLedger(), answering("0.", "5")
    (verdict,) = await judged(a_file(tmp_path, source), "5", asks=judging(policy, ledger))
    assert (verdict.reward, verdict.usage.calls, len(verdict.refs)) == (0.5, 2, 2)
    assert [key.turn for key in ledger.keys] == [0, 1]


async def test_a_question_of_a_function_that_got_no_reply_is_charged_for(tmp_path: Path) -> None:
    source = """
        async def verify_func(sample, timeout_score=0, **kwargs):
            await kwargs["llm"].query_one(messages="right?")
        """
    lost = CallFailed("cut", "in the middle", Usage(40, 2, 1))
    (verdict,) = await judged(a_file(tmp_path, source), "5", asks=judging(answering(lost)))
    assert (verdict.reward, verdict.usage) == (None, Usage(40, 2, 1))


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("configured", [False, True])
async def test_without_a_reply_of_the_judge_there_is_no_reward(
    tmp_path: Path, swallows: bool, configured: bool
) -> None:
    source = """
        async def verify_func(sample, timeout_score=0, **kwargs):
            try:
                await kwargs["llm"].query_one(messages="right?")
            except Exception:
                SWALLOWED
            return {"reward": 1.0, "reasoning": None}
        """.replace("SWALLOWED", "return {'reward': timeout_score}" if swallows else "raise")
    asks = judging(answering(a_timeout())) if configured else None
    (verdict,) = await judged(a_file(tmp_path, source), "5", asks=asks, timeout_score=0.0)
    assert verdict.reward is None
    assert (verdict.error or "").startswith("failed: ")
    expected = "no answer within 1 s" if configured else "no judge is configured"
    assert expected in (verdict.error or "")


async def test_a_client_that_the_file_makes_itself_asks_the_same_judge(tmp_path: Path) -> None:
    source = """
        import asyncio
        from utu.utils import SimplifiedAsyncOpenAI
        llm = SimplifiedAsyncOpenAI(model="any")
        def verify_func(sample, timeout_score=0, **kwargs):
            return float(asyncio.run(llm.query_one(messages="?")))
        """
    path = a_file(tmp_path, source)
    (verdict,) = await judged(path, "5", asks=judging(answering("0.75")))
    assert verdict.reward == 0.75


async def test_youtu_agents_sample_has_its_fields(tmp_path: Path) -> None:
    source = """
        import json
        def verify_func(sample, timeout_score=0, **kwargs):
            assert sample.source == "sums" and sample.dataset == "sums"
            assert sample.level == 2 and sample.meta["tags"] == ["easy"]
            assert sample.augmented_question == "What is 2 + 3?"
            assert json.loads(sample.trajectory)[1] == {"role": "assistant", "content": "5"}
            assert sample.extracted_final_answer is None and sample.file_name is None
            assert sample.trace_id == "s1p0r0" and sample.dataset_index == 0
            return {"reward": timeout_score, "reasoning": None}
        """
    assert await judged(a_file(tmp_path, source), "5", timeout_score=0.25) == [Verdict(0.25)]
    (given_up,) = await judged(a_file(tmp_path, source), "5")
    assert given_up == Verdict(None, error="timeout: the function gave up on it")


async def test_youtu_agents_sample_can_be_changed_copied_and_written_as_theirs(
    tmp_path: Path,
) -> None:
    source = """
        from utu.db import DatasetSample, EvaluationSample
        def verify_func(sample, timeout_score=0, **kwargs):
            sample.update(reasoning="because", correct=True)
            assert (sample.reasoning, sample.get("correct")) == ("because", True)
            assert sample.get("nothing_of_the_kind", 7) == 7
            given = sample.as_dict()
            assert given["reasoning"] == "because" and "confidence" not in given
            assert EvaluationSample.from_dict(given).as_dict() == given
            other = sample.model_copy(update={"correct": False})
            assert (other.correct, sample.correct, other.stage) == (False, True, "rollout")
            deep = sample.copy(deep=True)
            assert deep.meta == sample.meta and deep.meta is not sample.meta
            unset = (sample.id, sample.trace_url, sample.reward, sample.created_at)
            assert {*unset, sample.updated_at} == {None}
            assert DatasetSample.from_dict({"question": "q"}).get("question") == "q"
            return {"reward": 1.0, "reasoning": None}
        """
    assert await judged(a_file(tmp_path, source), "5") == [Verdict(1.0)]


async def test_trl_gets_every_column_as_a_list(tmp_path: Path) -> None:
    source = """
        def reward(completions, ground_truth, answer, solution, question, level, **kwargs):
            assert completions == ["5", "6"]  # texts, as nothing reads messages
            assert ground_truth == answer == solution == ["5", "5"]
            assert question == kwargs["prompts"] == ["What is 2 + 3?"] * 2
            assert level == [2, 2] and kwargs["completion_ids"] == [[-1] * 4] * 2
            assert kwargs["trainer_state"].global_step == 0 and kwargs["tags"] == [["easy"]] * 2
            return [1, False]
        """
    verdicts = await judged(a_file(tmp_path, source), "5", "6")
    assert verdicts == [Verdict(1.0), Verdict(0.0)]


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("def f(completions): return [c[0]['content'] for c in completions]", True),
        ("def f(completions): return [c[0].get('content') for c in completions]", True),
        ("def g(c): return c[0]['content']\ndef f(completions): return map(g, completions)", True),
        ("def f(completions): return [{'content': c} for c in completions]", False),
    ],
)
def test_the_functions_of_a_file_that_reads_content_get_messages(
    source: str, messages: bool
) -> None:
    assert reads_messages(ast.parse(source)) is messages


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["sample", "timeout_score", "kwargs"], "youtu"),
        (["prompts", "completions"], "trl"),
        (["task", "response", "auxiliary_models"], "agentscope"),
        (["completion", "sample"], None),
        ([], None),
    ],
)
def test_the_framework_is_told_by_parameter_names(names: list[str], kind: str | None) -> None:
    assert detect_signature(names) == kind


async def test_a_plain_answer_is_text_and_a_message(tmp_path: Path) -> None:
    source = """
        import re
        async def judge(task, response):
            assert response == "5 apples" and str(response) == response.content
            assert response.get_text_content() == "5 apples" and re.match("5", response)
            assert task["level"] == 2 and task["ground_truth"] == "5"
            return {"reward": 1, "metrics": {"n": True}}
        """
    verdicts = await judged(a_file(tmp_path, source), "5 apples")
    assert verdicts == [Verdict(1.0, metrics={"n": 1.0})]


async def test_the_judge_serves_under_whatever_name_the_file_has_for_it(tmp_path: Path) -> None:
    source = """
        async def judge(task, response, auxiliary_models=None):
            chat = await auxiliary_models["evaluator"]([{"role": "user", "content": "?"}])
            return float(chat.get_text_content())
        """
    (verdict,) = await judged(a_file(tmp_path, source), "5", asks=judging(answering("0.5")))
    assert verdict.reward == 0.5


async def test_stand_ins_serve_functions_that_import_when_they_are_called(tmp_path: Path) -> None:
    source = """
        async def judge(task, response):
            from agentscope.tuner import JudgeOutput
            return JudgeOutput(reward=1.0)
        """
    assert [v.reward for v in await judged(a_file(tmp_path, source), "5")] == [1.0]


async def test_an_installed_package_is_preferred_to_its_stand_in(tmp_path: Path) -> None:
    (tmp_path / "utu").mkdir()
    a_file(tmp_path / "utu", "", "__init__.py")
    a_file(tmp_path / "utu", "class EvaluationSample: real = 0.5", "db.py")
    source = """
        from utu.db import EvaluationSample
        def verify_func(sample): return EvaluationSample.real
        """
    assert await judged(a_file(tmp_path, source), "5") == [Verdict(0.5)]


async def test_a_file_reaches_its_neighbours_and_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_SCORE", "0.5")
    a_file(tmp_path, "import os\nSCORE = float(os.environ['MY_SCORE'])", "neighbour.py")
    source = """
        from dataclasses import dataclass
        from neighbour import SCORE
        @dataclass
        class Own: score: float = SCORE
        print("loading")
        def _private(sample): pass
        def verify_func(sample): print("judging"); return Own().score
        """
    assert await judged(a_file(tmp_path, source), "5") == [Verdict(0.5)]
    assert capfd.readouterr() == ("", "")


async def test_a_function_need_not_have_a_truth(tmp_path: Path) -> None:
    path = a_file(tmp_path, "def verify_func(sample): return float(len(sample.response) < 9)")
    problem = Problem("p", "Be brief.", None)
    assert await judged(path, "No.", problem=problem) == [Verdict(1.0)]


async def test_a_range_is_mapped_to_rewards(tmp_path: Path) -> None:
    path = a_file(tmp_path, "def verify_func(sample): return float(sample.response)")
    verdicts = await judged(path, "-1", "0", "1", "1.5", range=[-1, 1])
    assert [verdict.reward for verdict in verdicts] == [0.0, 0.5, 1.0, None]
    move = "set verifier.range=[-1,1.5] or wider, so that it is mapped to 0 to 1"
    wrong = f"failed: the verifier returned 1.5, outside -1 to 1; {move} (verify_func in mine.py)"
    assert verdicts[3].error == wrong


# Reward of the last number against 10, after the documented example: an error below 0.01
# gives 1.0, below 1 gives 0.8, below 5 gives 0.5, anything else 0; steps add 0.1, up to 1.
LAST_NUMBER = [
    ("10", 1.0),
    ("10.005", 1.0),
    ("It is 3, no, 10.", 1.0),
    ("10.02", 0.8),
    ("10.5", 0.8),
    ("9.001", 0.8),
    ("11", 0.5),
    ("14.9", 0.5),
    ("15", 0.0),
    ("-10", 0.0),
    ("1,010", 0.0),
    ("no number", 0.0),
    ("Step 1: add.\n10", 1.0),
    ("4 + 6 = 10", 1.0),
    ("Step 1: add.\n10.5", 0.9),
    ("4 + 7 = 11", 0.6),
    ("1. guess\n100", 0.1),
]


async def test_the_last_number_example_rewards_by_nearness() -> None:
    problem = Problem("p", "4 + 6?", "10")
    texts = [text for text, _ in LAST_NUMBER]
    verdicts = await judged(SHIPPED / "last_number.py", *texts, problem=problem)
    got = [(text, verdict.reward) for text, verdict in zip(texts, verdicts, strict=True)]
    assert got == [(text, pytest.approx(reward)) for text, reward in LAST_NUMBER]


async def test_the_shipped_examples_judge() -> None:
    async def rewards(name: str, *answers: str, **more: Any) -> list[float | None]:
        return [v.reward for v in await judged(SHIPPED / name, *answers, **more)]

    paris = Problem("p", "Capital?", "Paris")
    half = Problem("p", "1 - 1/2?", "0.5")
    assert await rewards("exact.py", " paris\n", "Rome", problem=paris) == [1.0, 0.0]
    assert await rewards("math.py", "\\boxed{1/2}", "\\boxed{2}", problem=half) == [1.0, 0.0]
    assert await rewards("contains.py", "It is PARIS.", "Rome", problem=paris) == [1.0, 0.0]
    replies = ("Same. VERDICT: RIGHT", "No.\n**VERDICT: WRONG**", "Hm.")
    asks = judging(answering(*replies))
    rewarded = await judged(SHIPPED / "webwalker.py", "a", "b", "c", problem=paris, asks=asks)
    assert sorted(str(v.reward) for v in rewarded) == ["0.0", "1.0", "None"]
    (unread,) = [verdict for verdict in rewarded if verdict.reward is None]
    expected = "failed: ValueError: the judge gave no verdict: 'Hm.' (verify_func in "
    assert (unread.error or "").startswith(expected)
    assert unread.usage.calls == 1


async def test_a_broken_judge_role_ends_the_call_with_its_own_error(tmp_path: Path) -> None:
    class Broken(FakeLedger):
        async def ask(self, *_: Any, **__: Any) -> tuple[Completion, RecordRef]:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await judged(FILES / "for_youtu.py", "six", asks=judging(answering(), Broken()))


async def test_waiting_for_the_judge_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeLedger):
        async def ask(self, *given: Any, **more: Any) -> tuple[Completion, RecordRef]:
            loop = asyncio.get_running_loop()
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 1_000)  # so long it takes
            for _ in range(3):
                await asyncio.sleep(0)  # lets every timer run whose time has come
            return await super().ask(*given, **more)

    (verdict,) = await judged(
        FILES / "for_youtu.py", "six", asks=judging(answering("yes"), Slow()), deadline_s=30
    )
    assert verdict.reward == 1.0


async def test_a_function_may_judge_each_reply_and_sees_the_tools_that_were_called(
    tmp_path: Path,
) -> None:
    code = (
        "import json\n"
        "def verify_func(sample, **kwargs):\n"
        "    messages = json.loads(sample.trajectories)[0]['trajectory']\n"
        "    calls = [c['name'] for m in messages for c in m.get('tool_calls', ())]\n"
        "    return {'reward': 1.0, 'reasoning': ','.join(calls), 'step_rewards': [0.5, -1]}\n"
    )
    called = Message("assistant", "", tool_calls=(ToolCall("c1", "look", "{}"),))
    told = Message("tool", "a cat", tool_call_id="c1")
    rollout = a_rollout("A cat.")
    messages = (*rollout.attempt.messages[:1], called, told, *rollout.attempt.messages[1:])
    rollout = replace(rollout, attempt=replace(rollout.attempt, messages=messages))
    verifier = FunctionVerifier(FunctionSettings(), Path(a_file(tmp_path, code)), None)
    try:
        await verifier.check()
        (verdict,) = await verifier.verify(PROBLEM, [rollout])
    finally:
        await verifier.aclose()
    assert (verdict.reward, verdict.critique, verdict.step_rewards) == (1.0, "look", (0.5, -1.0))


async def test_rewards_of_replies_that_are_no_numbers_are_no_verdict(tmp_path: Path) -> None:
    code = "def verify_func(sample, **kwargs): return {'reward': 1.0, 'step_rewards': [2]}\n"
    (verdict,) = await judged(a_file(tmp_path, code), "5")
    assert verdict.reward is None
    assert "returned [2] as step_rewards, not numbers of -1 to 1" in (verdict.error or "")
