"""Pages and keys (`key_table.txt`), from which bindings, tabs, footer, help and palette are made.

A letter has one meaning on all pages; an upper-case one has the wider effect. Ids are what `keys:`
of the screen settings name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import permutations

from textual.binding import Binding

from engines.core.errors import ConfigError, suggest_name
from engines.core.frozen import frozen
from studio.tui.pages import PAGES

SCOPES = {
    "global": "everywhere",
    "loop": "the run",
    "list": "lists and panes",
    **{page.name: page.title for page in PAGES},
}
UNBOUND = frozenset("ctrl+" + letter for letter in "jmhisqzba")
"""Never bound: terminals send some of them for other keys, multiplexers take the others."""


@frozen
class Key:
    """One binding. `rank` orders the footer: 0 is not shown, 1 goes first for want of room."""

    id: str  # "review.approve"
    keys: str  # Textual's names, separated by commas
    action: str
    label: str  # a word or two, for the footer
    tooltip: str  # a sentence, for help and the palette
    rank: int = 0
    after: str = ""  # the key that is pressed before it

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def key_text(self) -> str:
        """The first of its keys as a person reads it."""
        return self.written[0]

    @property
    def written(self) -> list[str]:
        """Its keys as a person reads them, with the key that comes before those of the run."""
        before = f"{format_key(self.after)} " if self.after else ""
        return [before + format_key(key) for key in _split_keys(self.keys)]


def _read_keys(table: str) -> Iterator[Key]:
    """Those of the pages' numbers, then the rows of the table."""
    for page in PAGES:
        action = f"page('{page.name}')"
        yield Key(f"global.{page.name}", page.key, action, page.name, page.purpose)
    scope = ""
    for row in filter(None, table.splitlines()):
        name, *cells = (cell.strip() for cell in row.split("|"))
        if name.startswith("["):
            scope = name.strip("[]")
        elif not name.startswith("#"):
            keys, rank, label, tooltip, *row_action = cells
            after = "s" if scope == "loop" else ""
            called = row_action[0] if row_action else name
            yield Key(f"{scope}.{name}", keys, called, label, tooltip, int(rank), after)


KEYS = tuple(_read_keys((files("studio.tui") / "key_table.txt").read_text("utf-8")))


def offer_keys(offered: Mapping[str, str]) -> tuple[Key, ...]:
    """Keys with what they do, as the bottom line tells them instead of the page's."""
    return tuple(
        Key(f"offer.{key}", key, "", does, "", 99 - number)
        for number, (key, does) in enumerate(offered.items())
    )


def keys_of_scope(scope: str, keys: tuple[Key, ...] = KEYS) -> tuple[Key, ...]:
    return tuple(key for key in keys if key.scope == scope)


def bindings(*scopes: str) -> list[Binding]:
    return [
        Binding(
            key.keys,
            key.action,
            key.label,
            key.rank > 0,
            id=key.id,
            tooltip=key.tooltip,
            priority=key.id == "global.interrupt",  # else a list that has the focus takes it
        )
        for scope in scopes
        for key in keys_of_scope(scope)
    ]


def remap_keys(changes: Mapping[str, str], place: str) -> tuple[Key, ...]:
    """The table with other keys for some ids.

    Raises:
        ConfigError: an id is unknown, a key stays unbound, or two that are heard at once share one.
    """
    known = {key.id: key for key in KEYS}
    for name, keys in changes.items():
        where = f"{place}: keys.{name}"
        if name not in known:
            raise ConfigError(where, "there is no such key id.", suggest_name(name, known))
        for key in _split_keys(keys):
            if not key or key in UNBOUND:
                raise ConfigError(
                    where,
                    f'"{key}" is no key that terminals and multiplexers leave to the screen.',
                    "Choose another key.",
                )
        known[name] = replace(known[name], keys=keys)
    steer = known["global.steer"].keys.partition(",")[0]
    table = tuple(replace(key, after=steer) if key.after else key for key in known.values())
    if changes:
        _check_clashes(table, set(changes), place)
    return table


def _split_keys(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",")]


def _check_clashes(table: tuple[Key, ...], changed: set[str], place: str) -> None:
    for key, other in permutations(table, 2):
        if key.id > other.id or not {key.id, other.id} & changed:
            continue
        together = key.scope == other.scope
        if not key.after and not other.after:
            together = together or "global" in (key.scope, other.scope)
        shared = {*_split_keys(key.keys)} & {*_split_keys(other.keys)}
        if together and shared:
            raise ConfigError(
                f"{place}: keys",
                f"{key.id} and {other.id} are both on {format_key(min(shared))}.",
                "Give one of them another key.",
            )


_WRITTEN = {
    "colon": ":",
    "question_mark": "?",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "equals_sign": "=",
    "plus": "+",
    "minus": "-",
    "dollar_sign": "$",
    "escape": "esc",
    "pagedown": "PgDn",
    "pageup": "PgUp",
}


def format_key(key: str) -> str:
    return _WRITTEN.get(key, key)


def unused_key_text(pressed: str, heard: Sequence[Key]) -> str:
    """What is said of a key that does nothing now; `heard` are heard instead of the page's."""
    keys = ", ".join(f"{key.key_text} {key.label}" for key in heard[:3])
    return f"{format_key(pressed)} does nothing here: {keys or '? lists the keys'}"
