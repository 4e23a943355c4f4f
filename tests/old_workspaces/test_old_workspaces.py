"""Workspaces of an older release are read, shown, resumed and diffed as that release did."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.old_workspaces import facts
from tests.old_workspaces.commands import ENVIRONMENT, LOOKS, RESUMES
from tests.old_workspaces.kept import DATA, put_back
from tests.support.processes import STUDIO
from tests.support.run_studio import studio
from tests.support.screen_terminal import Terminal

NAMES = tuple(LOOKS)
KINDS = frozenset(
    (
        "RunStarted",
        "RunResumed",
        "StepStarted",
        "RolloutFinished",
        "RolloutJudged",
        "GroupReflected",
        "LessonProposed",
        "OperationDecided",
        "OperationProposed",
        "ReplyMended",
        "ReplyDropped",
        "DecisionUndone",
        "LessonReturned",
        "LessonCommitted",
        "StepFinished",
        "EvaluationFinished",
        "EngineOpened",
        "CheckpointSaved",
        "RunPaused",
        "RunContinued",
        "RunEnded",
        "LibraryCreated",
        "LibraryCurated",
        "LibraryCommitted",
    )
)
"""Every kind of event that the older release wrote, by its name on disk."""
FORMAT = 2
_PINS = {"prompts", "experiences.[].pinned", "decision.evidence"}
_READ = {"fates", "shown", "reflection.credits", "reflection.doubts", "reflection.notes"}
_READ |= {"lesson.fates", "lesson.notes"}
_COUNTED = {"credited", "streaks", "tries", "learns", "cited", "uses", "uses_before"}
_COUNTED |= {"experiences.[].history.[].uses_before"}
_ACTED = {"turns", "tool_calls", "failed_calls", "files", "verdict.step_rewards"}
_NOW = _PINS | _READ | {"remarks"} | _COUNTED
_TRIED = _NOW | _ACTED | {"effects", "shown_questions", "left_out", "spares"}
_PAID = ("usage", "paid", "under_way", "total", "verdict.usage", "reflection.usage", "lesson.usage")
_CACHED = _TRIED | {f"{place}.cached_tokens" for place in _PAID}
ADDED = {3: {"prompts"}, 4: _PINS, 5: _NOW, 6: _NOW | _ACTED, 7: _TRIED, 8: _TRIED, 9: _CACHED}
"""Keys of events, and all below them, that a later format knows."""
"""Of every line in these journals, and of what a release at that format writes."""
SAME_AGAIN = {"finished": ("rehearsal-2", "rehearsal-3"), "rejections": ("copy", "again")}
"""Of a workspace: a run in it, and the one that is begun with the same words as it goes on."""
FROM_PROMPTS = re.compile(
    r"/journals/[\w/. -]+/(?:(?:reflection|lesson)/(?:usage/\w+|prompt_hash|outcome)"
    r"|(?:proposals|operations|withheld|reviewed)/[\d/]+(?:evidence|rationale|prompt_hash)"
    r"|paid/\w+): |/listed/runs list --json/\d+/tokens: "
)
"""What a later wording of the reflector's prompts changes; lessons and decisions stay."""
LOOSE = 0.02
"""Share by which figures of training may differ: another processor rounds otherwise."""


def told(name: str) -> Any:
    """What the older release said of it."""
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


def asking(workspace: Path) -> facts.Ask:
    def ask(command: facts.Command) -> tuple[str, int]:
        # A run that is begun: the older release asked no agent to cite.
        more = ("agent.cite=false",) if "--name" in command.words else ()
        typed = command.today or command.typed
        done = studio(*command.words, *more, workspace=workspace, typed=typed)
        if done.code not in (0, 4):
            print(command.name, done.stderr, file=sys.stderr)  # pytest shows it with a failure
        return done.stdout, done.code

    return ask


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ENVIRONMENT.items():
            patch.setenv(key, value)
        yield


@pytest.fixture(scope="module", params=NAMES)
def gone_on(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    environment: None,
) -> tuple[str, Path, Path, Any]:
    """Its name, a workspace as it was, one that went on, and what became of the latter."""
    name = str(request.param)
    before = put_back(name, tmp_path_factory.mktemp(f"{name}-before"))
    after = put_back(name, tmp_path_factory.mktemp(f"{name}-after"))
    return name, before, after, facts.resumed(asking(after), RESUMES[name], before, after)


@pytest.mark.parametrize("name", NAMES)
def test_commands_show_what_they_showed(name: str, tmp_path: Path) -> None:
    workspace = put_back(name, tmp_path)
    before = {path: path.read_bytes() for path in facts.journals(workspace)}
    wanted = told(name)["looks"]
    found = {look.name: facts.answered(asking(workspace), look, workspace) for look in LOOKS[name]}
    assert not list(facts.differences(wanted, found))
    assert {path: path.read_bytes() for path in facts.journals(workspace)} == before


