"""What a session shows of how a try went."""

from __future__ import annotations

import pytest

from engines.data.sessions.tries import Signals, read_person

SAID = {
    "thanks": [
        "Thanks!",
        "perfect",
        "Great, works now",
        "ok thank you so much",
        "LGTM 👍",
        "That works.",
    ],
    "correction": [
        *("No, that's wrong", "no that is not it", "Nope", "wrong file", "that's not what I meant"),
        *(
            "It still fails",
            "this doesn't work",
            "you forgot the tests",
            "Undo that",
            "still broken",
        ),
    ],
    "go on": ["yes", "Continue.", "ok, ", "go ahead!"],
    "request": [
        *("Now add a test", "No tests exist for x; write them", "nobody uses this, remove it"),
        *(
            "Nice layout wanted for the page",
            "works council page: add it",
            "Can you fix it?",
            "no problem",
        ),
        *("next, write the docs", "The build fails on Windows", "Great but it still fails"),
    ],
}


@pytest.mark.parametrize(
    ("said", "text"), [(said, text) for said, all in SAID.items() for text in all]
)
def test_what_a_person_says_next_is_told_apart(said: str, text: str) -> None:
    assert read_person(text) == said


RESULTS = [
    ("pytest -q", "3 passed in 1s", False, True),
    ("pytest -q", "1 failed, 2 passed", True, False),
    ("pytest -q | tail -3", "1 failed, 2 passed", False, False),
    ("cd a && npm run test:unit", "", False, True),
    ("cargo nextest run", "0 failed", None, None),
    ("cargo test", "test result: ok. 3 passed; 0 failed", None, True),
    ("go test ./...", "ok  \tx\t0.1s", None, True),
    ("cat test.py", "1 failed", True, None),
    ("pytest --version", "", None, None),
]


@pytest.mark.parametrize(("command", "text", "failed", "expected"), RESULTS)
def test_tests_count_by_exit_code_and_by_what_they_say(
    command: str, text: str, failed: bool | None, expected: bool | None
) -> None:
    signals = Signals()
    signals.see_call("1", {"command": command})
    signals.see_result("1", text, failed)
    assert signals.tests_passed is expected


def test_the_person_outweighs_tests_and_a_score_outweighs_both() -> None:
    signals = Signals(tests_passed=True, committed=True, said="corrected")
    assert signals.outcome(None, "") == (
        0.0,
        ("corrected by the person", "tests passed", "committed"),
    )
    assert signals.outcome(0.5, "reward")[0] == 0.5
    assert signals.outcome(3.0, "reward") == (None, ("reward 3", *signals.outcome(None, "")[1]))


def test_nothing_known_is_no_zero() -> None:
    assert Signals().outcome(None, "") == (None, ())
    assert Signals(error=True).outcome(None, "") == (None, ("ended with an error",))


def test_a_commit_counts_where_it_went_through() -> None:
    signals = Signals()
    signals.see_call("1", ["bash", "-lc", "git add -A && git commit -m x"])
    signals.see_result("1", "", True)
    assert signals.outcome(None, "") == (None, ())
    signals.see_call("2", {"cmd": "git -c a=b commit -m x"})
    signals.see_result("2", "[main 1] x", None)
    assert signals.outcome(None, "") == (1.0, ("committed",))
