"""Every row of the key table does something, is told everywhere, and is tried by a test.

Keys that belong to no page alone are tried here. `TRIED` names the test of each other one;
a new key without a row in it fails, and so does a row whose test does not press the key.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from textual.events import Key

from studio.tui.actions import MainScreen
from studio.tui.app import StudioApp
from studio.tui.drawing.lines import plain_text
from studio.tui.help import HelpScreen, help_lines
from studio.tui.keymap import KEYS, SCOPES, keys_of_scope
from studio.tui.keymap import Key as TableKey
from studio.tui.pages import PAGES
from studio.tui.widgets.line_view import RowList
from tests.studio.tui.scenes import SCENES, Scene, on_stage
from tests.studio.tui.stage import picture

HELD, FINISHED = Scene(), Scene("rehearsal", living=False)
HERE = "test_every_key"
PARTING = "test_inspect::test_enter_goes_to_the_step_where_a_rollout_parts"
TRIED = {
    "global.live": f"{HERE}::test_a_number_opens_its_page",
    "global.review": f"{HERE}::test_a_number_opens_its_page",
    "global.library": f"{HERE}::test_a_number_opens_its_page",
    "global.diff": f"{HERE}::test_a_number_opens_its_page",
    "global.runs": f"{HERE}::test_a_number_opens_its_page",
    "global.inspect": f"{HERE}::test_a_number_opens_its_page",
    "global.progress": f"{HERE}::test_a_number_opens_its_page",
    "global.start": f"{HERE}::test_a_number_opens_its_page",
    "global.palette": f"{HERE}::test_the_palette_opens_by_either_of_its_keys",
    "global.help": "test_help::test_help_opens_copies_and_closes",
    "global.filter": "test_review::test_the_filter_shows_what_holds_the_words",
    "global.goto": f"{HERE}::test_g_goes_to_an_id_of_another_page_and_says_when_there_is_none",
    "global.steer": "test_live::test_p_pauses_and_goes_on_and_capital_p_pauses_now",
    "global.commit": "test_review::test_c_commits_at_once_what_is_all_decided",
    "global.back": "test_app::test_the_number_keys_open_the_pages_and_escape_goes_back",
    "global.next_pane": f"{HERE}::test_tab_goes_through_the_panes_and_shift_tab_back",
    "global.previous_pane": f"{HERE}::test_tab_goes_through_the_panes_and_shift_tab_back",
    "global.jump": f"{HERE}::test_ctrl_w_jumps_to_the_pane_of_a_letter",
    "global.copy": f"{HERE}::test_y_copies_the_item_and_capital_y_the_pane",
    "global.copy_pane": f"{HERE}::test_y_copies_the_item_and_capital_y_the_pane",
    "global.settings": "test_help::test_settings_are_shown_changed_and_kept",
    "global.take_over": f"{HERE}::test_capital_t_takes_over_and_decides_from_then_on",
    "global.redraw": f"{HERE}::test_ctrl_l_draws_everything_anew",
    "global.detach": "test_app::test_q_detaches_and_the_run_is_asked_nothing",
    "global.interrupt": "test_app::test_ctrl_c_warns_once_and_then_detaches",
    "loop.pause": "test_live::test_p_pauses_and_goes_on_and_capital_p_pauses_now",
    "loop.pause_now": "test_live::test_p_pauses_and_goes_on_and_capital_p_pauses_now",
    "loop.step": "test_live::test_s_steps",
    "loop.faster": "test_replay::test_a_replay_streams_on_every_page_and_says_that_it_is_one",
    "loop.slower": "test_replay::test_a_replay_streams_on_every_page_and_says_that_it_is_one",
    "loop.stop": "test_live::test_x_stops_after_the_step_or_now",
    "loop.resume": "test_live::test_r_resumes_a_run_that_ended_early",
    "list.down": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.up": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.page_down": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.page_up": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.top": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.bottom": f"{HERE}::test_a_list_is_gone_through_by_lines_pages_and_ends",
    "list.left": f"{HERE}::test_left_and_right_go_between_rollouts_on_the_canvas",
    "list.right": f"{HERE}::test_left_and_right_go_between_rollouts_on_the_canvas",
    "live.open": "test_live::test_opening_an_ended_rollout_goes_to_inspect",
    "live.zoom": "test_live::test_z_goes_round_the_zooms",
    "live.follow": "test_live::test_f_stays_where_the_text_is_and_follows_it_again",
    "live.tools": "test_tool_calls::test_marks_stream_into_blocks_that_one_key_unfolds",
    "live.previous_group": "test_live::test_brackets_go_round_the_groups",
    "live.next_group": "test_live::test_brackets_go_round_the_groups",
    "live.kill": "test_live::test_kill_asks_first_and_names_the_rollout",
    "review.approve": "test_review::test_a_approves_what_is_shown_and_shows_the_next",
    "review.edit": "test_review::test_e_edits_and_enter_approves_the_new_wording",
    "review.editor": "test_review::test_capital_e_takes_the_wording_from_the_editor",
    "review.reject": "test_review::test_r_rejects_without_a_reason",
    "review.reject_because": "test_review::test_capital_r_asks_why_first",
    "review.merge": "test_review::test_capital_m_merges_into_the_similar_one",
    "review.undo": "test_review::test_u_takes_back_one_after_the_other_and_ctrl_r_decides_again",
    "review.redo": "test_review::test_u_takes_back_one_after_the_other_and_ctrl_r_decides_again",
    "review.next": "test_review::test_n_and_capital_n_go_to_what_is_undecided",
    "review.previous": "test_review::test_n_and_capital_n_go_to_what_is_undecided",
    "review.safe": (
        "test_review::test_capital_a_lists_what_is_safe_and_enter_approves_it_as_one_step"
    ),
    "review.range": "test_review::test_a_range_is_decided_after_it_was_listed",
    "review.mark": "test_review::test_two_marked_proposals_become_one_in_one_record",
    "review.try": "test_review::test_capital_v_has_operations_tried_and_says_how_without_a_process",
    "review.pin": "test_review::test_some_parts_of_a_modify_are_taken_and_p_pins_its_target",
    "review.later": "test_review::test_t_puts_off",
    "review.note": "test_review::test_a_note_goes_with_the_decision",
    "review.evidence": f"{HERE}::test_enter_opens_the_evidence_and_closes_it",
    "review.open": "test_review::test_o_opens_the_rollout_and_back_returns_to_the_operation",
    "review.words": "test_review::test_w_goes_through_words_lines_and_columns",
    "review.more": "test_training_view::test_z_shows_all_figures_of_an_update_and_fewer_again",
    "review.sort": "test_review::test_capital_s_sorts_and_the_cursor_stays",
    "review.drop": "test_review::test_d_lets_a_reply_go_for_a_reason",
    "library.edit": "test_library::test_e_proposes_another_wording",
    "library.delete": "test_library::test_d_proposes_a_deletion_once_it_is_confirmed",
    "library.merge": "test_library::test_m_rewords_the_other_and_deletes_this_one",
    "library.insert": "test_library::test_i_proposes_an_addition_and_nothing_without_a_text",
    "library.mark": "test_library::test_two_marked_ones_are_merged_and_p_pins",
    "library.pin": "test_library::test_two_marked_ones_are_merged_and_p_pins",
    "library.uses": "test_library::test_enter_shows_uses_and_opens_one_in_inspect",
    "library.history": ("test_library::test_capital_h_shows_the_history_and_d_the_last_change"),
    "library.changed": ("test_library::test_capital_h_shows_the_history_and_d_the_last_change"),
    "library.sort": "test_library::test_s_sorts_and_the_cursor_stays_on_its_experience",
    "library.export": ("test_library::test_x_writes_the_version_into_a_file_and_tells_its_path"),
    "diff.next_change": "test_diff::test_brackets_go_from_change_to_change",
    "diff.previous_change": "test_diff::test_brackets_go_from_change_to_change",
    "diff.base": "test_diff::test_b_and_capital_b_choose_from_a_list_of_what_there_is",
    "diff.target": "test_diff::test_b_and_capital_b_choose_from_a_list_of_what_there_is",
    "diff.words": ("test_diff::test_w_turns_columns_into_words_where_there_is_room"),
    "diff.same": "test_diff::test_equals_hides_what_is_equal_and_says_how_many",
    "diff.export": "test_diff::test_capital_x_writes_the_difference_beside_other_exports",
    "diff.choose": "test_diff::test_b_and_capital_b_choose_from_a_list_of_what_there_is",
    "runs.open": "test_runs::test_the_table_is_read_and_enter_attaches",
    "runs.mark": "test_runs::test_space_marks_a_run_and_capital_b_compares_it_with_another",
    "runs.compare": "test_runs::test_space_marks_a_run_and_capital_b_compares_it_with_another",
    "runs.sort": "test_runs::test_s_sorts_and_the_cursor_stays_on_its_run",
    "runs.export": "test_runs::test_x_writes_the_list_into_the_workspace_and_tells_where",
    "inspect.next": "test_inspect::test_n_and_shift_n_go_through_the_group_and_round",
    "inspect.previous": "test_inspect::test_n_and_shift_n_go_through_the_group_and_round",
    "inspect.next_group": f"{PARTING}_and_brackets_to_other_groups",
    "inspect.previous_group": f"{PARTING}_and_brackets_to_other_groups",
    "inspect.parting": f"{PARTING}_and_brackets_to_other_groups",
    "inspect.split": "test_inspect::test_w_puts_a_winner_and_a_loser_side_by_side_and_back",
    "inspect.tokens": "test_inspect::test_dollar_shows_tokens_and_times_of_each_call",
    "inspect.tools": "test_tool_calls::test_the_key_unfolds_all_calls_of_a_rollout_in_inspect",
    "inspect.fold": ("test_inspect::test_z_folds_the_part_under_the_cursor_or_all_from_the_list"),
    "inspect.pager": "test_inspect::test_o_gives_the_whole_rollout_to_a_pager_or_says_why_not",
    "progress.open": (
        "test_progress::test_points_are_gone_through_and_a_step_is_found_opened_and_copied"
    ),
    "progress.next": (
        "test_progress::test_points_are_gone_through_and_a_step_is_found_opened_and_copied"
    ),
    "progress.previous": (
        "test_progress::test_points_are_gone_through_and_a_step_is_found_opened_and_copied"
    ),
    "progress.next_set": "test_progress::test_brackets_choose_the_held_out_set",
    "progress.previous_set": "test_progress::test_brackets_choose_the_held_out_set",
    "progress.base": "test_progress::test_b_lays_a_run_over_and_capital_b_takes_it_away",
    "progress.target": "test_progress::test_b_lays_a_run_over_and_capital_b_takes_it_away",
    "start.open": "test_start::test_a_held_run_comes_first_and_enter_resumes_it",
    "start.check": "test_start::test_capital_c_says_calls_tokens_and_what_was_looked_at",
    "start.set": "test_start::test_settings_are_checked_where_they_are_typed_and_kept",
}


@cache
def sources_in(module: str) -> dict[str, str]:
    """Each test of a file with its source, decorators included."""
    (path,) = Path(__file__).parent.rglob(f"{module}.py")
    text = path.read_text(encoding="utf-8")
    parts = re.split(r"\n\n\n(?=@|async def |def )", text)
    found = {}
    for part in parts:
        if named := re.search(r"^(?:async )?def (test_\w+)\(", part, re.MULTILINE):
            found[named[1]] = part
    return found


# -- the table ----------------------------------------------------------------------------------


def test_every_key_has_the_test_that_tries_it() -> None:
    assert set(TRIED) == {key.id for key in KEYS}
    for key in KEYS:
        module, _, name = TRIED[key.id].partition("::")
        source = sources_in(module).get(name)
        assert source is not None, f"{key.id}: there is no {TRIED[key.id]}"
        pressed = any(f'"{one}"' in source for one in key.keys.split(","))
        assert pressed, f"{key.id}: {name} does not press {key.keys}"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_key_is_an_action_with_words(key: TableKey) -> None:
    owners: list[type] = [MainScreen, StudioApp]
    if key.scope == "list":
        owners = [RowList]
    elif key.scope not in ("global", "loop"):
        owners = [page.load_class() for page in PAGES if page.name == key.scope]
    action = f"action_{key.action.partition('(')[0]}"
    if action != "action_move_across":  # that of the canvas
        assert any(callable(getattr(owner, action, None)) for owner in owners), action
    assert key.tooltip.endswith(".") and key.label
    assert key.scope in SCOPES


async def test_every_key_is_in_the_help_of_its_page_and_in_the_palette(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        for page in PAGES:
            stage.app.open_page(page.name)
            scopes = HelpScreen(stage.app.page_name).scopes
            assert {page.name, "loop", "global", "list"} <= set(scopes)
            text = "\n".join(plain_text(one) for one in help_lines(KEYS, scopes, [], 400))
            for key in (key for scope in scopes for key in keys_of_scope(scope)):
                assert key.tooltip in text, key.id
        told = {
            (command.help, command.title)
            for command in stage.app.get_system_commands(stage.app.screen)
        }
        tips = {tip for tip, _ in told}
        missing = {key.id for key in KEYS if key.tooltip not in tips}
        assert missing == {"global.palette", "global.interrupt"}  # open already; pressed twice


# -- keys of no page alone -----------------------------------------------------------------------


async def test_a_number_opens_its_page(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        pages = {
            "2": "review", "3": "library", "4": "diff", "5": "runs",
            "6": "inspect", "7": "progress", "0": "start", "1": "live",
        }  # fmt: skip
        for key, page in pages.items():
            await stage.press(key)
            assert stage.app.page_name == page
            assert stage.app.navigation.page().display
            tab = f"[{key} {page.capitalize()}"
            assert (tab in picture(stage.app)[1]) == (key != "0")
        assert stage.session is not None and stage.session.asked == []


@pytest.mark.parametrize("key", ["colon", "ctrl+p"])
async def test_the_palette_opens_by_either_of_its_keys(tmp_path: Path, key: str) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        await stage.pilot.press(key)
        await stage.pilot.pause()
        assert type(stage.app.screen).__name__ == "Palette"


async def test_g_goes_to_an_id_of_another_page_and_says_when_there_is_none(
    tmp_path: Path,
) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        await stage.press("g")
        await stage.answer("op1.2")
        assert stage.app.page_name == "review"
        assert stage.app.navigation.page().queue.item.id == "op1.2"  # type: ignore[attr-defined]
        await stage.press("g")
        await stage.answer("op9.9")
        assert "op9.9: nothing has this name" in picture(stage.app)[-2]
        assert stage.app.navigation.page().queue.item.id == "op1.2"  # type: ignore[attr-defined]


async def test_tab_goes_through_the_panes_and_shift_tab_back(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        await stage.press("2")
        panes = stage.app.navigation.page().panes()
        assert len(panes) == 4 and stage.app.focused is panes[0]
        seen = []
        for _ in panes:
            await stage.press("tab")
            seen.append(stage.app.focused)
        assert seen == [*panes[1:], panes[0]]
        await stage.press("shift+tab")
        assert stage.app.focused is panes[-1]


async def test_ctrl_w_jumps_to_the_pane_of_a_letter(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        await stage.press("2")
        panes = stage.app.navigation.page().panes()
        titles = [str(pane.border_title) for pane in panes]
        await stage.press("ctrl+w")
        assert "(a) Operations" in "\n".join(picture(stage.app))
        await stage.press("d")
        assert stage.app.focused is panes[2]
        assert [str(pane.border_title) for pane in panes] == titles
        assert stage.session is not None and stage.session.asked == []


async def test_y_copies_the_item_and_capital_y_the_pane(tmp_path: Path) -> None:
    async with on_stage(FINISHED, tmp_path, (120, 36)) as stage:
        await stage.press("1", "enter", "shift+tab", "y")
        assert stage.app.clipboard.startswith("s4p0 ")
        await stage.press("3", "j", "y")
        one = stage.app.clipboard
        assert "Multiply first" in one and "Carry:" not in one
        await stage.press("Y")
        assert "Multiply first" in stage.app.clipboard and "Carry:" in stage.app.clipboard
        assert "copied" in picture(stage.app)[-2]


async def test_capital_t_takes_over_and_decides_from_then_on(tmp_path: Path) -> None:
    def observed(session: object) -> None:
        session.controls, session.controller = False, "ann"  # type: ignore[attr-defined]

    async with on_stage(Scene(change=observed), tmp_path, (120, 36)) as stage:
        session = stage.session
        assert session is not None
        await stage.press("2", "a")
        assert session.asked == [] and "ann decides in this run" in picture(stage.app)[-2]
        await stage.press("T")
        assert session.asked == [("drive", None)] and session.controls
        assert "you decide now" in picture(stage.app)[-2]
        await stage.press("a")
        assert session.names() == ["drive", "decide"]


async def test_ctrl_l_draws_everything_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        before, drawn = picture(stage.app), []
        refresh = stage.app.screen.refresh
        monkeypatch.setattr(
            stage.app.screen, "refresh", lambda *a, **how: (drawn.append(how), refresh(*a, **how))
        )
        await stage.press("ctrl+l")
        assert {"repaint": True} in drawn
        assert picture(stage.app) == before


async def test_a_list_is_gone_through_by_lines_pages_and_ends(tmp_path: Path) -> None:
    async with on_stage(FINISHED, tmp_path, (120, 36)) as stage:
        await stage.press("3")
        found = stage.app.focused
        assert isinstance(found, RowList)
        names = list(found.keys)
        assert len(names) == 4

        async def lands(key: str) -> str:
            await stage.press(key)
            return found.key

        assert await lands("j") == names[1]
        assert await lands("down") == names[2]
        assert await lands("k") == names[1]
        assert await lands("up") == names[0]
        assert await lands("up") == names[0]  # it does not go round
        assert await lands("G") == names[-1]
        assert await lands("home") == names[0]
        assert await lands("ctrl+d") == names[-1]  # half a pane is more than there is
        assert await lands("ctrl+u") == names[0]


async def test_left_and_right_go_between_rollouts_on_the_canvas(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        canvas = stage.app.navigation.page("live").wall.canvas  # type: ignore[attr-defined]
        canvas.focus()
        first = canvas.focused_id
        await stage.press("l")
        assert canvas.focused_id != first
        await stage.press("h")
        assert canvas.focused_id == first


async def test_enter_opens_the_evidence_and_closes_it(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        await stage.press("2", "enter")
        page = stage.app.navigation.page()
        assert page.shown.opened_evidence and stage.app.focused is page.shown.evidence  # type: ignore[attr-defined]
        assert "Step 1 (columns)" in "\n".join(picture(stage.app))
        await stage.press("enter")
        assert not page.shown.opened_evidence  # type: ignore[attr-defined]
        assert stage.session is not None and stage.session.asked == []


async def test_the_ends_of_a_filtered_wall_that_is_empty_are_nowhere(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (80, 24)) as stage:
        await stage.press("slash")
        await stage.answer("nothing holds this")
        for key in ("home", "G", "end", "j", "ctrl+d"):
            await stage.press(key)
        assert stage.app._exception is None and stage.app.page_name == "live"


async def test_s_waits_for_a_second_key_and_lists_them_and_any_other_leaves(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        session = stage.session
        assert session is not None
        for page in "1234560":
            await stage.press(page, "p", "P", "x")
        assert session.asked == []  # no stray key steers the run
        assert "x does nothing here: ? lists the keys" in picture(stage.app)[-2]
        await stage.press("s")
        assert picture(stage.app)[-1].startswith(" p pause or go on  P pause now  s one step")
        await stage.press("j")
        assert "j is none of s p" in picture(stage.app)[-2] and session.asked == []
        await stage.press("s", "escape", "s", "p")
        assert session.names() == ["pause"]


async def test_a_dialog_tells_its_own_keys(
    tmp_path: Path,
) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        app, session = stage.app, stage.session
        assert session is not None
        await stage.press("2")
        for opener in "Ac":
            await stage.press(opener)
            keys = picture(app)[-1]
            assert keys.startswith(" enter ") and "esc leaves it" in keys and "detach" not in keys
            assert session.asked == [] and not app.navigation.page().shown.opened_evidence  # type: ignore[attr-defined]
            await stage.press("x")
            assert "x does nothing here: enter " in picture(app)[-2]
            await stage.press("escape")
            assert "nothing was" in picture(app)[-2] and "q detach" in picture(app)[-1]
        await stage.press("A", "enter")
        assert set(session.names()) == {"decide"}
        for opener, keys in (("question_mark", "/ filters"), ("f2", "enter changes it")):
            await stage.press(opener)
            assert picture(app)[-1].startswith(f" {keys}  ")
            await stage.press("escape")
        await stage.press("1", "s", "x", "escape")
        assert "the run goes on" in picture(app)[-2]


async def test_a_message_stands_for_eight_seconds(tmp_path: Path) -> None:
    async with on_stage(HELD, tmp_path, (120, 36)) as stage:
        app, now = stage.app, [1_000.0]
        app.clock = lambda: now[0]
        await stage.press("2", "A", "escape")
        assert "nothing was decided" in picture(app)[-2]
        for passed, key, stands in ((7.0, "j", True), (1.5, "", False)):
            now[0] += passed
            await stage.press(*[key] if key else [])
            app.draw_frame()
            assert ("nothing was decided" in picture(app)[-2]) is stands


@pytest.mark.parametrize("scene", ["review-none", "review-finished", "inspect-empty", "diff-empty"])
async def test_an_empty_page_offers_no_key_that_has_nothing_to_act_on(
    tmp_path: Path, scene: str
) -> None:
    async with on_stage(SCENES[scene], tmp_path, (120, 36)) as stage:
        offered = {text for text in re.split("  +", picture(stage.app)[-1].strip())}
        common = {": palette", "? help", "/ filter", "g go to", "q detach"}
        assert offered - common == ({"b base", "B target"} if scene == "diff-empty" else set())
        await stage.press("y")
        assert "nothing to copy here" in picture(stage.app)[-2]


async def test_keys_that_come_at_once_are_acted_on_in_their_order(tmp_path: Path) -> None:
    async with on_stage(FINISHED, tmp_path, (120, 36)) as stage:
        await stage.press("3", "G")
        found = stage.app.focused
        assert isinstance(found, RowList) and found.key == found.keys[-1]
        for key in "gg":
            stage.app.post_message(Key(key, key))
        await stage.pilot.pause()
        await stage.rest()
        assert found.key == found.keys[0] and not stage.app.is_asking
        for key in ("slash", "C", "a", "r", "r", "y", "enter"):
            stage.app.post_message(Key(key, key if len(key) == 1 else None))
        await stage.pilot.pause()
        await stage.rest()
        assert stage.app.navigation.page().filter_text == "Carry"
