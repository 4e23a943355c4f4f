"""The `math` verifier: what it accepts, and what its processes survive."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engines.core.errors import VerifierError
from engines.core.types import Attempt, Problem, Rollout, Verdict
from engines.verifiers.answers import MathSettings, MathVerifier
from engines.verifiers.open import parse_settings
from engines.verifiers.stated_answer import ascii_notation, strip_denial

BOMB = "A: 9^9^9^9"
ROOT = Path(__file__).parents[4]
DATA = Path(os.environ.get("PRACTICE_DATA", ROOT.parent / "shared" / "data"))

linux_only = pytest.mark.skipif(
    not hasattr(os, "pidfd_open") or not Path("/proc/self").exists(),
    reason="waits for processes by pidfd and lists them in /proc, which only Linux has",
)

one_loop = pytest.mark.asyncio(loop_scope="module")  # that of the verifier they share


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier() -> AsyncIterator[MathVerifier]:
    """One for all that judge by the usual settings: its processes take a second to start."""
    verifier = MathVerifier()
    yield verifier
    await verifier.aclose()


def a_rollout(answer: str | None, index: int = 0) -> Rollout:
    attempt = Attempt((), answer, "failed" if answer is None else "ok")
    return Rollout(
        attempt=attempt,
        epoch=1,
        step=1,
        position=0,
        index=index,
        seed=0,
        policy_version=0,
        library_version=0,
    )


def a_problem(answer: str | None, **meta: object) -> Problem:
    return Problem("p", "question", answer, meta=meta)


async def judged(gold: str, *answers: str, verifier: MathVerifier) -> list[float | None]:
    verdicts = await verifier.verify(a_problem(gold), [a_rollout(text) for text in answers])
    return [verdict.reward for verdict in verdicts]


def children_of(pid: int) -> list[int]:
    # Each thread lists its own.
    texts = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return sorted(int(child) for text in texts for child in text.split())


def ends(pid: int, within_s: float = 30) -> bool:
    """Wait until a process, not necessarily ours, is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


@one_loop
async def test_a_final_answer_is_read_in_every_usual_form(verifier: MathVerifier) -> None:
    right = [
        ("42", "so 41.\n#### 42"),
        ("42", "It is \\boxed{42}"),
        ("42", "I thought 41.\nA: 42"),
        ("42", "The answer is 42."),
        ("42", "First 41 and then 42"),
        ("42", "\\boxed{42}. I am sure this answer is correct."),
        ("42", "\\boxed{41}, no.\nA: 42"),
        ("42", "A: 41\nWait.\n#### 42"),
        ("42", "**Final Answer:** 42"),
        ("42", "#### Step 2: add\nThe total is 42."),
        ("5", "Answer: 2 + 3 = 5"),
        ("5", "Final Answer: The final answer is $5$. I hope it is correct."),
        ("70000", "A: $70,000"),
        ("18", "\\boxed{18 \\text{ dollars}}"),
        ("18", "\\boxed{18 dollars}"),
        ("-2", "A: \u22122"),
        ("... so 9 + 9 = 18\n#### 18", "A: 18.00"),
    ]
    for gold, answer in right:
        assert await judged(gold, answer, verifier=verifier) == [1.0], (gold, answer)


@one_loop
async def test_expected_answers_may_be_formulas(verifier: MathVerifier) -> None:
    cases = [
        ("\\frac{1}{2}", "A: 0.5", 1.0),
        ("\\frac{1}{2}", "The answer is $\\frac{2}{4}$.", 1.0),
        ("$x=3$", "\\boxed{3}", 1.0),
        ("x=3", "so x = 4", 0.0),
        ("3\\sqrt{2}", "A: \\sqrt{18}", 1.0),
        ("3\\sqrt{2}", "3", 0.0),
        ("3", "3\\sqrt{2}", 0.0),
        ("1,2", "\\boxed{2, 1}", 1.0),
        ("(1,2)", "\\boxed{(1, 2)}", 1.0),
        ("50%", "\\boxed{50\\%}", 1.0),
        ("2.5", "A: 2 1/2", 1.0),
        ("100000", "A: 1e5", 1.0),
        ("pi/4", "\\boxed{\\frac{\\pi}{4}}", 1.0),
        ("8:30", "A: 8:45", 0.0),
        ("Evelyn", "\\boxed{\\text{Evelyn}}", 1.0),
        ("Evelyn", "A: Robert", 0.0),
    ]
    for gold, answer, reward in cases:
        assert await judged(gold, answer, verifier=verifier) == [reward], (gold, answer)


