"""The same decisions by every face leave the same library, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engines.core.types import Operation
from engines.record.run_dir import Workspace
from studio.review.evidence import EvidenceLoader
from studio.review.line_mode import LineReview
from studio.review.review_run import RunReview, open_session
from studio.session.requests import Propose
from tests.studio.tui.pages.test_review_offline import a_table
from tests.support import forty
from tests.support.forty import OWN, PERSON, RUN, Choice, rounds
from tests.support.run_studio import studio

Decide = Callable[[Workspace], None]


def by_lines(workspace: Workspace) -> None:
    """Two sittings: the first up to what is taken back in it, then the rest with one's own."""
    first, _, rest = rounds(workspace)
    keys = [_line(choice) for choice in (*first, Choice("", "open"), rest[0])]
    assert _sit(workspace, [*keys, "q"]) == len(first)
    with open_session(workspace, workspace.run(RUN), PERSON) as (session, wait_for):
        for text in OWN:  # as the library page does
            wait_for(session.send(Propose(Operation("", "add", text=text), PERSON)))
    put_off = [choice for choice in first if choice.action == "defer"]
    _sit(workspace, [*map(_line, (*put_off, *rest[1:])), "a", "a"])


def _sit(workspace: Workspace, typed: list[str]) -> int:
    said: list[str] = []
    keys = iter(typed)
    with open_session(workspace, workspace.run(RUN), PERSON) as (session, wait_for):
        review = RunReview(session, wait_for, waits=False, say=said.append, tell=said.append)
        evidence = EvidenceLoader(workspace.run(RUN))
        LineReview(review, lambda prompt: next(keys), lambda text: None, evidence).run()
    assert list(keys) == [], said[-3:]
    (counted,) = [text for text in said if " decided, " in text]
    return int(counted.split(": ")[1].split()[0])


def _line(choice: Choice) -> str:
    letter = {"approve": "a", "edit": "e", "reject": "r", "defer": "t", "merge": "M", "open": "u"}
    words = (letter[choice.action], choice.target, choice.text, choice.reason)
    return " ".join(filter(None, words))


def by_editor(workspace: Workspace) -> None:
    for number, choices in enumerate(rounds(workspace)):
        asked = {choice.operation: choice for choice in choices}

        def write(text: str, asked: dict[str, Choice] = asked, number: int = number) -> str:
            head, *blocks = re.split(r"\n(?=\[)", text)
            blocks = [_block(block, asked) for block in blocks]
            own = "\n\n".join(OWN) if number == 2 else ""
            return "\n".join([head, *filter(None, blocks)]).rstrip() + f" {own}\n"

        _edit(workspace, write)


def _block(block: str, asked: dict[str, Choice]) -> str:
    """A block as the person leaves it: untouched where nothing is decided yet, "" deleted."""
    name = block[1 : block.index("]")]
    choice, head = asked.get(name), block.partition("\n")[0]
    if not name.startswith("op"):
        return block
    if choice is None:
        # What stands is left; what is open is left open.
        is_decided = "ed by " in block.partition("\n")[2].partition("\n")[0]
        return block if is_decided else block.replace("] approve", "] open", 1)
    because = f"because: {choice.reason}\n" if choice.reason else ""
    match choice.action:
        case "approve":
            return block
        case "reject" if not because:
            return ""
        case "edit":
            return f"{head}\n{choice.text}\n"
        case "merge":
            return f"[{name}] approve modify {choice.target}\n{choice.text}\n"
    return f"{block.replace('] approve', f'] {choice.action}', 1).rstrip()}\n{because}"


def _edit(workspace: Workspace, write: Callable[[str], str]) -> None:
    text = workspace.path / "text.txt"
    shown = workspace.path / "runs" / RUN / "editor" / "shown.txt"
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("VISUAL", raising=False)
        patched.setenv("EDITOR", "false")  # it ends with an error: nothing is decided
        assert studio("review", RUN, "--editor", workspace=workspace.path).code == 2
        text.write_text(write(shown.read_text()))
        patched.setenv("EDITOR", f"cp {text}")  # cp TEXT FILE
        done = studio("review", RUN, "--editor", workspace=workspace.path, typed="y\n")
        assert done.code == 3, done.stderr


