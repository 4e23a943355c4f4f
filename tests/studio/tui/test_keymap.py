"""The table of keys: whole, without clashes, remapped by id."""

import pytest
from textual.binding import Binding

from engines.core.errors import ConfigError
from studio.tui.keymap import KEYS, SCOPES, UNBOUND, bindings, format_key, keys_of_scope, remap_keys


def test_every_key_has_an_id_of_a_scope_a_label_and_a_sentence() -> None:
    assert len({key.id for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert key.scope in SCOPES, key.id
        assert key.label and key.tooltip.endswith("."), key.id
        assert key.action, key.id


def test_no_key_is_bound_that_terminals_or_multiplexers_take() -> None:
    for key in KEYS:
        assert not {one.strip() for one in key.keys.split(",")} & UNBOUND, key.id


def test_no_two_keys_of_a_scope_clash_nor_any_with_those_heard_everywhere() -> None:
    for scope in SCOPES:
        everywhere = () if scope in ("global", "loop") else keys_of_scope("global")
        heard = [*keys_of_scope(scope), *everywhere]
        pressed = [one.strip() for key in heard for one in key.keys.split(",")]
        assert len(pressed) == len(set(pressed)), scope


def test_every_binding_has_the_id_by_which_it_is_remapped() -> None:
    made = [one for one in bindings("review") if isinstance(one, Binding)]
    assert [one.id for one in made] == [key.id for key in keys_of_scope("review")]
    assert all(one.tooltip for one in made)


def test_another_key_stands_in_the_table_and_nothing_else_changes() -> None:
    table = remap_keys({"review.approve": "f5"}, "screen.yaml")
    assert {key.id for key in table} == {key.id for key in KEYS}
    changed = [key for key, old in zip(table, KEYS, strict=True) if key != old]
    assert [(key.id, key.key_text) for key in changed] == [("review.approve", "f5")]


def test_two_keys_may_change_places() -> None:
    table = remap_keys({"review.approve": "r", "review.reject": "a"}, "screen.yaml")
    by_id = {key.id: key.keys for key in table}
    assert (by_id["review.approve"], by_id["review.reject"]) == ("r", "a")


def test_an_unknown_id_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as refused:
        remap_keys({"review.aprove": "y"}, "screen.yaml")
    assert "review.aprove" in refused.value.place
    assert "review.approve" in refused.value.move


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"review.approve": "e"}, ("review.approve", "review.edit")),
        ({"review.approve": "q"}, ("review.approve", "global.detach")),
        ({"global.detach": "a"}, ("global.detach", "review.approve")),
        ({"live.zoom": "x,s"}, ("live.zoom", "global.steer")),
    ],
)
def test_a_clash_is_refused_naming_both(changes: dict[str, str], ids: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        remap_keys(changes, "screen.yaml")
    for name in ids:
        assert name in refused.value.cause


def test_pages_that_are_never_open_together_may_share_a_key() -> None:
    assert remap_keys({"diff.base": "f5", "library.edit": "f5"}, "screen.yaml")


@pytest.mark.parametrize("keys", ["", "a,,b", "ctrl+z", "x, ctrl+b"])
def test_no_key_and_keys_that_stay_unbound_are_refused(keys: str) -> None:
    with pytest.raises(ConfigError, match=r"keys\.review\.note"):
        remap_keys({"review.note": keys}, "screen.yaml")


def test_keys_are_written_as_they_are_printed_on_the_keyboard() -> None:
    assert [format_key(key) for key in ("question_mark", "slash", "a", "ctrl+r")] == [
        "?",
        "/",
        "a",
        "ctrl+r",
    ]
