"""Review from an agent's session: a person at the client's end decides, and nobody else does."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock, Timeout

from engines.core.text.sanitize import one_line
from engines.core.types import Decision
from engines.record.lock import write_lock
from engines.record.run_dir import RunDir, Workspace
from studio.review.review_run import open_session
from studio.session.requests import Decide
from tests.support.line_mcp_client import LineClient
from tests.support.made_once import made_once
from tests.support.processes import SMALL
from tests.support.run_studio import studio

if TYPE_CHECKING:
    from mcp import Client

Answer = dict[str, Any] | str
"""What a form is filled with; "decline" and "cancel" fill in nothing."""
RULES = "rules:\n  - do: defer\n"


def _make(folder: Path) -> None:
    rules = folder / "later.yaml"
    rules.write_text(RULES)
    words = ("headless", "rehearsal", *SMALL, "--review", f"rules:{rules}")
    assert studio(*words, workspace=folder / "practice").code == 3


@pytest.fixture
def run(workspace: Path) -> RunDir:
    """A finished run whose five operations are open; the fourth says what the first does."""
    shutil.copytree(made_once("deferred", _make) / "practice", workspace)
    return Workspace(workspace).run("rehearsal")


class Person:
    """Fills forms in, one after the other, and keeps what was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> Any:
        from mcp import types as mt

        self.asked.append(params)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return mt.ElicitResult(action=answer)  # type: ignore[arg-type]
        return mt.ElicitResult(action="accept", content=answer)


@asynccontextmanager
async def reviewing(
    run: RunDir, person: Person | None, mode: str = "auto", told: list[str] | None = None
) -> AsyncIterator[Client]:
    from mcp import Client
    from mcp import types as mt

    from studio.serving.review_mcp import ReviewService

    workspace = Workspace(run.path.parents[1])
    told = [] if told is None else told
    agent = mt.Implementation(name="claude-code", version="1")
    async with (
        asyncio.timeout(60),
        aclosing(ReviewService(workspace, run, "ann", told.append)) as service,
        Client(service.server, mode=mode, elicitation_callback=person, client_info=agent) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> tuple[str, bool]:
    result = await client.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)  # type: ignore[union-attr]


def decisions(run: RunDir) -> list[Decision]:
    """Every one that the journal has of a person, in order."""
    found = [entry.event for entry in run.entries()]
    made = [one for event in found for one in getattr(event, "decisions", ())]
    return [one for one in made if " via " in one.reviewer]


def names(run: RunDir) -> list[str]:
    return [op.id for op in run.state().open_operations]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_person_decides_each_operation_by_a_form_and_the_rest_is_as_in_any_review(
    run: RunDir, mode: str
) -> None:
    first, second, third, doubled, last = names(run)
    texts = {op.id: op.text for op in run.state().open_operations}
    person = Person(
        {"action": "approve", "reason": "true"},
        {"action": "edit", "text": "Carry: write the ten above the next column."},
        {"action": "reject", "reason": "too vague"},
        {"action": "approve"},
        {"action": "defer"},
    )
    told: list[str] = []
    async with reviewing(run, person, mode, told) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["pending_operations", "decide_operation"]
        listed, _ = await call(client, "pending_operations")
        assert all(f"{name}  ADD" in listed and texts[name] in listed for name in texts)
        assert "why       Where they part:" in listed and "parts here:" in listed
        alone, _ = await call(client, "pending_operations", operation=second)
        assert texts[second] in alone and texts[first] not in alone
        assert await call(client, "decide_operation", operation=first) == (
            f"{first}: approved (becomes E1)\n4 open",
            False,
        )
        await call(client, "decide_operation", operation=second)
        await call(client, "decide_operation", operation=third)
        assert len(decisions(run)) == 3  # on disk before the next is asked
        said, failed = await call(client, "decide_operation", operation=doubled)
        assert not failed and f"{doubled} was approved, but does not fit: E1 already" in said
        said, failed = await call(client, "decide_operation", operation=last)
        assert (
            not failed
            and "nothing is left but what was put off. committed: library rehearsal is at v1"
            in said
        )
    assert told == ["committed: library rehearsal is at v1"]
    message = person.asked[0].message
    assert texts[first] in message and "flag" not in message.split("why")[0]
    assert person.asked[0].requested_schema["properties"]["action"]["enum"] == [
        "approve", "edit", "reject", "defer",
    ]  # fmt: skip
    made = decisions(run)
    assert [(d.operation_id, d.action, d.reviewer) for d in made] == [
        (first, "approve", "ann via claude-code"),
        (second, "edit", "ann via claude-code"),
        (third, "reject", "ann via claude-code"),
        (last, "defer", "ann via claude-code"),
    ]
    assert all(d.took_s is not None and d.took_s >= 0 for d in made)
    assert [d.reason for d in made] == ["true", "rule 1", "too vague", "rule 1"]
    library = Workspace(run.path.parents[1]).library("rehearsal").head()
    assert [e.text for e in library.experiences] == [
        texts[first],
        "Carry: write the ten above the next column.",
    ]
    assert names(run) == [last]