def by_json(workspace: Workspace) -> None:
    for number, choices in enumerate(rounds(workspace)):
        items = [_item(choice) for choice in choices]
        items += [{"action": "add", "text": text} for text in OWN] if number == 2 else []
        file = workspace.path / "decisions.json"
        file.write_text(json.dumps(items))
        done = studio("review", RUN, "--json", str(file), workspace=workspace.path)
        assert done.code == 3, done.stderr
        assert len(json.loads(done.stdout)["results"]) == (0 if number == 1 else len(items))


def _item(choice: Choice) -> dict[str, Any]:
    item: dict[str, Any] = {
        "operation": choice.operation,
        "action": choice.action,
        "reason": choice.reason,
    }
    if choice.text:
        item |= {"action": "edit", "text": choice.text}
    item["anyway"] = True  # what an edit is like may be flagged
    return item | ({"kind": "modify", "target": choice.target} if choice.target else {})


def by_screen(workspace: Workspace) -> None:
    asyncio.run(_press(workspace))


async def _press(workspace: Workspace) -> None:
    first, taken_back, rest = rounds(workspace)
    async with a_table(workspace.run(RUN), PERSON) as table:

        async def decide(choices: Sequence[Choice]) -> None:
            for choice in choices:
                if choice.action != "open":
                    table.page.shown.operations.go_to(choice.operation)
                    await table.rest()
                match choice.action:
                    case "edit":
                        table.page.in_editor = lambda _, text=choice.text: text
                        await table.press("E")
                    case "merge":
                        await table.press("M")
                        assert table.page.shown.box.border_title, table.told
                        table.page.shown.box.text = choice.text
                        await table.press("enter")
                    case "reject" if choice.reason:
                        await table.press("R", *choice.reason, "enter")
                    case action:
                        keys = {"approve": "a", "reject": "r", "defer": "t", "open": "u"}
                        await table.press(keys[action])

        await decide((*first, *taken_back, *rest))
        for text in OWN:
            await decide([Choice(await table.propose("add", text=text), "approve")])


CLIENT = "agent"


def by_mcp(workspace: Workspace) -> None:
    for choices in rounds(workspace):
        asyncio.run(_fill_forms_in(workspace, choices))
    with open_session(workspace, workspace.run(RUN), PERSON) as (session, wait_for):
        for text in OWN:  # as the library page does
            wait_for(session.send(Propose(Operation("", "add", text=text), PERSON)))
    own = [op.id for op in workspace.run(RUN).state().open_operations][-len(OWN) :]
    asyncio.run(_fill_forms_in(workspace, [Choice(name, "approve") for name in own]))


async def _fill_forms_in(workspace: Workspace, choices: Sequence[Choice]) -> None:
    """One session of an agent whose person decides by forms."""
    from mcp import Client
    from mcp import types as mt

    from studio.serving.review_mcp import ReviewService

    forms = list[Any]()

    async def fill_in(context: object, params: object) -> mt.ElicitResult:
        return mt.ElicitResult(action="accept", content=forms.pop(0))

    service = ReviewService(workspace, workspace.run(RUN), PERSON, lambda text: None)
    info = mt.Implementation(name=CLIENT, version="1")
    async with (
        aclosing(service),
        Client(service.server, elicitation_callback=fill_in, client_info=info) as client,
    ):
        for choice in choices:
            action = {"merge": "edit", "open": "take back"}.get(choice.action, choice.action)
            form = {"action": action, "text": choice.text, "into": choice.target}
            # What an edit is like may be flagged: it is approved anyway.
            forms[:] = [{**form, "reason": choice.reason}, {"anyway": True}]
            done = await client.call_tool("decide_operation", {"operation": choice.operation})
            assert not done.is_error, done.content


def without_client(found: Any) -> Any:
    """The same, decided by the person alone."""
    files, head, left = found
    return files, json.loads(json.dumps(head).replace(f"{PERSON} via {CLIENT}", PERSON)), left


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What line mode leaves."""
    workspace = forty.forty_workspace(tmp_path_factory.mktemp("lines"))
    by_lines(workspace)
    forty.commit(workspace)
    found = forty.outcome(workspace)
    assert len(found[0]) == 3 and len(found[1]["experiences"]) > 12
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "decide", [by_editor, by_json, by_screen, by_mcp], ids=lambda one: one.__name__
)
def test_forty_decisions_by_another_face_leave_the_same_library(
    decide: Decide, tmp_path: Path, expected: object
) -> None:
    workspace = forty.forty_workspace(tmp_path)
    assert sum(map(len, rounds(workspace))) + len(OWN) >= 40
    decide(workspace)
    forty.commit(workspace)
    assert without_client(forty.outcome(workspace)) == without_client(expected)
