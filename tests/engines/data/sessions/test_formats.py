"""The same session, read from what each program keeps of it, gives the same tries."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import DataError
from engines.data.sessions.formats import FORMATS, read_sessions
from engines.data.sessions.steps import Intake
from engines.data.sessions.tries import Try, read_tries
from engines.secrets.redactor import Redactor
from tests.support.session_files import (
    WRITERS,
    Act,
    act,
    claude_line,
    claude_lines,
    codex_line,
    codex_lines,
    genai_messages,
    inspect_head,
    inspect_sample,
    interrupt,
    otel_span,
    otlp,
    say,
    user,
    write_atif,
    write_claude,
    write_codex,
    write_json,
    write_lines,
    write_opencode_export,
)

TESTS_FAIL = act("Bash", {"command": "pytest -q"}, "1 failed, 2 passed", 1)
TESTS_PASS = act("Bash", {"command": "pytest -q"}, "3 passed in 0.1s", 0)
SESSION = [
    user("Fix the failing test"),
    say("I will look."),
    TESTS_FAIL,
    act("Edit", {"file": "a.py", "new": "x = 1"}, "done", None),
    TESTS_PASS,
    say("It is fixed."),
]


def tries_of(name: str, path: Path, intake: Intake | None = None) -> list[Try]:
    intake = intake or Intake()
    sessions = read_sessions(name, path, intake)
    return [one for session in sessions for one in read_tries(session, Redactor(), intake)]


@pytest.mark.parametrize("label", WRITERS)
def test_every_program_keeps_the_same_try_of_a_request(label: str, tmp_path: Path) -> None:
    name, write = WRITERS[label]
    (one,) = tries_of(name, write(tmp_path, "one", SESSION))
    assert (one.request, one.reward, one.model) == (
        "Fix the failing test",
        1.0,
        "model-x"[-7:],
    ) or (
        one.model == "p/model-x"  # inspect names the provider too
    )
    lines = [line for line in one.text.splitlines() if "xit code" not in line]
    assert [line for line in lines if not line.startswith("[tool]")] == [
        "[assistant] I will look.",
        '[calls Bash] {"command": "pytest -q"}',
        '[calls Edit] {"file": "a.py", "new": "x = 1"}',
        '[calls Bash] {"command": "pytest -q"}',
        "[assistant] It is fixed.",
    ]
    assert {"[tool] 1 failed, 2 passed", "[tool] 3 passed in 0.1s"} <= set(lines)
    assert one.signals == ("tests passed",)


@pytest.mark.parametrize("label", ["claude", "codex", "opencode database"])
def test_a_folder_holds_all_the_sessions_below_it(label: str, tmp_path: Path) -> None:
    name, write = WRITERS[label]
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, f"s{number}", [user(f"Request {number}"), say("Done.")])
    assert [one.request for one in tries_of(name, tmp_path)] == [f"Request {n}" for n in range(3)]


@pytest.mark.parametrize("label", ["claude", "codex", "opencode export"])
def test_a_correction_ends_a_try_and_begins_another_at_the_same_request(
    label: str, tmp_path: Path
) -> None:
    name, write = WRITERS[label]
    acts = [user("Sort it"), say("Sorted by name."), user("No, that's wrong: by date")]
    acts += [
        say("By date."),
        interrupt(),
        user("newest first"),
        say("Newest first."),
        user("Thanks!"),
    ]
    found = tries_of(name, write(tmp_path, "s", acts))
    assert [(one.request, one.reward) for one in found] == [
        ("Sort it", 0.0),
        ("Sort it", 0.0),
        ("Sort it", 1.0),
    ]
    assert found[1].signals == ("interrupted by the person",)
    assert found[2].text == "[user] newest first\n[assistant] Newest first."


def test_a_later_request_has_what_was_said_before_it_in_front(tmp_path: Path) -> None:
    acts = [user("Write f"), say("Here is f."), user("Now write g like it"), say("Here is g.")]
    first, second = tries_of("claude", write_claude(tmp_path, "s", acts))
    assert (first.request, first.reward, first.signals) == ("Write f", None, ())
    assert second.request == (
        "Earlier in the session:\n[user] Write f\n[assistant] Here is f.\n\n"
        "The request now:\nNow write g like it"
    )


def with_lines(folder: Path, *lines: Any) -> Path:
    return write_lines(folder / "s.jsonl", lines)


def test_a_taken_back_request_is_a_try_of_its_own_and_leaves_the_history(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), say("a"), user("B"), say("b"), user("C"), say("c")])
    lines[4]["parentUuid"] = lines[1]["uuid"]  # the person went back to before B
    found = tries_of("claude", with_lines(tmp_path, *lines))
    assert [one.signals for one in found] == [(), ("taken back by the person",), ()]
    assert found[1].reward is None
    assert "[user] A" in found[2].request and "[user] B" not in found[2].request


def test_sub_agents_and_compactions_of_claude_are_linked_and_not_doubled(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), act("Task", {"prompt": "look"}, "found", 0), say("a")])
    lines[2]["toolUseResult"] = {"status": "completed", "agentId": "ab12", "totalTokens": 3}
    side = {"role": "user", "content": "look"}
    inner = claude_line("user", "x1", None, "s", message=side) | {
        "isSidechain": True,
        "agentId": "ab12",
    }
    boundary = claude_line(
        "system", "x2", None, "s", subtype="compact_boundary", content="Compacted"
    )
    told = {"role": "user", "content": "This session goes on: A was asked."}
    summary = claude_line("user", "x3", "x2", "s", message=told, isCompactSummary=True)
    after = claude_lines("t", [user("B"), say("b")])
    after[0]["parentUuid"] = "x3"
    with_lines(tmp_path, *lines, inner, boundary, summary, *after)
    write_lines(tmp_path / "s" / "subagents" / "agent-ab12.jsonl", [inner])
    intake = Intake()
    sessions = []
    for session in read_sessions("claude", tmp_path, intake):
        sessions.append((session, list(read_tries(session, Redactor(), intake))))
    (own, tries), (other, none) = sorted(sessions, key=lambda one: bool(one[0].part_of))
    assert (own.subagents, other.part_of, other.id, none) == (["ab12"], "s", "agent-ab12", [])
    assert [one.request.rpartition("\n")[2] for one in tries] == ["A", "B"]
    assert "[summary] This session goes on" in tries[1].request
    assert "[user] A" not in tries[1].request
    assert intake.dropped["compactions (linked)"] == 1
    assert intake.dropped["lines of sub-agents (linked)"] == 1


def test_a_session_that_repeats_another_adds_nothing(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), say("a")])
    write_lines(tmp_path / "1.jsonl", lines)
    more = claude_lines("s", [user("A"), say("a"), user("B"), say("b")])
    write_lines(tmp_path / "2.jsonl", more)
    intake = Intake()
    requests = [one.request for one in tries_of("claude", tmp_path, intake)]
    assert [one.rpartition("\n")[2] for one in requests] == ["A", "B"]
    assert intake.dropped["lines that another session repeats"] == 2


def test_what_the_program_says_in_the_persons_place_is_no_request(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), say("a")])
    notes = [
        "<command-name>/clear</command-name>",
        "<local-command-stdout>ok</local-command-stdout>",
    ]
    said = [claude_line("user", f"n{at}", None, "s", message={"role": "user", "content": text})
            for at, text in enumerate(notes)]  # fmt: skip
    said.append(claude_line("user", "m", None, "s", message={"content": "Caveat"}, isMeta=True))
    intake = Intake()
    (one,) = tries_of("claude", with_lines(tmp_path, *said, *lines), intake)
    assert one.request == "A"
    assert intake.dropped["commands and notes of the program"] == 3


def test_an_error_of_the_endpoint_at_the_end_is_no_reward(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), say("a"), say("API Error: overloaded")])
    lines[-1] |= {"isApiErrorMessage": True}
    (one,) = tries_of("claude", with_lines(tmp_path, *lines))
    assert (one.reward, one.signals) == (None, ("ended with an error",))


def test_codex_tells_exit_codes_roll_backs_sub_agents_and_its_first_form(tmp_path: Path) -> None:
    lines = codex_lines(
        "c", [user("A"), act("shell", {"command": ["cargo", "test"]}, "x", 0), say("a")]
    )
    end = {
        "type": "exec_command_end",
        "call_id": "call_1",
        "exit_code": 101,
        "aggregated_output": "x",
    }
    at = next(
        n for n, line in enumerate(lines) if line["payload"].get("type") == "function_call_output"
    )
    lines[at]["payload"]["output"] = "x"
    lines.insert(at, codex_line("event_msg", end))
    back = codex_line("event_msg", {"type": "thread_rolled_back", "num_turns": 1})
    again = codex_lines("c", [user("B"), say("b")])[2:]
    write_lines(tmp_path / "rollout-1.jsonl", [*lines, back, *again])
    inner = codex_lines("d", [user("look"), say("found")])
    inner[0]["payload"]["source"] = {
        "subagent": {"thread_spawn": {"parent_thread_id": "c", "depth": 1}}
    }
    write_lines(tmp_path / "rollout-2.jsonl", inner)
    old = [{"id": "e", "timestamp": "t", "instructions": None}]
    old += [
        line["payload"]
        for line in codex_lines("e", [user("Old"), say("o")])
        if line["type"] == "response_item"
    ]
    write_lines(tmp_path / "rollout-3.jsonl", old)
    first, second, third = tries_of("codex", tmp_path)
    assert (first.reward, first.signals) == (0.0, ("taken back by the person", "tests failed"))
    assert (second.request, third.request) == ("B", "Old")
    linked = [one.part_of for one in read_sessions("codex", tmp_path, Intake()) if one.part_of]
    assert linked == ["c"]


def test_opencode_gives_no_session_twice_and_links_children(tmp_path: Path) -> None:
    name, write = WRITERS["opencode database"]
    write(tmp_path, "a", [user("A"), say("a")])
    write_opencode_export(tmp_path, "a", [user("A"), say("a")])
    child = {"info": {"id": "ses_b", "parentID": "ses_a"}, "messages": []}
    write_json(tmp_path / "ses_b.json", child)
    intake = Intake()
    sessions = list(read_sessions(name, tmp_path, intake))
    assert [(one.id, one.part_of) for one in sessions] == [("ses_a", ""), ("ses_b", "ses_a")]
    assert intake.dropped["sessions that are stored twice"] == 1


REWARDS = {
    "in the trajectory": ({"final_metrics": {"extra": {"reward": 0.25}}}, {}, 0.25),
    "of the trial": ({}, {"result.json": {"verifier_result": {"rewards": {"reward": 1.0}}}}, 1.0),
    "of the verifier": ({}, {"verifier/reward.json": {"reward": 0, "other": 3}}, 0.0),
    "as text": ({}, {"verifier/reward.txt": "0.5"}, 0.5),
    "out of bounds": ({"extra": {"reward": 7}}, {}, None),
    "nowhere": ({}, {}, None),
}


@pytest.mark.parametrize("case", REWARDS)
def test_atif_has_the_reward_of_its_trial(case: str, tmp_path: Path) -> None:
    fields, files, expected = REWARDS[case]
    path = write_atif(tmp_path, "s", [user("A"), say("a")], **fields)
    for name, content in files.items():
        file = path.parent.parent / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    (one,) = tries_of("atif", tmp_path)
    assert one.reward == expected
    assert bool(one.signals) == (case != "nowhere")


def test_atif_copies_no_context_and_links_its_sub_agents(tmp_path: Path) -> None:
    path = write_atif(tmp_path, "s", [user("Old"), say("o"), user("A"), say("a")])
    whole = json.loads(path.read_text())
    for step in whole["steps"][:2]:
        step["is_copied_context"] = True
    whole["subagent_trajectories"] = [{**whole, "trajectory_id": "inner"}]
    write_json(path, whole)
    intake = Intake()
    (session,) = read_sessions("atif", path, intake)
    assert [one.request for one in read_tries(session, Redactor(), intake)] == ["A"]
    assert session.subagents == ["inner"]


def test_inspect_epochs_are_tries_with_scores_and_the_target_is_the_answer(tmp_path: Path) -> None:
    acts = [user("What is 2 + 2?"), say("4"), user("Please go on if you are not done"), say("4")]
    samples = [
        inspect_sample(acts, epoch, target="4", scores={"match": {"value": value}})
        for epoch, value in enumerate(["C", "I", "P", 0.75, "?"], start=1)
    ]
    long = "a" * 32
    samples[0]["messages"][1]["content"] = f"attachment://{long}"
    samples[0]["attachments"] = {long: "What is 2 + 2?"}
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", json.dumps(inspect_head("sums")))
        for sample in samples:
            archive.writestr(f"samples/1_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("samples/2_epoch_1.json", "{")
    intake = Intake()
    found = tries_of("inspect", path, intake)
    assert [(one.request, one.answer, one.reward) for one in found] == [
        ("What is 2 + 2?", "4", reward) for reward in (1.0, 0.0, 0.5, 0.75, None)
    ]
    assert intake.dropped["unreadable samples"] == 1
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="cut, or no zip"):
        tries_of("inspect", path)


def test_spans_of_an_agent_within_an_agent_are_linked(tmp_path: Path) -> None:
    def chat(number: int, parent: int, *acts: Act) -> dict[str, Any]:
        *before, last = genai_messages(acts)
        told = {
            "gen_ai.input.messages": json.dumps(before),
            "gen_ai.output.messages": json.dumps([last]),
        }
        return otel_span(number, told, parentSpanId=f"{parent:016x}")

    def agent(number: int, name: str, parent: int = 0) -> dict[str, Any]:
        told = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
        return otel_span(number, told, parentSpanId=f"{parent:016x}")

    ask = act("Task", {"prompt": "look"}, "found")
    spans = [agent(1, "main"), chat(2, 1, user("A"), ask, say("a")), agent(3, "helper", 1)]
    spans += [chat(4, 3, user("look"), say("found"))]
    score = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}}
    spans[0]["events"] = [{"name": "gen_ai.evaluation.result", "attributes": [score]}]
    (session,) = read_sessions("otel", write_json(tmp_path / "s.json", otlp(spans)), Intake())
    (one,) = read_tries(session, Redactor(), Intake())
    assert (one.request, one.reward, session.subagents) == ("A", 0.5, ["helper"])


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_nothing_it_knows_are_refused(name: str, tmp_path: Path) -> None:
    wrong = [
        "",
        "{",
        "[]",
        "null",
        "3",
        '"x"',
        '{"type": 3}',
        "a,b\n1,2",
        "\0\1",
        '{"a": {"b": []}}\n' * 3,
    ]
    for number, text in enumerate(wrong):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(DataError, match=r"none of the .* sessions"):
            tries_of(name, path)
    with pytest.raises(DataError, match="no such file"):
        tries_of(name, tmp_path / "nowhere")
    if name == "opencode":
        (tmp_path / "opencode.db").write_bytes(b"no database")
        with pytest.raises(DataError, match="no such database"):
            tries_of(name, tmp_path / "opencode.db")


def test_what_cannot_be_read_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    path = write_codex(
        tmp_path, "c", [user("A"), say("a\ud83d half of a pair"), say("word " * 4_000)]
    )
    with path.open("a") as file:
        file.write(
            'not JSON\n[1]\n{"type": "response_item", "payload": 5}\n{"type": "brand_new"}\n'
        )
        file.write('{"timestamp": "cut he')
    intake = Intake()
    (one,) = tries_of("codex", path, intake)
    assert "characters left out" in one.text and "half of a pair" in one.text
    assert intake.dropped["unreadable lines"] == 3
    assert intake.dropped['"brand_new" entries'] == 1
    assert intake.dropped["texts cut"] == 1


def test_a_long_try_keeps_its_beginning_and_end_and_says_what_is_missing(tmp_path: Path) -> None:
    acts = [user("A"), *[say(f"step {n} " + "x" * 900) for n in range(200)]]
    intake = Intake()
    (one,) = tries_of("claude", write_claude(tmp_path, "s", acts), intake)
    assert "step 0 " in one.text and "step 199 " in one.text and "step 100 " not in one.text
    assert intake.dropped["texts cut"] == 1
    assert "characters left out …]" in one.text and len(one.text) < 62_000


def _mutate(value: Any, chance: random.Random, rate: float) -> Any:
    """JSON in which some values are of another kind."""
    junk: list[Any] = [
        None,
        3,
        -1,
        1e99,
        10**30,
        True,
        "",
        "x",
        [],
        {},
        [3],
        {"type": {}},
        [[None]],
    ]
    if chance.random() < rate:
        return chance.choice(junk)
    if isinstance(value, dict):
        return {key: _mutate(inner, chance, rate) for key, inner in value.items()}
    return [_mutate(inner, chance, rate) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "label", [one for one in WRITERS if one not in ("inspect eval", "opencode database")]
)
def test_values_of_another_kind_crash_nothing(label: str, tmp_path: Path) -> None:
    name, write = WRITERS[label]
    path = write(tmp_path, "s", SESSION)
    files = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    read = 0
    for seed in range(60):
        chance = random.Random(seed)
        for file, text in files.items():
            lines = [json.loads(line) for line in text.splitlines()]
            write_lines(file, [_mutate(line, chance, 0.004 * (seed % 12)) for line in lines])
        try:
            read += len(tries_of(name, path))
        except DataError:
            continue
    assert read > 5


def test_json_that_is_nested_like_no_message_is_unreadable(tmp_path: Path) -> None:
    lines = claude_lines("s", [user("A"), say("a")])
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    more = claude_lines("s", [user("A"), act("Edit", {"of": 1}, "x"), say("b")])
    more[1]["message"]["content"][0]["input"] = deep
    intake = Intake()
    assert len(tries_of("claude", with_lines(tmp_path, *lines, *more[1:]), intake)) == 1
    assert intake.dropped["unreadable lines"] == 1
