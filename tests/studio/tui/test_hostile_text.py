"""Text that would steer, hide or misalign, wherever a model, a data set or a person puts it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from engines.core import events as ev
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.types import Flag, Operation, RecordRef, UnparsedReply
from engines.record import lines
from engines.record.journal import Journal
from engines.record.run_dir import RunDir
from studio.session.session import (
    ControllerChanged,
    Disconnected,
    EventReceived,
    TextPiece,
    TextReceived,
)
from studio.tui.app import StudioApp
from studio.tui.drawing.cells import normalize_width
from tests.studio.tui.scenes import (
    SIZES,
    Scene,
    Stage,
    _before_the_first_batch,
    began,
    keys,
    on_stage,
)
from tests.studio.tui.stage import FakeSession

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
PIECES = {
    "markup": "[red]x[/red] [b [/] [@click=app.detach]q[/]",
    "control": "\x1b[2J\x1b]0;title\x07 \x9b31m \x00\x08\r\x7f",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f",
    "joined": f"{FAMILY} {FAMILY} \u270c\U0001f3fd \u2708\ufe0f",
    "marks": "Z\u0351\u036f\u0363a\u0301\u0327l\u0334g\u0319o " + "e" + "\u0301" * 40,
    "wide": "漢字かな交じり文、ﾊﾝｶｸ 한국어",
    "flags": "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "tabs": "a\tb\t\tc",
    "lines": "one\ntwo\r\nthree\u2028four\x0bfive\x85six",
}
HOSTILE = " ".join(PIECES.values())
LONG = "wörd" * 1_250  # more than all cells of the largest screen here
TEXTS = {**PIECES, "all": HOSTILE, "long": LONG}
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
BORDERS = set("┌┐└┘│┏┓┗┛┃")


def poisoned(text: str) -> Callable[[FakeSession], None]:
    """Every place of a held run that holds words of others holds this text, also on disk."""

    def change(session: FakeSession) -> None:
        run = session.run
        moved = _poison_records(run, text)
        found = [entry.event for entry in run.entries()]
        run.journal.unlink()
        journal = Journal(run.journal)
        session.state = state = RunState()
        for event in found:
            event = journal.append_now(_poisoned(event, text, moved)).event
            if not isinstance(event, ev.RunEnded):
                fold(state, event)
        journal.close()
        repair = UnparsedReply("s1p3", 1, "extraction", (text, text), text)
        state.repairs = {repair.id: repair}
        session.controls, session.controller = False, text

    return change


def _poisoned(event: ev.DurableEvent, text: str, moved: Mapping[RecordRef, RecordRef]) -> Any:
    match event:
        case ev.RolloutFinished(refs=refs):
            return replace(event, refs=tuple(moved[ref] for ref in refs), tail=text, error=text)
        case ev.RolloutJudged(verdict=verdict):
            return replace(event, verdict=replace(verdict, critique=text))
        case ev.RunEnded():
            return replace(event, reason=text)
        case ev.LessonProposed(lesson=lesson):
            evidence = lesson.operations[0].evidence
            flags = (Flag("similar", 0.7, text), Flag("leak", None, text))
            operations = (
                Operation(
                    id="op1.1",
                    kind="add",
                    target=None,
                    text=text,
                    rationale=text,
                    evidence=evidence,
                    proposer=text,
                    prompt_hash=text[:12],
                    flags=flags,
                ),
                Operation(
                    id="op1.2",
                    kind="modify",
                    target="E1",
                    text=text,
                    rationale=text,
                    evidence=evidence,
                    proposer=text,
                    prompt_hash="",
                    flags=flags[:1],
                ),
                Operation(
                    id="op1.3",
                    kind="delete",
                    target="E1",
                    text="",
                    rationale=text,
                    evidence=evidence,
                    proposer=text,
                ),
            )
            return replace(event, lesson=replace(lesson, operations=operations))
    return event


def _poison_records(run: RunDir, text: str) -> dict[RecordRef, RecordRef]:
    """What was said, in the files that evidence and inspector read; old places to new ones."""
    moved = {}
    for path in sorted(run.records.glob("*.jsonl")):
        out = b""
        for old in lines.read(path, chained=False).lines:
            body = json.loads(old.body)
            for message in (*body["messages"], body["reply"]):
                message["text" if "text" in message else "content"] = text
            raw, digest = lines.encode(json.dumps(body).encode())
            ref = RecordRef(path.name, old.offset, old.length, old.digest)
            moved[ref] = RecordRef(path.name, len(out), len(raw), digest)
            out += raw
        path.write_bytes(out)
    return moved


def check_drawn(app: StudioApp, where: str) -> None:
    """Nothing steers, every row is exactly as wide as the screen, borders stand in columns."""
    rows = []
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        text = "".join(segment.text for segment in strip if not segment.control)
        assert not STEERING.search(text), f"{where} row {y}: {text!r}"
        assert text == normalize_width(text), (
            f"{where} row {y}: a width terminals disagree on: {text!r}"
        )
        assert cell_len(text) == app.size.width, f"{where} row {y}: {cell_len(text)} cells"
        assert all(cell_len(segment.text) == segment.cell_length for segment in strip)
        rows.append(_cells(text))
    for pane in app.screen.query(".pane"):
        if not (pane.display and pane.is_on_screen):
            continue
        region = pane.region
        for y in range(region.y, min(region.bottom, len(rows))):
            for x in (region.x, region.right - 1):
                if app.screen.get_widget_at(x, y)[0] is pane:
                    assert rows[y][x] in BORDERS, f"{where}: {pane.id} row {y} column {x}"


def _cells(text: str) -> list[str]:
    """What stands in each cell of a row; a wide character stands in two."""
    if text.isascii():
        return list(text)
    out: list[str] = []
    for char in text:
        out += [char] * cell_len(char)
    return out


async def _all_pages(stage: Stage, where: str) -> None:
    for key in "012345":
        await stage.press(key)
        check_drawn(stage.app, f"{where} page {key}")
    await stage.press("2")
    for key in ("j", "w", "w", "w", "enter", "escape", "S"):
        await stage.press(key)
        check_drawn(stage.app, f"{where} review {key}")
    stage.app.open_page("inspect", "s1p0r1")
    await stage.rest()
    check_drawn(stage.app, f"{where} inspect")
    for key in ("w", "t", "space"):
        await stage.press(key)
        check_drawn(stage.app, f"{where} inspect {key}")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ["all", "long"])
async def test_words_of_others_steer_and_misalign_nothing_on_any_page(
    tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    text = TEXTS[name]
    async with on_stage(Scene(change=poisoned(text)), tmp_path, size) as stage:
        await _all_pages(stage, name)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_each_kind_of_hostile_text_is_inert_while_it_streams(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with on_stage(Scene(change=_before_the_first_batch), tmp_path, size) as stage:
        assert stage.session is not None
        step = ev.StepStarted(1, 1, tuple(HOSTILE for _ in range(2)), 0, 0)
        await stage.hear(EventReceived(step), *(began(at, i) for at in (0, 1) for i in range(4)))
        offset = 0
        for name, text in TEXTS.items():
            # In halves: a character may be cut between two pieces.
            for half in (text[: len(text) // 2], text[len(text) // 2 :]):
                await stage.session.push(
                    TextReceived(tuple(TextPiece(f"s1p0r{i}", offset, half) for i in range(4)))
                )
                offset += len(half)
            await stage.draw()
            check_drawn(stage.app, f"streamed {name}")
        for _ in range(3):
            await stage.press("z")
            check_drawn(stage.app, "zoomed")
        await stage.press("6")
        check_drawn(stage.app, "inspect of what streams")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_what_is_told_asked_and_confirmed_is_inert(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with on_stage(Scene(change=poisoned(HOSTILE)), tmp_path, size) as stage:
        app = stage.app
        await stage.hear(ControllerChanged(False, HOSTILE), Disconnected(HOSTILE, False))
        check_drawn(app, "parted")
        for tell in (HOSTILE, LONG):
            app.tell(tell)
            await stage.pilot.pause()
            check_drawn(app, "told")
        await stage.hear(ControllerChanged(True, ""))
        assert stage.session is not None
        stage.session.controls = True
        await stage.press("2", "A")
        check_drawn(app, "all safe")
        await stage.press("escape", "C")
        check_drawn(app, "commit")
        await stage.press("escape", "e")
        check_drawn(app, "edit box")
        await stage.press("escape", "R")
        check_drawn(app, "prompt")
        await stage.press("escape", "slash")
        await stage.answer(HOSTILE[:200])
        check_drawn(app, "filter")


def _a_hostile_library(text: str) -> Callable[[Stage], Awaitable[None]]:
    async def commit(stage: Stage) -> None:
        from studio.library.curation import commit_changes

        flat = " ".join(text.split())

        def change(_: object) -> list[tuple[str, str | None, str]]:
            return [("modify", "E1", flat), ("add", None, f"{flat} anew")]

        commit_changes(stage.app.workspace, "rehearsal", change, person=text, reason=text)

    return commit


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", ["all", "long"])
async def test_a_library_of_hostile_text_is_inert_in_library_and_diff(
    tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    scene = Scene("rehearsal", living=False, act=_a_hostile_library(TEXTS[name]))
    async with on_stage(scene, tmp_path, size) as stage:
        for key in ("3", "j", "H", "escape", "D", "4", "w", "w", "w", "b"):
            await stage.press(key)
            check_drawn(stage.app, f"{name} after {key}")


async def test_a_link_in_what_a_model_wrote_is_no_action(tmp_path: Path) -> None:
    async with on_stage(Scene(change=poisoned(PIECES["markup"])), tmp_path, (120, 36)) as stage:
        await stage.press("2")
        for strip in stage.app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or not segment.style.meta.get("@click")
        await keys("j", "k")(stage)
        assert stage.app.is_running