# Expected answer, response, reward.
NUMBERS_SIDE_BY_SIDE = [
    ("2 1/2", "\\boxed{21/2}", 0.0),
    ("3 1/4", "Answer: 31/4", 0.0),
    ("34", "3 4", 0.0),
    ("34", "Answer: 3 4", 0.0),
    ("12", "1 2", 0.0),
    ("12", "\\boxed{1 2}", 0.0),
    ("1/23", "1/2 3", 0.0),
    ("3 4", "A: 3 4", 1.0),
    ("2 1/2", "A: 2 1/2", 1.0),
    ("2 1/2", "\\boxed{\\frac{5}{2}}", 1.0),
    ("10 000", "A: 10000", 1.0),
    ("x + 1", "A: x+1", 1.0),
]
CHOICES = [
    ("B", "Between A and B, A is right", 0.0),
    ("C", "The options are A, B, C. I don't know.", 0.0),
    ("D", "A is right, not D", 0.0),
    ("A", "The answer is (A) and not (B).", 1.0),
    ("B", "The answer is (A) and not (B).", 0.0),
    ("B", "Answer: A or B", 0.0),
    ("B", "I think B is right", 1.0),
    ("B", "(B)", 1.0),
    ("B", "A) 5\nB) 6\n\n**B**", 1.0),
    ("B", "(A) is wrong.\nSo (B)", 0.0),
    ("A", "A. Because B is too small", 1.0),
    ("B", "So the answer must be (B) because A is too small", 1.0),
]
UNITS = [
    ("3 hours", "It takes 3 hours.", 1.0),
    ("10 AM", "A: 10 a.m.", 1.0),
    ("10:30 AM", "A: 10:30 PM", 0.0),
    ("$3", "A: 3 dollars", 1.0),
    ("5 pounds", "A: £5", 1.0),
    ("5 pounds", "A: 5 lbs", 1.0),
    ("18 apples", "A: 18 red apples", 1.0),
    ("18 dollars", "A: 18 in total", 1.0),
    ("5", "5 cm", 1.0),
    ("5 cm", "5", 1.0),
    ("5 cm", "A: 5 centimeters", 1.0),
    ("3 hours", "A: 3 hrs", 1.0),
    ("5x", "A: 5 x", 1.0),
    ("1.5 million", "1.5", 0.0),
    ("5", "5 thousand", 0.0),
    ("5", "A: 5 dozen", 0.0),
    ("1.5 million", "A: 1,500,000", 1.0),
    ("60", "A: 5 dozen", 1.0),
    ("$1.5 million", "A: $1.5 million", 1.0),
    ("2023-01-02", "A: 2023-01-02", 1.0),
    ("42", "The answer is not 42.", 0.0),
    ("42", "It is not 42.", 0.0),
    ("42", "It is 42, not 41.", 1.0),
    ("41", "It is 42, not 41.", 0.0),
    ("not 5", "A: not 5", 1.0),
]
SIGNS = [
    ("7", "Answer: \u2013 7", 0.0),
    ("7", "A: \u20137", 0.0),
    ("7", "- 7", 0.0),
    ("-7", "Answer: \u2013 7", 1.0),
    ("-7", "- 7", 1.0),
    ("\u20137", "A: -7", 1.0),
    ("5", "A: 3\u20135", 0.0),
    ("x-3", "A: x\u20133", 1.0),
    ("\\sqrt{3}", "A: √3", 1.0),
    ("√12", "\\boxed{2\\sqrt{3}}", 1.0),
    ("2\\sqrt{3}", "A: √(12)", 1.0),
    ("0.5", "A: ½", 1.0),
    ("2.5", "A: 2½", 1.0),
    ("x^2", "A: x²", 1.0),
    ("9", "A: 3²", 1.0),
    ("32", "A: 3²", 0.0),
    ("3", "A: \uff13", 1.0),
    ("3", "\u0663", 1.0),
    ("\u0663", "A: 4", 0.0),
    ("1000", "\\boxed{1\\,000}", 1.0),
    ("1000", "1\\,000", 1.0),
    ("1\\,000", "A: 1", 0.0),
    ("2π", "A: 2\\pi", 1.0),
]