async def test_a_client_that_cannot_ask_a_person_gets_no_way_to_decide(run: RunDir) -> None:
    (name, *_) = names(run)
    for mode in ("auto", "legacy"):
        async with reviewing(run, None, mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools == ["pending_operations"]
            said, failed = await call(client, "decide_operation", operation=name)
            assert failed and "a person must decide" in said
            assert "studio review rehearsal" in said
    assert decisions(run) == []


async def test_an_answer_to_nothing_that_was_asked_decides_nothing(run: RunDir) -> None:
    from mcp import types as mt

    name, other, *_ = names(run)
    answer = {"decision": mt.ElicitResult(action="accept", content={"action": "approve"})}
    async with reviewing(run, Person()) as client:

        async def tried(operation: str, state: str | None) -> Any:
            return await client.session.call_tool(
                "decide_operation",
                {"operation": operation},
                input_responses=answer,  # type: ignore[arg-type]
                request_state=state,
                allow_input_required=True,
            )

        asked = await tried(name, "forged")
        assert isinstance(asked, mt.InputRequiredResult)
        assert isinstance(await tried(other, asked.request_state), mt.InputRequiredResult)
        assert decisions(run) == []
        done = await tried(name, asked.request_state)
        assert isinstance(done, mt.CallToolResult) and not done.is_error
        # What comes twice is asked once more: it is decided already.
        again = await tried(name, asked.request_state)
        assert isinstance(again, mt.InputRequiredResult) and again.input_requests is not None
        message = again.input_requests["decision"].params.message  # type: ignore[union-attr]
        assert "decided   approved by ann via claude-code" in message
    assert len(decisions(run)) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("decline", "decided nothing"),
        ("cancel", "decided nothing"),
        ({}, "'None' is no decision"),
        ({"action": "delete"}, "'delete' is no decision"),
        ({"action": "take back"}, "'take back' is no decision"),
        ({"action": "edit"}, "no wording was given"),
        ({"action": "edit", "text": "  "}, "no wording was given"),
        ({"action": "edit", "text": "x", "into": "E9"}, "Nothing was decided."),
    ],
)
async def test_what_is_no_decision_leaves_the_operation_open(
    run: RunDir, answer: Answer, told: str
) -> None:
    (name, *_) = names(run)
    async with reviewing(run, Person(answer)) as client:
        said, _ = await call(client, "decide_operation", operation=name)
        assert told in said
        for wrong in ("op9.9", "", "\x1b[2J"):
            said, failed = await call(client, "decide_operation", operation=wrong)
            assert failed and f"Open are: {name}" in said and "\x1b" not in said
    assert decisions(run) == [] and name in names(run)


async def test_what_is_no_text_is_refused(run: RunDir) -> None:
    (name, *_) = names(run)
    for wrong in (5, "x" * 100_001, "a\ufffdb"):  # a half of a pair is U+FFFD by then
        async with reviewing(run, Person({"action": "edit", "text": wrong})) as client:
            said, failed = await call(client, "decide_operation", operation=name)
            assert failed and "its text must be whole characters, at most 100,000" in said
    assert decisions(run) == []


