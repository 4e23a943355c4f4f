"""Every way a verifier file or its function can be wrong, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import VerifierError
from engines.core.types import Problem, Verdict
from engines.verifiers.foreign.calls import parse_results, shared_columns
from engines.verifiers.foreign.verifier import FunctionSettings, FunctionVerifier
from engines.verifiers.open import parse_settings
from tests.support.foreign_files import PROBLEM, a_file, a_rollout, judged

OK = "def verify_func(sample, **kwargs): return 1.0\n"

# What is in the file, the settings, and what place (after the file's path), cause and next
# move must hold.
REFUSED: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    "syntax error": ("x = 1\ndef f(:\n", {}, ":2", "it is not Python", "Mend it."),
    "NUL byte": (OK + "\0", {}, "", "it is not Python", ""),
    "escape sequences in an exception": (
        "raise ValueError('red \\x1b[31m\\n\\u202e ' + 'x' * 5000)\n",
        {},
        ":1",
        r"it raised ValueError: red \u001b[31m \u202e xxx",
        "Mend it.",
    ),
    "exception that cannot be told": (
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad\n",
        {},
        ":3",
        "it raised Bad while it was loaded.",
        "Mend it.",
    ),
    "package that is not installed": (
        "\nimport no_such_package\n",
        {},
        ":2",
        "No module named 'no_such_package'",
        'Install "no_such_package"',
    ),
    "module without a stand-in": (
        "from utu.agents import get_agent\n",
        {},
        ":1",
        "No module named 'utu.agents'",
        'Install "utu" beside the studio.',
    ),
    "name without a stand-in": (
        "from utu.utils import OpenAIUtils\n",
        {},
        ":1",
        "cannot import name 'OpenAIUtils' from 'utu.utils'",
        'Install "utu"',
    ),
    "stand-in put to work at load": (
        "from agentscope.model import OpenAIChatModel\nmodel = OpenAIChatModel('m')\n",
        {},
        ":2",
        "agentscope is not installed",
        "Mend it.",
    ),
    "exception at load": ("\n\n1 / 0\n", {}, ":3", "raised ZeroDivisionError", "Mend it."),
    "exit at load": ("import sys\nsys.exit(3)\n", {}, ":2", "raised SystemExit: 3", "Mend"),
    "death at load": ("import os\nos._exit(3)\n", {}, "", "the process ended while", "exits"),
    "no function at all": ("x = 1\n", {}, "", "no function has one of the known", "Youtu-Agent"),
    "function of another name": (
        OK,
        {"function": "verify_fun"},
        "",
        'there is no function "verify_fun"',
        'Did you mean "verify_func"? It defines: verify_func.',
    ),
    "several without the usual name": (
        "def a(completions): return []\ndef b(completions): return []\n",
        {},
        "",
        "several functions could be meant: a, b.",
        "Name one",
    ),
    "not a function": (
        "verify_func = 3\n",
        {},
        "",
        '"verify_func" is not a function: it is of type int.',
        "Give it the form of",
    ),
    "unknown signature": (
        "\ndef verify_func(answer, truth): return 1.0\n",
        {},
        ":2",
        "verify_func(answer, truth) has none of the known signatures",
        "TRL",
    ),
    "too few arguments": (
        "def judge(task, *, response): return 1.0\n",
        {"function": "judge"},
        ":1",
        "too many positional arguments",
        "judge(task, response",
    ),
    "an argument that nothing gives": (
        "def verify_func(sample, model): return 1.0\n",
        {},
        ":1",
        "missing a required argument: 'model'",
        "Youtu-Agent",
    ),
    "columns by place": (
        "def f(truth, /, completions): return []\n",
        {},
        ":1",
        "'truth' parameter is positional only",
        "TRL",
    ),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=list(REFUSED))
async def test_a_file_that_cannot_serve_is_refused_before_the_first_call(
    tmp_path: Path, row: tuple[str, dict[str, Any], str, str, str]
) -> None:
    source, settings, place, cause, move = row
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(VerifierError) as caught:
        await judged(path, "5", **settings)
    assert caught.value.place == f"{path}{place}"
    assert cause in caught.value.cause
    assert move in caught.value.move
    assert str(caught.value).isprintable()
    assert len(caught.value.cause) <= 300


COLUMNS = {
    "def reward(completions, level): return [1.0]\n": True,
    "def reward(completions, level=3): return [1.0]\n": False,
    "def reward(completions, ground_truth, prompts, trainer_state): return [1.0]\n": False,
    "def reward(completions, log_metric, topic, **kwargs): return [1.0]\n": False,
    "def judge(task, response): return 1.0\n": False,
    OK: False,
}


@pytest.mark.parametrize("source", COLUMNS)
async def test_a_missing_column_is_refused_before_the_first_call(
    tmp_path: Path, source: str
) -> None:
    path = a_file(tmp_path, source)
    verifier = FunctionVerifier(FunctionSettings(), path, columns=frozenset({"topic"}))
    refused = None
    try:
        await verifier.check()
    except VerifierError as error:
        refused = error
    await verifier.aclose()
    assert (refused is not None) is COLUMNS[source]
    if refused:
        assert 'it needs "level", and the data has only: answer, ' in refused.cause
        assert refused.move == "Add the column."


def test_the_columns_are_those_that_every_set_has() -> None:
    one = Problem("1", "q", "a", meta={"level": 1})
    two = Problem("2", "q", "a", meta={"topic": 1, "level": 2})
    assert shared_columns((one, two)) == {"level", "topic"}
    assert shared_columns((one, two), (one,), ()) == {"level"}
    assert shared_columns((), ()) is None


async def test_of_several_that_fit_the_usual_name_is_taken(tmp_path: Path) -> None:
    path = a_file(tmp_path, OK + "def reward(completions): return [0.0]\n")
    assert await judged(path, "5") == [Verdict(1.0)]
    assert await judged(path, "5", function="reward") == [Verdict(0.0)]


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "exact.py").write_text(OK)
    (tmp_path / "exact.txt").write_text(OK)
    rows = [
        ("other.py", "it cannot be read (No such file or directory).", "Give a Python file."),
        ("exact.txt", "it is not a Python file.", "Give a file that ends in .py."),
        (".", "it is not a Python file.", "Give a file that ends in .py."),
    ]
    for name, cause, move in rows:
        with pytest.raises(VerifierError) as caught:
            await judged(tmp_path / name, "5")
        assert (caught.value.cause, caught.value.move) == (cause, move)
        assert caught.value.place == str(tmp_path / name)


async def test_a_file_that_hangs_while_it_loads_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path, "while True: pass\n")
    verifier = FunctionVerifier(FunctionSettings(), path, load_s=0.3)
    with pytest.raises(VerifierError, match=r"it was not loaded within 0\.3 s"):
        await verifier.check()
    await verifier.aclose()


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"function": "a b"}, "function is not the name of a function."),
        ({"deadline_s": 0}, "deadline_s is 0."),
        ({"workers": 0}, "workers is 0."),
        ({"range": [1, 0]}, "range is not a lower and a higher number."),
        ({"range": ["low", 1]}, 'range is ["low",1].'),
        ({"range": 5}, "range is 5."),
        ({"timeout_score": 2}, "timeout_score is outside 0 to 1."),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(VerifierError) as caught:
        parse_settings(FunctionSettings, "mine", settings, ())
    assert caught.value.cause == cause
    assert caught.value.move


# What the function does, and the error of the verdict; never a reward.
SET = "set verifier.range=[{}] or wider, so that it is mapped to 0 to 1"
UNJUDGED = {
    "raise ValueError('no idea')": "failed: ValueError: no idea (verify_func in mine.py:2)",
    "raise KeyError": "failed: KeyError (verify_func in mine.py:2)",
    "import sys; sys.exit()": "failed: SystemExit (verify_func in mine.py:2)",
    "raise BaseException('b')": "failed: BaseException: b (verify_func in mine.py:2)",
    "return None": "failed: the verifier returned None, not a reward",
    "return 'good'": "failed: the verifier returned 'good', not a number",
    "return {'score': 1}": "failed: the verifier returned {'score': 1}, without \"reward\"",
    "return {'reward': '1'}": "failed: the verifier returned '1', not a number",
    "return {'reward': [1]}": "failed: the verifier returned [1], not a number",
    "return {'reward': 1, 'reasoning': 3}": (
        "failed: the verifier returned 3 as reasoning, not a text"
    ),
    "return {'reward': 1, 'metrics': [1]}": (
        "failed: the verifier returned [1] as metrics, not a dict"
    ),
    "return {'reward': 1, 'metrics': {'m': ''}}": "failed: the verifier returned '', not a number",
    "return {'reward': 1, 'metrics': {'m': float('nan')}}": (
        "failed: the verifier's metric 'm' is nan"
    ),
    "return 1.5": f"failed: the verifier returned 1.5, outside 0 to 1; {SET.format('0,1.5')}",
    "return -0.5": f"failed: the verifier returned -0.5, outside 0 to 1; {SET.format('-0.5,1')}",
    "return float('inf')": "failed: the verifier returned inf",
    "return float('nan')": "timeout: the function gave up on it",
}


async def test_what_cannot_be_used_is_unjudged_and_never_zero(tmp_path: Path) -> None:
    cases = "".join(f"    if n == {n}:\n        {code}\n" for n, code in enumerate(UNJUDGED))
    source = f"def verify_func(sample):\n    n = int(sample.response)\n{cases}    return 1.0\n"
    path = a_file(tmp_path, source)
    verdicts = await judged(path, *map(str, range(len(UNJUDGED) + 1)))
    for n, (verdict, error) in enumerate(zip(verdicts, UNJUDGED.values(), strict=False)):
        expected = error.replace("mine.py:2", f"mine.py:{4 + 2 * n}")
        if not expected.startswith("timeout") and "mine.py" not in expected:
            expected += " (verify_func in mine.py)"
        assert (verdict.reward, verdict.error) == (None, expected)
    assert verdicts[-1] == Verdict(1.0)


UNTELLABLE = """
    class Bad(Exception):
        def __str__(self):
            raise SystemExit
    DEF judge(task, response):
        if response == "5":
            raise Bad
        return 1.0
    """


@pytest.mark.parametrize("form", ["def", "async def"])
async def test_an_exception_that_cannot_be_told_costs_its_own_verdict_at_once(
    tmp_path: Path, form: str
) -> None:
    path = a_file(tmp_path, UNTELLABLE.replace("DEF", form))
    bad, good = await judged(path, "5", "6", timeout_score=0.0, deadline_s=600)
    assert bad == Verdict(None, error="failed: Bad (judge in mine.py:7)")
    assert good.reward == 1.0


@pytest.mark.parametrize(
    "source",
    [
        "def reward(completions): return [float('nan')]",
        "async def judge(task, response): return float('nan')",
    ],
)
async def test_only_what_was_given_our_nan_can_hand_it_back(tmp_path: Path, source: str) -> None:
    (verdict,) = await judged(a_file(tmp_path, source), "5")
    name = source.partition("def ")[2].partition("(")[0]
    assert verdict == Verdict(None, error=f"failed: the verifier returned nan ({name} in mine.py)")


async def test_not_a_number_is_a_wrong_return_where_timeouts_have_a_score(tmp_path: Path) -> None:
    path = a_file(tmp_path, "def verify_func(sample): return float('nan')\n")
    (verdict,) = await judged(path, "5", timeout_score=0.5)
    assert verdict.error == "failed: the verifier returned nan (verify_func in mine.py)"


async def test_rewards_of_a_group_that_do_not_fit_are_told(tmp_path: Path) -> None:
    rows = {
        "return [1.0]": "failed: the verifier returned 1 rewards for 2 completions",
        "return 1.0": "failed: the verifier returned 1.0, not a list of rewards",
        "return [1.0, 'x']": "failed: the verifier returned 'x', not a number",
    }
    for n, (code, error) in enumerate(rows.items()):
        path = a_file(tmp_path, f"def reward(completions, **kwargs):\n    {code}\n", f"r{n}.py")
        assert {v.error for v in await judged(path, "5", "6")} == {f"{error} (reward in r{n}.py)"}
    path = a_file(tmp_path, "def reward(completions): return [1.0, 3.0]\n")
    assert [v.reward for v in await judged(path, "5", "6")] == [1.0, None]


async def test_a_column_that_the_data_does_not_have_is_told(tmp_path: Path) -> None:
    path = a_file(tmp_path, "def reward(completions, difficulty): return [1.0]\n")
    (verdict,) = await judged(path, "5")
    assert (verdict.error or "").startswith(
        'failed: the function cannot be called: it needs "difficulty", and the data has only: '
    )
    assert "ground_truth" in (verdict.error or "")


def test_arrays_are_lists_of_rewards() -> None:
    class Array:
        def tolist(self) -> list[float]:
            return [0.5, 1.0]

    got = parse_results(Array(), "trl", 2, {})
    assert [result["reward"] for result in got] == [0.5, 1.0]


async def test_a_check_that_failed_is_made_again(tmp_path: Path) -> None:
    path = a_file(tmp_path, "def verify_func(sample:\n")
    verifier = FunctionVerifier(FunctionSettings(), path)
    for _ in range(2):
        with pytest.raises(VerifierError):
            await verifier.verify(PROBLEM, [a_rollout("5")])
    path.write_text(OK)
    await verifier.check()
    assert await verifier.verify(PROBLEM, [a_rollout("5")]) == (Verdict(1.0),)
    await verifier.aclose()
