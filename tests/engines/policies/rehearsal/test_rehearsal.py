"""The rehearsal model: its chances, its lessons, its protocol."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import orjson
import pytest

import sample_data
from engines.core.library import guidance_text
from engines.core.text.prompts import load_prompt, quote
from engines.policies.rehearsal.reflect import reflector_reply
from engines.policies.rehearsal.reply import read_request, stream_reply, write_reply
from engines.policies.rehearsal.server import answer_request
from engines.policies.rehearsal.solve import Draw, recognise, solve, stance
from sample_data import make_problems

DATA = Path(sample_data.__file__).parent
SOURCES = {
    "addition with carry": "addition",
    "subtraction with borrow": "subtraction",
    "two-step story": "story",
    "precedence": "precedence",
}
IRRELEVANT = [
    "Units: when a result has a unit, write the unit after the number.",
    "Calm: when time is short, breathe first and then begin.",
    "Check: when you have finished, read the question again.",
    "Right amounts: when a problem gives several amounts, say what each of them counts.",
]
LESSONS = {
    "addition": "Carry: when a column adds up to ten or more, carry one into the next column.",
    "subtraction": "Borrow: when the upper digit of a column is smaller than the lower one, "
    "borrow ten from the next column.",
    "story": "Last change: when a story tells of more than one change, answer only after "
    "the last one.",
    "precedence": "Multiply first: when an expression mixes multiplication with other "
    "operations, multiply before anything else.",
}


def complete_request(request):
    """Text and finish reason of a reply."""
    reply = write_reply(read_request(request))
    return reply.text, reply.finish


def rows(name):
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def a_request(question="What is 47 + 38?", experiences=(), **settings):
    guidance = guidance_text((f"E{n}", text) for n, text in enumerate(experiences, 1))
    system = {"role": "system", "content": f"Solve the problem step by step.\n\n{guidance}"}
    user = {"role": "user", "content": question}
    return {"model": "rehearsal", "messages": [system, user], "seed": 7, **settings}


def an_extract_prompt(
    question, attempts, *, truth="(not shown)", library=(), limit=1, curated="(none)", credit=""
):
    """`attempts` are pairs of text and reward, None for a reward that is not shown."""
    blocks = [
        f"### Attempt {n}{'' if reward is None else f' · reward {reward:.2f}'}\n{quote(text)}"
        for n, (text, reward) in enumerate(attempts)
    ]
    shown = quote("\n".join(f"[E{n}] {text}" for n, text in enumerate(library, 1)))
    instructions = load_prompt("engines.training_free", "extract").render(
        agent_objective="| solve",
        learning_objective="| learn",
        library=shown if library else "(empty)",
        credit=credit,
        reviewed=f"\n\n## Reviewed before\n\n{curated}",
        limit=str(limit),
        max_words="60",
    )
    group = load_prompt("engines.training_free", "contrast").render(
        problem=quote(question),
        truth=quote(truth),
        attempts="\n\n".join(blocks),
        rest="",
        before="No experience stood in front of them.",
    )
    return f"{instructions}\n\n{group}"


def a_consolidate_prompt(proposals, *, library=(), room="The library may grow.", curated="(none)"):
    """`proposals` are triples of kind with target, text and reason."""
    blocks = [
        f"### Proposal {n} · s1p{n} · {kind}\n"
        + quote("\n".join([*([text] if text else []), f"because: {reason}"]))
        for n, (kind, text, reason) in enumerate(proposals, 1)
    ]
    shown = quote("\n".join(f"[E{n}] {text}" for n, text in enumerate(library, 1)))
    return load_prompt("engines.training_free", "consolidate").render(
        agent_objective="| solve",
        learning_objective="| learn",
        proposals="\n\n".join(blocks),
        library=shown if library else "(empty)",
        curated=curated,
        room=room,
    )


def operations(prompt):
    return json.loads(reflector_reply(prompt, fenced=False))


def solved(question, experiences=(), seeds=range(8)):
    """Tries of a question as pairs of text and reward."""
    right = f"#### {recognise(question).answer}"
    texts = [complete_request(a_request(question, experiences, seed=seed))[0] for seed in seeds]
    return [(text, float(text.endswith(right))) for text in texts]


def accuracy(experiences=(), family=None):
    """Mean reward over the held-out problems, two seeds each, and the rewards in order."""
    rewards = [
        reward
        for row in rows("arithmetic-heldout.jsonl")
        if family in (None, SOURCES[row["source"]])
        for _, reward in solved(row["question"], experiences, seeds=range(2))
    ]
    return sum(rewards) / len(rewards), rewards


def learned_lessons():
    """One practice problem of each family, reflected on; family → the lesson written."""
    lessons = {}
    for row in rows("arithmetic.jsonl"):
        attempts = solved(row["question"])
        if len({reward for _, reward in attempts}) == 2:
            (wish,) = operations(an_extract_prompt(row["question"], attempts))
            lessons.setdefault(SOURCES[row["source"]], wish["experience"])
    return lessons


async def sent(request):
    return b"".join([piece async for piece in stream_reply(read_request(request))])


def events(body):
    lines = [line for line in body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[len("data: ") :] for line in lines]


# --- sample data ---------------------------------------------------------------------


def test_the_sample_files_are_what_their_program_writes(tmp_path):
    make_problems.write(tmp_path)
    for name in ("arithmetic.jsonl", "arithmetic-heldout.jsonl", "replay.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_every_sample_problem_is_recognised_with_its_answer_and_has_a_trap():
    for row in [*rows("arithmetic.jsonl"), *rows("arithmetic-heldout.jsonl")]:
        task = recognise(row["question"])
        assert (task.family, str(task.answer)) == (SOURCES[row["source"]], row["answer"])
        assert task.answer != task.wrong_answer and task.traps


def test_no_held_out_question_is_practised_on():
    practice = {row["question"] for row in rows("arithmetic.jsonl")}
    heldout = {row["question"] for row in rows("arithmetic-heldout.jsonl")}
    assert len(practice) == 32 and len(heldout) >= 240 and not practice & heldout


def test_the_sample_log_holds_groups_of_every_kind():
    kinds = {tuple(sorted({r["reward"] for r in row["rollouts"]})) for row in rows("replay.jsonl")}
    assert kinds == {(0.0,), (1.0,), (0.0, 1.0)}


# --- rollouts ------------------------------------------------------------------------


def test_right_and_wrong_solutions_share_their_first_step_and_part_later():
    for row in rows("arithmetic.jsonl"):
        task = recognise(row["question"])
        assert task.right[0] == task.wrong[0]
        assert task.right != task.wrong


def test_a_number_is_borrowed_across_a_zero():
    task = recognise("What is 502 - 178?")
    assert task.answer == 324
    assert task.wrong_answer == 476  # 8-2, 7-0, 5-1


def test_the_last_column_of_a_sum_is_written_whole():
    task = recognise("What is 67 + 58?")
    assert (task.answer, task.wrong_answer) == (125, 115)  # 6 + 5 without the carry is 11


def test_without_experiences_three_in_ten_are_right():
    assert 0.24 < accuracy()[0] < 0.4


def test_with_the_lessons_nine_in_ten_are_right():
    assert accuracy(LESSONS.values())[0] > 0.85


def test_a_lesson_helps_its_own_family_only():
    for family, lesson in LESSONS.items():
        for other in LESSONS:
            before, after = accuracy((), other), accuracy([lesson], other)
            assert (after[0] > before[0] + 0.3) if other == family else (after == before)


def test_irrelevant_experiences_change_no_reply():
    for row in rows("arithmetic-heldout.jsonl"):
        assert solved(row["question"], IRRELEVANT, range(2)) == solved(
            row["question"], (), range(2)
        )


def test_a_lesson_never_turns_a_right_reply_into_a_wrong_one():
    before, after = accuracy()[1], accuracy(LESSONS.values())[1]
    assert all(b <= a for b, a in zip(before, after, strict=True))


@pytest.mark.parametrize("named_after", [0, 1])
def test_a_rule_under_the_condition_of_another_family_helps_neither(named_after):
    for pair in itertools.permutations(LESSONS, 2):
        named = LESSONS[pair[named_after]].partition(": ")[0]
        condition = LESSONS[pair[0]].partition(": ")[2].split(", ", 1)[0]
        rule = LESSONS[pair[1]].split(", ", 1)[1]
        swapped = guidance_text([("E1", f"{named}: {condition}, {rule}")])
        for family in LESSONS:
            assert stance(family, swapped) == "silent", (family, swapped)


def test_the_lessons_of_other_families_leave_a_problem_as_it_was():
    for family in LESSONS:
        others = [text for other, text in LESSONS.items() if other != family]
        assert accuracy(others, family) == accuracy((), family)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("addition", "Adding: never forget to carry the extra ten to the left."),
        ("addition", "In sums of 10 or more I carry the one over"),
        ("subtraction", "Regroup: when you subtract and the top digit is too small, regroup."),
        ("subtraction", "Minus: if a digit is smaller than the one below, take ten from the next."),
        ("story", "Word problems: do not stop after the first step; do every step."),
        ("precedence", "Order: in a mixed expression, multiplication comes first."),
    ],
)
def test_a_skill_in_other_words_is_understood(family, text):
    assert stance(family, guidance_text([("E3", text)])) == "stated"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("addition", "Never carry: when a column adds up to ten or more, never carry anything."),
        ("subtraction", "Plain: when one number is subtracted from another, do not borrow."),
        ("story", "Quick: when a story tells of two changes, never wait for the last one."),
        ("precedence", "Reading: in an expression, do not multiply first."),
    ],
)
def test_an_experience_that_denies_the_skill_hurts(family, text):
    assert stance(family, guidance_text([("E1", text)])) == "denied"
    assert accuracy([text], family)[0] < 0.12 < accuracy((), family)[0]


def test_a_lesson_and_its_denial_cancel_each_other():
    both = [LESSONS["addition"], "No: when a column adds up to ten or more, never carry."]
    assert stance("addition", guidance_text((f"E{n}", t) for n, t in enumerate(both))) == "silent"


def test_a_lesson_outside_the_experiences_is_no_experience():
    assert stance("addition", "You add. Always carry one into the next column.") == "silent"


def test_at_temperature_zero_the_likelier_solution_is_given_whatever_the_seed():
    question = "What is 47 + 38?"
    lesson = guidance_text([("E1", LESSONS["addition"])])
    for instructions, answer in (("", "75"), (lesson, "85")):
        replies = {solve(question, Draw(instructions, seed, 0)) for seed in range(20)}
        assert {reply.rpartition("#### ")[2] for reply in replies} == {answer}


def test_an_unknown_question_is_declined():
    text, finish = complete_request(a_request("Who wrote the first novel?"))
    assert "scripted" in text and text.endswith("#### unknown") and finish == "stop"


# --- reflector -----------------------------------------------------------------------


def test_every_family_lesson_is_written_from_its_attempts_and_understood_by_rollouts():
    lessons = learned_lessons()
    assert lessons == LESSONS
    assert accuracy(lessons.values())[0] > accuracy()[0] + 0.4


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("addition", "carry", "transport"),
        ("subtraction", "borrow", "fetch"),
        ("story", "last change", "final turn"),
        ("precedence", "multiply", "bundle"),
    ],
)
def test_renamed_steps_give_a_renamed_lesson(family, old, new):
    row = next(
        r
        for r in rows("arithmetic.jsonl")
        if SOURCES[r["source"]] == family and len({w for _, w in solved(r["question"])}) == 2
    )
    attempts = [(text.replace(old, new), reward) for text, reward in solved(row["question"])]
    (wish,) = operations(an_extract_prompt(row["question"], attempts))
    capital = str.capitalize
    expected = LESSONS[family].replace(old, new).replace(capital(old), capital(new))
    assert wish["experience"] == expected != LESSONS[family]


def test_a_renamed_condition_reaches_the_lesson():
    attempts = [
        (text.replace("adds up to ten or more", "overflows"), reward)
        for text, reward in solved("What is 47 + 38?")
    ]
    (wish,) = operations(an_extract_prompt("What is 47 + 38?", attempts))
    assert wish["experience"] == ("Carry: when a column overflows, carry one into the next column.")


def test_a_rule_without_a_condition_takes_that_of_the_step_before():
    better = "Step 1 (look): when a door is shut, look at it: door 3.\nStep 2 (knock): knock: 3."
    worse = "Step 1 (look): when a door is shut, look at it: door 3.\nStep 2 (push): push: 3."
    (wish,) = operations(an_extract_prompt("Door?", [(better, 1.0), (worse, 0.0)]))
    assert wish["experience"] == "Knock: when a door is shut, knock."


def test_numbers_of_the_problem_stay_out_of_a_lesson():
    better = "Step 1 (go): when there are 17 doors, open 17 of them: 17."
    worse = "Step 1 (go): open one of them: 1."
    (wish,) = operations(an_extract_prompt("There are 17 doors.", [(better, 1.0), (worse, 0.0)]))
    assert "17" not in wish["experience"] and "open a number of them" in wish["experience"]


def test_a_slip_in_a_calculation_is_no_lesson():
    better = "(signs) 3*4-2\n(change) 3*4=12\n(last change) 12-2=10\n#### 10"
    for slip in ("(signs) 3*4-2\n(change) 3*4=1", "(signs) 3*4-2\n(change) 3*4=", "(signs) 3+4"):
        worse = f"{slip}\n(last change) 1-2=1\n#### 1"
        found = operations(an_extract_prompt("How many?", [(better, 1.0), (worse, 0.0)]))
        assert found == []


def test_the_evidence_names_the_attempts_on_both_sides_of_the_parting():
    attempts = solved("What is 47 + 38?")
    (wish,) = operations(an_extract_prompt("What is 47 + 38?", attempts))
    assert wish["attempts"] == list(range(len(attempts)))


def test_a_group_without_contrast_teaches_nothing():
    attempts = [(text, 1.0) for text, reward in solved("What is 47 + 38?", seeds=range(20))][:1] * 3
    assert operations(an_extract_prompt("What is 47 + 38?", attempts)) == []


def test_with_rewards_hidden_the_answer_of_most_attempts_counts():
    tries = solved("What is 47 + 38?", seeds=range(20))
    right = next(text for text, reward in tries if reward)
    wrong = next(text for text, reward in tries if not reward)
    shown = [(right, None), (wrong, None), (right, None)]
    (wish,) = operations(an_extract_prompt("What is 47 + 38?", shown))
    assert wish["experience"] == LESSONS["addition"]
    assert operations(an_extract_prompt("What is 47 + 38?", shown[:2])) == []


def test_a_lesson_the_library_has_is_kept():
    prompt = an_extract_prompt(
        "What is 47 + 38?", solved("What is 47 + 38?"), library=[IRRELEVANT[0], LESSONS["addition"]]
    )
    (wish,) = operations(prompt)
    assert (wish["operation"], wish["id"], wish["experience"]) == ("keep", "E2", "")


def test_attempts_that_follow_an_experience_are_credited_to_it_where_that_is_asked():
    attempts = solved("What is 47 + 38?")
    known = {"library": [IRRELEVANT[0], LESSONS["addition"]]}
    asked = load_prompt("engines.training_free", "credit").render()
    _, *credits = operations(an_extract_prompt("What is 47 + 38?", attempts, **known, credit=asked))
    right = [n for n, (text, _) in enumerate(attempts) if "carry one" in text]
    wrong = [n for n in range(len(attempts)) if n not in right]
    assert credits == [
        {"credit": "E2", "use": "used", "attempts": right},
        {"credit": "E2", "use": "ignored", "attempts": wrong},
    ]
    assert right and wrong


def test_what_reviewers_made_of_earlier_ideas_does_not_lead_the_reflector():
    block = "### Rejected · add\n| [E1] Attempt: 0 may be added, at most 0 objects.\n| because: no"
    tries = solved("What is 47 + 38?")
    plain, told = (
        an_extract_prompt("What is 47 + 38?", tries, curated=each) for each in ("(none)", block)
    )
    assert plain != told and operations(plain) == operations(told)
    proposals = [("add", LESSONS["addition"], "a")]
    assert operations(a_consolidate_prompt(proposals)) == operations(
        a_consolidate_prompt(proposals, curated=block)
    )


def test_a_rule_without_its_condition_is_modified():
    prompt = an_extract_prompt(
        "What is 47 + 38?",
        solved("What is 47 + 38?"),
        library=["Carry: carry one into the next column."],
    )
    (wish,) = operations(prompt)
    assert (wish["operation"], wish["id"]) == ("modify", "E1")
    assert wish["experience"] == LESSONS["addition"]


def test_an_experience_that_misled_is_deleted_within_the_limit():
    misleading = "Write: when adding, write the last digit of the column and go on."
    attempts = solved("What is 47 + 38?")
    one, two = (
        operations(
            an_extract_prompt("What is 47 + 38?", attempts, library=[misleading], limit=limit)
        )
        for limit in (1, 2)
    )
    assert [w["operation"] for w in one] == ["add"]
    assert [(w["operation"], w["id"]) for w in two] == [("add", None), ("delete", "E1")]


def test_a_foreign_log_gives_general_lessons_without_its_numbers_and_names():
    found = {}
    for row in rows("replay.jsonl"):
        attempts = [(r["response"], r["reward"]) for r in row["rollouts"]]
        for wish in operations(an_extract_prompt(row["question"], attempts, truth=row["answer"])):
            found[row["question"]] = wish["experience"]
    assert len(found) >= 9 and len(set(found.values())) == 2
    for text in found.values():
        assert not any(c.isdigit() for c in text)
        assert not any(name in text for name in ("Farid", "Greta", "Hugo", "Jana"))
    by_name = {question.split()[0]: text for question, text in found.items()}
    assert by_name["Farid"].startswith("Go on to what is asked")
    assert by_name["Greta"].startswith("Check each result")


def test_of_several_expected_answers_any_one_wins():
    question = "What is 47 + 38?"
    told = solved(question)
    assert {reward for _, reward in told} == {0.0, 1.0}
    attempts = [(text, None) for text, _ in told]
    alone, several, other = (
        operations(an_extract_prompt(question, attempts, truth=truth))
        for truth in ("85", "any one of:\n999\n85", "any one of:\n999\n1000")
    )
    assert alone and several == alone
    assert other == [], "nobody is right, so there is no contrast"


def test_a_summary_keeps_what_a_lesson_is_drawn_from():
    render = load_prompt("engines.training_free", "summarise").render
    attempts = []
    for text, reward in solved("What is 47 + 38?"):
        note = f"{text}\n(verifier: expected 85)"
        prompt = render(
            problem="| What is 47 + 38?", reward=f" · reward {reward:.2f}", attempt=quote(note)
        )
        attempts.append((reflector_reply(prompt, fenced=False), reward))
    assert attempts[0][0].startswith("1. (columns) when numbers are added")
    (wish,) = operations(an_extract_prompt("What is 47 + 38?", attempts))
    assert wish["experience"] == LESSONS["addition"]


def test_proposals_that_say_the_same_become_one_operation_that_names_them_all():
    carry, borrow = LESSONS["addition"], LESSONS["subtraction"]
    found = operations(
        a_consolidate_prompt([("add", carry, "a"), ("add", borrow, "b"), ("add", carry, "c")])
    )
    assert [(w["operation"], w["experience"], w["proposals"]) for w in found] == [
        ("add", carry, [1, 3]),
        ("add", borrow, [2]),
    ]


def test_what_the_library_has_is_not_added_again():
    carry = LESSONS["addition"]
    proposals = [("add", carry, "a"), ("keep E1", "", "b"), ("keep E2", "", "c")]
    found = operations(a_consolidate_prompt(proposals, library=[carry, IRRELEVANT[0]]))
    assert [(w["operation"], w["id"], w["proposals"]) for w in found] == [
        ("keep", "E1", [1, 2]),
        ("keep", "E2", [3]),
    ]


def test_proposed_changes_and_deletions_reach_the_operations():
    library = ["Carry: carry one into the next column.", "Write: write the last digit."]
    proposals = [
        ("modify E1", LESSONS["addition"], "a"),
        ("delete E2", "", "b"),
        ("keep E1", "", "c"),
    ]
    found = operations(a_consolidate_prompt(proposals, library=library))
    assert [(w["operation"], w["id"], w["proposals"]) for w in found] == [
        ("modify", "E1", [1, 3]),
        ("delete", "E2", [2]),
    ]
    assert found[0]["experience"] == LESSONS["addition"]


def test_no_more_is_added_than_the_library_has_room_for():
    proposals = [("add", text, "r") for text in LESSONS.values()]
    room = "The library holds 48 of at most 50: 2 may be added."
    rows = operations(a_consolidate_prompt(proposals, room=room))
    dropped = [row for row in rows if "drop" in row]
    assert len(rows) - len(dropped) == 2
    assert {row["because"] for row in dropped} == {"The library has no room for it."}
    named = [n for row in rows for n in row.get("proposals", row.get("drop"))]
    assert sorted(named) == list(range(1, len(proposals) + 1))


def test_a_repair_turn_gets_the_plain_array_of_the_same_operations():
    instructions, _, group = an_extract_prompt(
        "What is 47 + 38?", solved("What is 47 + 38?")
    ).partition("\n\n# Some tries")
    asked = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": f"# Some tries{group}"},
    ]
    texts = set()
    for seed in range(9):
        first = {"model": "m", "messages": asked, "seed": seed}
        text, _ = complete_request(first)
        texts.add(text.startswith("```json\n"))
        repair = load_prompt("engines.training_free", "repair").render(
            problem="It is in a fence.", form='    {"operation": "add"}', reply=quote(text)
        )
        again, _ = complete_request({**first, "messages": [{"role": "user", "content": repair}]})
        plain = text.removeprefix("```json\n").removesuffix("\n```")
        assert json.loads(again) == json.loads(plain)
    assert texts == {True, False}  # fenced for some seeds, plain for others


# --- protocol ------------------------------------------------------------------------


async def test_the_same_request_gives_the_same_bytes():
    request = a_request(stream=True)
    assert await sent(request) == await sent(dict(request))
    assert await sent(request) != await sent({**request, "seed": 8})


async def test_a_stream_is_deltas_then_finish_then_usage_then_done():
    request = a_request(stream=True, stream_options={"include_usage": True})
    *chunks, done = events(await sent(request))
    assert done == "[DONE]"
    parsed = [orjson.loads(chunk) for chunk in chunks]
    *deltas, finish, usage = parsed
    assert len({chunk["id"] for chunk in parsed}) == 1 and len(deltas) > 5
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in deltas)
    assert text == complete_request(request)[0]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == -(-len(text) // 4)
    assert usage["usage"]["total_tokens"] == (
        usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    )


async def test_without_a_stream_one_object_holds_the_same_text():
    body = orjson.loads(await sent(a_request()))
    choice = body["choices"][0]
    assert body["object"] == "chat.completion" and body["model"] == "rehearsal"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == complete_request(a_request())[0]


def test_max_tokens_cuts_with_finish_length():
    whole, _ = complete_request(a_request())
    cut, finish = complete_request(a_request(max_tokens=10))
    assert (cut, finish) == (whole[:40], "length")  # four characters a token
    assert complete_request(a_request(max_tokens=4000)) == (whole, "stop")


def test_a_stop_text_ends_the_reply_before_it():
    text, finish = complete_request(a_request(stop=["####"]))
    assert text.endswith(".\n") and finish == "stop"


def test_content_in_parts_is_read():
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "47 + 38?"}]
    request = a_request()
    request["messages"][1] = {"role": "user", "content": parts}
    assert complete_request(request) == complete_request(a_request())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 1.5}, "seed"),
        ({"n": 2}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": [1]}, "stream_options"),
        ({"slips": {"2 + 2": "typo"}}, "slips"),
    ],
)
async def test_a_malformed_request_is_answered_with_an_error_that_names_the_field(change, named):
    made = answer_request("POST", "/v1/chat/completions", json.dumps(a_request(**change)).encode())
    error = orjson.loads(b"".join([piece async for piece in made.body]))["error"]
    assert made.status == 400 and f'"{named}"' in error["message"]
    assert error["type"] == "invalid_request_error"
