"""What may be written of a verifier, and what is refused with the key it is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import VerifierError
from engines.core.types import Sampling
from engines.record.ledger import RecordLedger
from engines.verifiers.answers import MathVerifier, TextSettings
from engines.verifiers.compose import WeightedVerifier
from engines.verifiers.judge import JudgeContext, JudgeVerifier
from engines.verifiers.open import (
    SpecError,
    asks_judge,
    find_file,
    needs_answer,
    open_verifier,
    parse_spec,
)
from tests.support.builders import a_problem, a_rollout, answering

FUNCTION = "def verify_func(sample, timeout_score=0, **kwargs):\n    return {'reward': 1.0}\n"


def judging(folder: Path, *replies: str) -> JudgeContext:
    return JudgeContext(answering(*replies), Sampling(0.0), RecordLedger(folder, 1))


def listed(*entries: object) -> dict[str, Any]:
    return {"name": "weighted", "of": list(entries)}


def test_a_name_and_a_mapping_open_the_same_verifier() -> None:
    assert isinstance(open_verifier("math"), MathVerifier)
    assert isinstance(open_verifier({"name": "math", "deadline_s": 1}), MathVerifier)
    settings = parse_spec({"name": "text", "mode": "choice"}).settings
    assert settings == TextSettings("choice")


def test_a_judge_opens_with_the_model_it_may_ask(tmp_path: Path) -> None:
    assert isinstance(open_verifier({"name": "judge"}, judging(tmp_path)), JudgeVerifier)


async def test_a_function_of_a_list_is_refused_where_the_data_lacks_its_column(
    tmp_path: Path,
) -> None:
    source = "def reward(completions, level, **kwargs): return [1.0]\n"
    (tmp_path / "mine.py").write_text(source)
    spec = listed("math", {"name": "function", "file": "mine"})
    for columns in (None, frozenset({"level"})):
        verifier = open_verifier(spec, None, [tmp_path], columns=columns)
        await verifier.check()
        await verifier.aclose()
    verifier = open_verifier(spec, None, [tmp_path], columns=frozenset({"topic"}))
    with pytest.raises(VerifierError, match=r'it needs "level", and the data has only: .*topic'):
        await verifier.check()
    await verifier.aclose()


async def test_a_list_opens_as_one_verifier_with_a_metric_for_each(tmp_path: Path) -> None:
    spec = listed(
        {"name": "text"},
        {"name": "text", "mode": "contains", "as": "words"},
        {"name": "judge", "weight": 2, "as": "opinion"},
    )
    reply = '{"reasoning": "Fine.", "correct": true}'
    verifier = open_verifier(spec, judging(tmp_path, reply))
    assert isinstance(verifier, WeightedVerifier)
    await verifier.check()
    (verdict,) = await verifier.verify(a_problem(), [a_rollout("I say: it is 5 apples.")])
    await verifier.aclose()
    # (1 · 0 + 1 · 1 + 2 · 1) / 4 = 0.75
    assert verdict.reward == 0.75
    assert verdict.metrics == {"text": 0.0, "words": 1.0, "opinion": 1.0}
    assert "opinion: Fine." in (verdict.critique or "").splitlines()


def test_a_file_is_looked_up_in_order_with_and_without_its_ending(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, names in ((first, ["x.py"]), (second, ["x.py", "y.py"])):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(FUNCTION)
    folders = (first, second)
    assert find_file("x", folders) == find_file("x.py", folders) == first / "x.py"
    assert find_file("y", folders) == second / "y.py"
    assert find_file(str(second / "x"), folders) == second / "x.py"
    assert find_file("z", folders) is None
    assert find_file("..", folders) is None


def test_the_files_a_verifier_would_load_are_known_before_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    spec = listed("math", {"name": "function", "file": "mine"})
    ready = parse_spec(spec, [tmp_path])
    assert ready.files == (tmp_path / "mine.py",)
    assert [criterion.name for criterion in ready.of] == ["math", "mine"]


def test_which_verifiers_need_an_answer_and_which_ask_a_judge() -> None:
    function = {"name": "function", "file": "f.py"}
    table: list[tuple[Any, bool, bool]] = [
        ("math", True, False),
        ({"name": "text", "mode": "exact"}, True, False),
        ("judge", False, True),
        (function, False, True),
        (listed("judge", function), False, True),
        (listed("judge", {"name": "math", "weight": 2}), True, True),
        (listed("text"), True, False),
        (listed(), False, False),
        ({"name": "weighted", "of": 5}, False, False),  # refused when it is read
        ({}, False, False),
    ]
    assert [(needs_answer(spec), asks_judge(spec)) for spec, _, _ in table] == [
        (needs, asks) for _, needs, asks in table
    ]


WRONG: dict[str, tuple[Mapping[str, Any] | str, tuple[str, ...], str, str]] = {
    "unknown name": ("mathh", ("name",), "no such verifier", 'Did you mean "math"?'),
    "no name at all": ({}, (), '"name" is missing', "Known: math, text, judge"),
    "a name that is a file": ("mine", ("name",), "no such verifier", "{file: mine.py}"),
    "a name that is no text": ({"name": 5}, ("name",), "no such verifier", "Known:"),
    "unknown setting": ({"name": "text", "mod": "x"}, ("mod",), '"mod"', 'Did you mean "mode"?'),
    "unknown setting of math": ({"name": "math", "mode": "x"}, ("mode",), '"mode"', "Known: dead"),
    "unknown setting of judge": (
        {"name": "judge", "rubrik": "x"},
        ("rubrik",),
        '"rubrik"',
        '"rubric"',
    ),
    "a choice that is none": ({"name": "text", "mode": "fuzzy"}, ("mode",), '"fuzzy"', "'exact'"),
    "a text for a number": (
        {"name": "math", "deadline_s": "fast"},
        ("deadline_s",),
        'deadline_s is "fast"',
        "valid number",
    ),
    "a truth for a number": (
        {"name": "math", "workers": True},
        ("workers",),
        "true",
        "integer",
    ),
    "a fraction for a whole number": (
        {"name": "math", "workers": 1.5},
        ("workers",),
        "1.5",
        "integer",
    ),
    "a text for a truth": (
        {"name": "judge", "score": "no"},
        ("score",),
        '"no"',
        "'binary' or 'graded'",
    ),
    "a number for a text": ({"name": "judge", "rubric": 3}, ("rubric",), "is 3", "string"),
    "null where nothing may be": (
        {"name": "judge", "rubric": None},
        ("rubric",),
        "null",
        "string",
    ),
    "a list for a text": (
        {"name": "judge", "rubric": ["a"]},
        ("rubric",),
        "rubric",
        "string",
    ),
    "an empty rubric": ({"name": "judge", "rubric": " "}, ("rubric",), "empty", "Say what"),
    "an unknown score": ({"name": "judge", "score": "stars"}, ("score",), '"stars"', "'binary' or"),
    "out of range": (
        {"name": "math", "workers": 0},
        ("workers",),
        "is 0",
        "equal to 1",
    ),
    "a score beyond one": (
        {"name": "math", "timeout_score": 2},
        ("timeout_score",),
        "is 2",
        "less than or equal to 1",
    ),
    "a pattern missing": ({"name": "text", "mode": "regex"}, (), "pattern", "Give one"),
    "a broken pattern": (
        {"name": "text", "mode": "regex", "pattern": "("},
        ("pattern",),
        "not a regular",
        "Mend",
    ),
    "weight outside a list": ({"name": "math", "weight": 2}, ("weight",), '"weight"', "Known:"),
    "an empty list": (listed(), ("of",), "no list with", "Name at least one"),
    "a list that is none": ({"name": "weighted", "of": "math"}, ("of",), "no list", "[math"),
    "a list without entries": ({"name": "weighted"}, ("of",), "no list with", "Name at least one"),
    "a setting beside a list": (
        {"name": "weighted", "of": ["math"], "deadline_s": 1},
        ("deadline_s",),
        "beside a list",
        "in an entry",
    ),
    "weight 0": (
        listed({"name": "math", "weight": 0}),
        ("of", "0", "weight"),
        "is 0",
        "Set another",
    ),
    "weight as text": (
        listed({"name": "math", "weight": "2"}),
        ("of", "0", "weight"),
        "'2'",
        "Set",
    ),
    "weight without end": (
        listed({"name": "math", "weight": float("inf")}),
        ("of", "0", "weight"),
        "inf",
        "another number",
    ),
    "weight true": (listed({"name": "math", "weight": True}), ("of", "0", "weight"), "Tr", "Set "),
    "as twice": (
        listed({"name": "math", "as": "x"}, "text", {"name": "text", "as": "x"}),
        ("of", "2", "as"),
        '"x" is taken',
        "of its own",
    ),
    "two of one name": (listed("math", "math"), ("of", "1", "as"), '"math" is taken', "of its own"),
    "as empty": (listed({"name": "math", "as": ""}), ("of", "0", "as"), "names no metric", "Use"),
    "as with a slash": (listed({"name": "math", "as": "a/b"}), ("of", "0", "as"), "a/b", "letters"),
    "an entry that is a number": (listed("math", 5), ("of", "1"), "no verifier", "Write a name"),
    "an entry that is null": (listed(None), ("of", "0"), "no verifier", "Write a name"),
    "an entry without a name": (listed({"weight": 2}), ("of", "0"), '"name" is missing', "Known"),
    "a bare list in a list": (listed(["math"]), ("of", "0"), "no verifier", "weighted"),
    "a name beside a file": (
        {"name": "judge", "file": "mine.py"},
        ("file",),
        'beside the name "judge"',
        "Leave one",
    ),
    "a list in a list": (listed(listed("math")), ("of", "0"), "a list itself", "outer one"),
    "a wrong setting in an entry": (
        listed("math", {"name": "text", "mode": "fuzzy"}),
        ("of", "1", "mode"),
        '"fuzzy"',
        "'exact'",
    ),
    "an unknown name in an entry": (
        listed("math", "txt"),
        ("of", "1", "name"),
        "no such",
        '"text"',
    ),
    "a judge without a model": ("judge", (), "none that can judge", "Set judge: openai:MODEL"),
    "a judge in a list without a model": (listed("math", "judge"), ("of", "1"), "none that", "Set"),
    "a file that is nowhere": (
        {"name": "function", "file": "mien.py"},
        ("file",),
        "no such file",
        'Did you mean "mine.py"?',
    ),
    "a whole path that is nowhere": (
        {"name": "function", "file": "/nowhere/zzz.py"},
        ("file",),
        "no such file",
        "studio data verifiers",
    ),
    "no file": ({"name": "function", "function": "f"}, ("file",), '"file" is missing', "MINE.py"),
    "a file that is no text": ({"name": "function", "file": 3}, ("file",), "no path", "MINE.py"),
    "an empty file name": ({"name": "function", "file": " "}, ("file",), "no path", "MINE.py"),
    "a folder for a file": (
        {"name": "function", "file": "."},
        ("file",),
        "no such file",
        "mine.py",
    ),
    "unknown setting of a function": (
        {"name": "function", "file": "mine.py", "functoin": "f"},
        ("functoin",),
        'no setting "functoin"',
        'Did you mean "function"?',
    ),
    "a range of three": (
        {"name": "function", "file": "mine.py", "range": [0, 1, 2]},
        ("range",),
        "range is",
        "at most 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_refused_with_its_key_cause_and_move(tmp_path: Path, case: str) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    spec, at, cause, move = WRONG[case]
    with pytest.raises(SpecError) as caught:
        open_verifier(spec, None, [tmp_path])
    assert isinstance(caught.value, VerifierError)
    assert caught.value.at == at
    assert cause in caught.value.cause
    assert move in caught.value.move
    assert caught.value.place