def test_a_message_with_half_of_a_surrogate_pair_can_be_parsed() -> None:
    from mcp import types as mt

    from studio.serving.library_mcp import read_line

    line = b'{"jsonrpc":"2.0","id":1,"result":{"content":{"text":"a\\ud800b \\ud83d\\ude00"}}}'
    (found,) = mt.JSONRPCResponse.model_validate_json(read_line(line)).result["content"].values()
    assert found == "a\ufffdb \U0001f600"


async def test_the_lock_of_another_client_is_waited_for(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, *_) = names(run)
    held, waits, acquire = threading.Event(), threading.Event(), FileLock.acquire

    def hold() -> None:
        with write_lock(run.path):
            held.set()
            waits.wait(60)

    def try_then_wait(lock: FileLock, timeout: float = 0.0) -> Any:
        if held.is_set() and timeout and not waits.is_set():
            with pytest.raises(Timeout):
                acquire(lock, timeout=0)
            waits.set()
        return acquire(lock, timeout=timeout)

    holding = threading.Thread(target=hold)
    async with reviewing(run, Person({"action": "approve"})) as client:
        monkeypatch.setattr(FileLock, "acquire", try_then_wait)
        holding.start()
        held.wait()
        said, failed = await call(client, "decide_operation", operation=name)
        waits.set()
    holding.join()
    assert not failed and said.startswith(f"{name}: approved"), said


async def test_new_flags_of_an_edit_are_asked_about_before_it_counts(run: RunDir) -> None:
    first, second, *_ = names(run)
    text = next(op.text for op in run.state().open_operations if op.id == first)
    edit = {"action": "edit", "text": text}
    person = Person(edit, {"anyway": False}, edit, {"anyway": True})
    for mode, action in (("auto", None), ("legacy", "edit")):
        async with reviewing(run, person, mode) as client:
            await call(client, "decide_operation", operation=second)
        assert "flag  duplicate" in person.asked[-1].message
        assert [d.action for d in decisions(run)] == ([action] if action else [])


async def test_a_standing_decision_can_be_changed_and_taken_back(run: RunDir) -> None:
    (name, *_) = names(run)
    approve, reject = {"action": "approve"}, {"action": "reject", "reason": "no"}
    async with reviewing(run, Person(approve, reject, {"action": "take back"}, approve)) as client:
        for action in ("approve", "reject"):
            await call(client, "decide_operation", operation=name)
            assert run.state().decisions[name].action == action
        assert await call(client, "decide_operation", operation=name) == (
            f"asked again: {name}",
            False,
        )
        assert name in names(run)
        said, failed = await call(client, "decide_operation", operation=name)
        assert not failed and said.startswith(f"{name}: approved")


async def test_a_changed_wording_counts_as_an_edit_also_where_approve_is_chosen(
    run: RunDir,
) -> None:
    first, second, third, *_ = names(run)
    text = {op.id: op.text for op in run.state().open_operations}
    kept = {"action": "approve", "text": f" {text[first]}\n", "into": ""}
    new = {"action": "approve", "text": "Carry: write the ten above."}
    as_first = {"action": "approve", "text": f"{text[first]} Always."}
    into, nowhere = {"action": "edit", "into": "E1"}, {"action": "edit", "into": "E9"}
    person = Person(kept, new, as_first, {"anyway": False}, nowhere, into, kept)
    async with reviewing(run, person) as client:
        for name in (first, second, third):
            said, failed = await call(client, "decide_operation", operation=name)
            assert not failed, said
        assert "flag  duplicate" in person.asked[3].message and third in names(run)
        said, failed = await call(client, "decide_operation", operation=third)
        assert failed and "E9 was never in this library. Nothing was decided." in said
        said, failed = await call(client, "decide_operation", operation=third)
        assert not failed and said == f"{third}: approved as edited\n2 open"
        await call(client, "decide_operation", operation=first)
        assert "decided   approved by" in person.asked[-1].message  # and like nothing but itself
        assert "similar   E1 1.00" not in person.asked[-1].message
        assert "(2 open)" in person.asked[-1].message
    made = decisions(run)
    assert [(d.operation_id, d.action, d.text, d.target) for d in made] == [
        (first, "approve", None, None),
        (second, "edit", new["text"], None),
        (third, "edit", text[third], "E1"),
        (first, "approve", None, None),
    ]