@pytest.mark.parametrize(
    "rows",
    [NUMBERS_SIDE_BY_SIDE, CHOICES, UNITS, SIGNS],
    ids=["numbers side by side", "choices", "units", "signs"],
)
@one_loop
async def test_what_looks_alike_is_right_only_where_it_is(
    rows: list[tuple[str, str, float]], verifier: MathVerifier
) -> None:
    got = [(gold, text, *await judged(gold, text, verifier=verifier)) for gold, text, _ in rows]
    assert got == rows


HOSTILE = ["²", "\u2013", " \u2013", "√(", "1 ", "1,", "5 m ", "^2", "½", "$", "5 a.", "not "]


@pytest.mark.parametrize("text", HOSTILE)
def test_reading_a_hostile_answer_is_no_work_that_grows_with_its_square(text: str) -> None:
    # A pattern that backtracks would need minutes here, with the whole run standing still.
    long = text * (20_000 // len(text))
    for marked in (True, False):
        assert len(strip_denial(ascii_notation(long, marked=marked))) > 1_000


@one_loop
async def test_the_critique_is_a_few_words(verifier: MathVerifier) -> None:
    rollouts = [a_rollout("A: 42"), a_rollout("A: 924"), a_rollout("")]
    verdicts = await verifier.verify(a_problem("42"), rollouts)
    assert [v.critique for v in verdicts] == [
        "42 == 42",
        "expected 42, got 924",
        "expected 42, found no answer",
    ]


@one_loop
async def test_a_critique_names_the_alternative_that_matched_and_each_expected_once(
    verifier: MathVerifier,
) -> None:
    # Of a list of answers the first is also the answer. The last ones need math-verify.
    cases = [
        (["999", "40"], "A: 40", "40 == 40", "expected 999 or 40, got 7"),
        (["9", "\\sqrt{18}"], "A: 3\\sqrt{2}", "3\\sqrt{2} == \\sqrt{18}", None),
        (["9", "0.5"], "A: 1/2", "1/2 == 0.5", "expected 9 or 0.5, got 7"),
        (["9", "\\log(8)"], "A: 3\\log(2)", "3\\log(2) == \\log(8)", None),
        (["9", "Evelyn"], "A: Evelyn", "Evelyn == Evelyn", "expected 9 or Evelyn, got 7"),
        (["9", "2,5 x"], "A: 2,5x", "2,5x == 2,5 x", None),
    ]
    for answers, right, matched, missed in cases:
        problem = a_problem(answers[0], alternatives=answers)
        yes, no = await verifier.verify(problem, [a_rollout(right), a_rollout("A: 7")])
        assert (yes.reward, yes.critique, no.reward) == (1.0, matched, 0.0)
        assert missed in (None, no.critique)


@one_loop
async def test_any_alternative_counts(verifier: MathVerifier) -> None:
    problem = a_problem("7", alternatives=["1/3"])
    answers = ["A: 7", "\\boxed{\\frac{1}{3}}", "A: 8"]
    verdicts = await verifier.verify(problem, [a_rollout(text) for text in answers])
    assert [v.reward for v in verdicts] == [1.0, 1.0, 0.0]


@one_loop
async def test_without_an_expected_answer_nothing_is_judged(verifier: MathVerifier) -> None:
    (verdict,) = await verifier.verify(a_problem(None), [a_rollout("A: 7")])
    assert verdict == Verdict(None)


@one_loop
async def test_plain_integers_agree_with_the_checking_process(verifier: MathVerifier) -> None:
    # "7 or 0.5" cannot take the short way, because of 0.5; "7" alone does.
    answers = [a_rollout(text) for text in ("A: 7", "A: -7", "#### 007", "A: 70", "\\boxed{+7}")]
    short = await verifier.verify(a_problem("7"), answers)
    long = await verifier.verify(a_problem("7", alternatives=["0.5"]), answers)
    assert [v.reward for v in short] == [v.reward for v in long] == [1.0, 0.0, 1.0, 0.0, 1.0]


@one_loop
async def test_a_bomb_costs_its_own_verdict_only(
    verifier: MathVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier._pool, "_deadline_s", 0.4)
    answers = ["A: 0.5", BOMB, "A: 1/2", "A: 1/3", BOMB, "\\boxed{0.50}"]
    verdicts = await verifier.verify(a_problem("0.5"), [a_rollout(text) for text in answers])
    assert [v.reward for v in verdicts] == [1.0, None, 1.0, 0.0, None, 1.0]
    assert verdicts[1].error == "timeout: no verdict within 0.4 s"


@one_loop
async def test_a_timeout_may_be_given_a_score(
    verifier: MathVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier._pool, "_deadline_s", 0.2)
    scoring = MathVerifier(MathSettings(timeout_score=0.0))
    scoring._pool = verifier._pool
    (verdict,) = await scoring.verify(a_problem("0.5"), [a_rollout(BOMB)])
    assert verdict.reward == 0.0
    assert verdict.error is None
    assert verdict.critique == "timeout: no verdict within 0.2 s, checking 9^9^9^9"


@one_loop
async def test_an_endless_expression_is_too_long_and_a_long_response_is_not(
    verifier: MathVerifier,
) -> None:
    box = "\\boxed{" + "1+" * 2000 + "1}"
    essay = "We add 1 and 1. " * 2000 + "It is 2.5"
    verdicts = await verifier.verify(a_problem("2.5"), [a_rollout(box), a_rollout(essay)])
    assert verdicts[0].error == "too long: the stated answer has 4001 characters"
    assert [v.reward for v in verdicts] == [None, 1.0]


@linux_only
async def test_processes_killed_from_outside_are_replaced() -> None:
    others = children_of(os.getpid())
    verifier = MathVerifier()
    assert await judged("0.5", "A: 1/2", verifier=verifier) == [1.0]
    (template,) = set(children_of(os.getpid())) - set(others)
    (worker,) = children_of(template)
    os.kill(worker, signal.SIGKILL)
    assert await judged("0.5", *["A: 1/2"] * 4, verifier=verifier) == [1.0] * 4
    os.kill(template, signal.SIGKILL)
    assert await judged("0.5", *["A: 1/2"] * 4, verifier=verifier) == [1.0] * 4
    await verifier.aclose()


@linux_only
async def test_closing_while_starting_is_answered_and_leaves_no_process() -> None:
    children = children_of(os.getpid())
    verifier = MathVerifier()
    asking = asyncio.create_task(judged("0.5", "A: 1/2", verifier=verifier))
    while children_of(os.getpid()) == children:
        await asyncio.sleep(0)  # one turn of the loop: the template is started in one of the next
    await verifier.aclose()
    assert await asking == [None]
    assert children_of(os.getpid()) == children


@linux_only
async def test_closing_leaves_no_process_and_no_descriptor() -> None:
    gc.collect()
    descriptors, children = len(os.listdir("/proc/self/fd")), children_of(os.getpid())
    verifier = MathVerifier(MathSettings(deadline_s=60))
    await verifier.start()
    first = asyncio.create_task(judged("0.5", "A: 1/3", verifier=verifier))
    asking = asyncio.create_task(judged("0.5", BOMB, "A: 1/2", BOMB, verifier=verifier))
    assert await first == [0.0]  # the bomb waits in the pipe behind it
    await verifier.aclose()
    assert await asking == [None, None, None]
    assert await judged("0.5", "A: 1/2", verifier=verifier) == [None]
    assert children_of(os.getpid()) == children
    assert len(os.listdir("/proc/self/fd")) == descriptors


@linux_only
def test_workers_end_when_the_studio_is_killed() -> None:
    script = textwrap.dedent("""
        import asyncio, sys
        from engines.core.types import Attempt, Problem, Rollout
        from engines.verifiers.answers import MathSettings, MathVerifier

        async def main():
            verifier = MathVerifier(MathSettings(deadline_s=600))
            problem = Problem("p", "q", "0.5")
            places = dict.fromkeys(
                ("epoch", "step", "position", "index", "seed", "policy_version", "library_version"),
                1,
            )
            def rollouts(text): return [Rollout(attempt=Attempt((), text), **places)]
            await verifier.start()
            first = asyncio.create_task(verifier.verify(problem, rollouts("A: 1/2")))
            bomb = asyncio.create_task(verifier.verify(problem, rollouts("A: 9^9^9^9")))
            await first  # the bomb waits in the pipe behind it
            print("ready", flush=True)
            await bomb

        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as studio:
        assert studio.stdout is not None
        assert studio.stdout.readline() == "ready\n"
        (template,) = children_of(studio.pid)
        (worker,) = children_of(template)
        studio.send_signal(signal.SIGKILL)
    assert ends(template)
    assert ends(worker)


def test_making_a_verifier_imports_nothing_heavy_and_starts_nothing() -> None:
    script = (
        "import sys, engines.verifiers.open as o\n"
        "o.open_verifier('math'); o.open_verifier('text')\n"
        "print({'sympy', 'math_verify', 'openai'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    "settings", [{"deadline_s": 0}, {"timeout_score": 2}, {"workers": 0}, {"memory_mb": 1}]
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(VerifierError, match=next(iter(settings))):
        parse_settings(MathSettings, "math", settings, ())


@one_loop
async def test_the_verdict_equals_the_authors_flag_on_gsm8k(verifier: MathVerifier) -> None:
    path = DATA / "gsm8k" / "rollouts.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent; set PRACTICE_DATA to the folder that holds gsm8k/")
    questions = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:200]]
    checked = 0
    for question in questions:
        rollouts = [a_rollout(rollout["response"]) for rollout in question["rollouts"]]
        verdicts = await verifier.verify(a_problem(question["answer"]), rollouts)
        assert [v.reward for v in verdicts] == [r["reward"] for r in question["rollouts"]]
        checked += len(verdicts)
    assert checked == 800


@one_loop
@pytest.mark.parametrize(
    ("gold", "answer", "settings", "usual"),
    [
        ("0.3333", r"\boxed{\frac{1}{3}}", {"float_rounding": 2}, 0.0),
        ("$a+1$", r"\boxed{b+1}", {"strict": False}, 0.0),
        (r"(5,\infty)", r"\boxed{x>5}", {"allow_set_relation_comp": False}, 1.0),
    ],
)
async def test_each_setting_of_math_verify_has_its_effect(
    gold: str, answer: str, settings: dict[str, Any], usual: float, verifier: MathVerifier
) -> None:
    other = MathVerifier(MathSettings(**settings))
    other._pool = verifier._pool  # which knows no settings: they go with each question
    assert await judged(gold, answer, verifier=verifier) == [usual]
    assert await judged(gold, answer, verifier=other) == [1.0 - usual]
