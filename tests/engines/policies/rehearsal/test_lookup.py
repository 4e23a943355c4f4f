"""Rehearsal that looks things up: right and wrong ways, and a contrast of steps that come twice."""

from __future__ import annotations

import pytest

from engines.policies.rehearsal.prompt import AttemptLine, ShownAttempt
from engines.policies.rehearsal.reflect import find_lessons
from engines.policies.rehearsal.reply import read_request, write_reply
from engines.policies.rehearsal.solve import Draw, stance
from engines.policies.rehearsal.tools import recognise_lookup, team_reply
from sample_data.make_wiki import KINDS

PAGES = (
    "Ada Arnem was born in Kelden and died in Selden. It stands in Marholt, was opened by Paul "
    "Ingram and served the tin trade. They have their house in Alholt.",
    "It lies on the Orle. Its mayor is Mira Eskel. The market is held on Sunday. It was founded in "
    "1146. The town is known for its lace. The longest river is the Arle.",
)


def test_a_step_that_comes_twice_in_an_attempt_is_told_from_where_they_part() -> None:
    one, two = AttemptLine("one", "when asked, count"), AttemptLine("two", "when told, add")
    won = ShownAttempt(0, 1.0, (one, two, one), "5")
    lost = ShownAttempt(1, 0.0, (one, two, two), "6")
    (lesson,) = find_lessons([won], [lost], "?")
    assert lesson.attempts == (0, 1)
    assert "attempt 1" in lesson.reason


@pytest.mark.parametrize(("kind", "question"), KINDS)
def test_each_kind_of_question_has_a_right_way_a_wrong_one_and_a_skill(
    kind: str, question: str
) -> None:
    lookup = recognise_lookup(question.format(of="Ada Arnem"))
    assert lookup is not None and lookup.kind.family == kind
    if kind != "unchecked":  # there the verifier decides
        seen = ("Nothing found.",) if kind == "empty" else PAGES[:1] if kind == "premature" else ()
        right, wrong = lookup.choose_act(seen, True), lookup.choose_act(seen, False)
        assert right != wrong
        assert not right.ends
        rule = f"[E1] {right.label.capitalize()}: {right.clause}."
    else:
        stops, step = lookup.check_memory(PAGES[:1], right=True)
        assert not stops
        assert lookup.check_memory(PAGES[:1], right=False)[0]
        rule = f"[E1] {step.label.capitalize()}: {step.clause}."
    assert stance(lookup.kind.family, rule) == "stated"
    assert stance(lookup.kind.family, "[E1] Units: name the unit of every number.") == "silent"
    assert lookup.answer(PAGES) in ("Orle", "Mira Eskel", "Sunday", "1146", "lace")
    assert lookup.answer(PAGES[:1]) not in ("Orle", "Mira Eskel", "Sunday", "1146", "lace")


def test_what_it_cannot_work_on_it_says_and_leaves_to_the_planner() -> None:
    asked = "# Task: {}\n\n## Question\n\n| What is love?\n\n## Memory\n\n(nothing yet)"
    assert '"tool_name":"none"' in team_reply(asked.format("plan"), Draw("", 1, 0.0))
    assert "stand-in" in team_reply(asked.format("answer"), Draw("", 1, 0.0))
    known = asked.replace("(nothing yet)", "### Step 1: calculator\n| Result:\n| 42")
    assert team_reply(known.format("answer"), Draw("", 1, 0.0)).endswith("#### 42")


def test_it_is_a_member_of_a_team_in_a_talk_too() -> None:
    said = ("What is 2 + 2?", "# Task: check\n\n## Question\n\n| What is love?", "Write it again.")
    messages = [{"role": "user", "content": text} for text in said]
    messages.insert(1, {"role": "assistant", "content": "#### 4"})
    assert "stop_signal" in write_reply(read_request({"model": "m", "messages": messages})).text