async def test_what_another_decides_between_question_and_answer_stands(run: RunDir) -> None:
    (name, *_) = names(run)
    workspace = Workspace(run.path.parents[1])

    class Slow(Person):
        async def __call__(self, context: Any, params: Any) -> Any:
            def decide() -> None:
                with open_session(workspace, run, "eve") as (session, wait_for):
                    wait_for(session.send(Decide((Decision(name, "reject", reviewer="eve"),))))

            await asyncio.to_thread(decide)
            return await super().__call__(context, params)

    async with reviewing(run, Slow({"action": "approve"})) as client:
        said, failed = await call(client, "decide_operation", operation=name)
    assert failed and f"{name}: it was decided meanwhile" in said
    assert run.state().decisions == {} or run.state().decisions[name].reviewer == "eve"


async def test_text_of_any_kind_is_journalled_and_shown_as_text(run: RunDir) -> None:
    (name, *_) = names(run)
    odd = "Write\u202e \x1b[31mit\x07 down:\n\n" + "ü" * 5000
    reason = "\x00why\n" * 100
    async with reviewing(run, Person({"action": "edit", "text": odd, "reason": reason})) as client:
        said, failed = await call(client, "decide_operation", operation=name)
        assert not failed and "\x1b" not in said
    (made,) = decisions(run)
    assert (made.text, made.reason) == (odd, reason)
    text = Workspace(run.path.parents[1]).library("rehearsal").head().experiences[0].text
    assert text == one_line(odd)


def test_each_kind_of_operation_has_the_answers_that_fit_it() -> None:
    from studio.serving.review_mcp import actions_of
    from tests.support.builders import an_operation

    assert actions_of(an_operation("delete", "E1", ""), None) == ["approve", "reject", "defer"]
    assert actions_of(an_operation("weights", None, "loss 1"), None) == ["approve", "reject"]


# -- killed --------------------------------------------------------------------------------------


async def test_what_was_decided_to_the_last_before_a_kill_is_committed_by_the_next_session(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studio.serving.review_mcp import ReviewService

    async def killed(self: ReviewService) -> str:
        return ""

    for decided, closes in ((2, "nothing was committed"), (3, "committed: library rehearsal is")):
        told: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(ReviewService, "_commit", killed)
            person = Person(*[{"action": "approve"}] * decided)
            async with reviewing(run, person) as client:
                for name in names(run)[:decided]:
                    await call(client, "decide_operation", operation=name)
        async with reviewing(run, None, told=told):
            pass  # a host that starts all of its servers asks this one for nothing
        assert told[-1].startswith(closes)


def test_a_server_killed_between_any_two_words_has_lost_and_doubled_nothing(run: RunDir) -> None:
    """In its person's question, after the answer was sent, and after it was acknowledged."""
    told: list[str] = []
    for stage, name in zip(("asked", "answered", "told"), names(run), strict=False):
        with LineClient(run) as client:
            for reached in client.decide(name, "approve"):
                if reached == stage:
                    break
            client.process.kill()
        told += [name] if stage == "told" else []
        made = [d.operation_id for d in decisions(run)]
        assert len(set(made)) == len(made) and set(told) <= set(made)
        assert name not in made or stage != "asked"
    left = names(run)
    with LineClient(run) as client:  # and goes on
        for name in left:
            assert list(client.decide(name, "approve")) == ["asked", "answered", "told"]
        assert client.close() == 0
    made = [d.operation_id for d in decisions(run)]
    assert sorted(made) == sorted(set(made)) and len(made) == 4
    assert len(Workspace(run.path.parents[1]).library("rehearsal").head().experiences) == 4


def test_a_client_that_leaves_within_a_question_has_decided_nothing_and_the_rest_is_committed(
    run: RunDir,
) -> None:
    first, second, *_ = names(run)
    with LineClient(run) as client:
        list(client.decide(first, "approve"))
        next(iter(client.decide(second, "approve")))
        assert client.close() == 0
        told = client.process.stderr.read().decode()
    assert "committed: library rehearsal is at v1" in told and "Traceback" not in told
    assert [d.operation_id for d in decisions(run)] == [first]
    assert second in names(run)