def test_a_run_goes_on_to_the_same_journal_library_and_weights(
    gone_on: tuple[str, Path, Path, Any],
) -> None:
    name, _, _, found = gone_on
    allowed = LOOSE if name == "trained" else 1e-9
    differences = facts.differences(told(name)["resumed"], found, allowed)
    assert not [one for one in differences if not FROM_PROMPTS.match(one)]


def test_what_was_written_stays_as_it_was_written(gone_on: tuple[str, Path, Path, Any]) -> None:
    _, before, after, _ = gone_on
    for path in facts.journals(before):
        written = (after / path.relative_to(before)).read_bytes()
        assert written.startswith(path.read_bytes()), path


def test_new_lines_name_their_kinds_and_keys_as_the_old_ones_do(
    gone_on: tuple[str, Path, Path, Any], known: dict[str, facts.Shape]
) -> None:
    """Else an older release could not read them, and they must say so by another format."""
    _, before, after, _ = gone_on
    for path in facts.journals(after):
        old = before / path.relative_to(after)
        lines = len(facts.events(old)) if old.exists() else 0
        for event in facts.events(path)[lines:]:
            kind = event["kind"]
            assert event["v"] in {FORMAT, *ADDED}
            if kind in facts.LATER_KINDS and event["v"] > FORMAT:
                continue
            assert kind in known, f"{path}: {kind} is a new kind, so the format must change"
            missing = known[kind].always - event.keys()
            added = ADDED.get(event["v"], set())
            keys = facts.keys_below(event) - known[kind].ever
            unknown = {key for key in keys if not _with_those_above(key) & added}
            assert not missing and not unknown, (kind, missing, unknown)


def _with_those_above(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[:at]) for at in range(1, len(parts) + 1)}


def test_settings_keep_their_names_and_values(gone_on: tuple[str, Path, Path, Any]) -> None:
    """Of a run that is begun as an old one was."""
    name, before, after, _ = gone_on
    if name in SAME_AGAIN:
        old, new = SAME_AGAIN[name]
        begun = _settings(before / f"runs/{old}")
        found = _settings(after / f"runs/{new}")
        assert {key: found.get(key, "no such key") for key in begun} == begun


def _settings(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = facts.events(run / "journal.jsonl")[0]["settings"]
    return found


def test_the_old_journals_hold_every_kind_of_event(known: dict[str, facts.Shape]) -> None:
    assert known.keys() == KINDS


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, facts.Shape]:
    """Kinds and keys in all of the old journals."""
    folders = [put_back(name, tmp_path_factory.mktemp(name)) for name in NAMES]
    events = [
        event
        for folder in folders
        for path in facts.journals(folder)
        for event in facts.events(path)
    ]
    assert {event["v"] for event in events} == {FORMAT}
    return facts.shapes(events)


def test_the_screen_opens_a_run_that_was_cut_in_review_and_decides_in_it(tmp_path: Path) -> None:
    workspace = put_back("held", tmp_path)
    journal = workspace / "runs/rehearsal/journal.jsonl"
    before = journal.read_bytes()
    with seated(workspace, "attach", "rehearsal") as terminal:
        terminal.type("2")
        terminal.until("op2.h3")
        terminal.until("Multiply first: when an expression")  # of the draft
        press(terminal, "kkk", "op2.1", "Last change: when a story tells", "s2p0", "#### 51")
        press(terminal, "3", "E3  Units: name the unit", "E4  Carry: write what is carried")
        press(terminal, "5", "5271", "0.500")
        press(terminal, "6", "s2p0r0", "859089888", "expected 51, got 45")
        press(terminal, "2", "op2.1")
        terminal.type("a")
        terminal.until(lambda here: journal.read_bytes() != before or "press again" in here.text)
        if journal.read_bytes() == before:  # the screen drops a key that it was not ready for
            terminal.type("a")
            terminal.until(lambda _: journal.read_bytes() != before)
        terminal.type("q")
        assert terminal.ended() == 0
    assert journal.read_bytes().startswith(before)
    (decided,) = facts.events(journal)[before.count(b"\n") :]
    assert decided["kind"] == "OperationDecided"
    assert (decided["decision"]["operation_id"], decided["decision"]["action"]) == (
        "op2.1",
        "approve",
    )


def test_the_screen_opens_a_run_that_trained_weights(tmp_path: Path) -> None:
    workspace = put_back("trained", tmp_path)
    with seated(workspace, "attach", "grpo-tiny") as terminal:
        press(terminal, "1", "v3", "0.625")
        press(terminal, "6", "s4p0", "v3")
        terminal.type("q")
        assert terminal.ended() == 0


@contextmanager
def seated(workspace: Path, *words: str) -> Iterator[Terminal]:
    with Terminal([*STUDIO, "--workspace", str(workspace), *words]) as terminal:
        yield terminal.until(words[-1])


def press(terminal: Terminal, keys: str, *wanted: str) -> None:
    """Press keys and wait until all of that is drawn."""
    terminal.type(keys)
    for text in wanted:
        terminal.until(text)
