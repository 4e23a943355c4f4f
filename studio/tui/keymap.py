"""The one table of pages and keys, from which bindings, tabs, footer, help and palette are made.

A letter has one meaning on all pages; an upper-case one has the wider effect. Ids are what `keys:`
of the screen settings name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from textual.binding import Binding

from engines.core.errors import ConfigError

PAGES = (
    ("live", "1", "Watch rollouts stream."),
    ("review", "2", "Decide operations."),
    ("library", "3", "What has been learned."),
    ("diff", "4", "Compare two versions of a library."),
    ("runs", "5", "Every run of the workspace."),
    ("inspect", "6", "One rollout whole, beside another."),
    ("progress", "7", "Reward, tokens and cost, step by step."),
    ("start", "0", "Start, resume or attach a run."),
)
"""Name, key and what it is for: the order of the tabs."""
SCOPES = {
    "global": "everywhere",
    "loop": "the run",
    "list": "lists and panes",
    **{name: name.capitalize() for name, _, _ in PAGES},
}
UNBOUND = frozenset("ctrl+" + letter for letter in "jmhisqzba")
"""Never bound: terminals send some of them for other keys, multiplexers take the others."""


@dataclass(frozen=True, slots=True)
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
    def presses(self) -> tuple[str, ...]:
        """The keys that are pressed for it, one after another."""
        own = _split_keys(self.keys)[0]
        return (self.after, own) if self.after else (own,)

    @property
    def written(self) -> list[str]:
        """Its keys as a person reads them, with the key that comes before those of the run."""
        before = f"{format_key(self.after)} " if self.after else ""
        return [before + format_key(key) for key in _split_keys(self.keys)]


_Row = tuple[str, str, str, str, int] | tuple[str, str, str, str, int, str]
"""Name, keys, label, tooltip, rank, and the action where it is not called like the key."""


def _make_keys(scope: str, *rows: _Row) -> tuple[Key, ...]:
    after = "s" if scope == "loop" else ""
    return tuple(
        Key(f"{scope}.{name}", keys, action[0] if action else name, label, tooltip, rank, after)
        for name, keys, label, tooltip, rank, *action in rows
    )


KEYS: tuple[Key, ...] = (
    *_make_keys(
        "global",
        *((name, key, name, about, 0, f"page('{name}')") for name, key, about in PAGES),
        ("palette", "colon,ctrl+p", "palette", "Find any command by name.", 1, "command_palette"),
        ("help", "question_mark", "help", "Keys of this screen, and facts of the terminal.", 9),
        ("filter", "slash", "filter", "Show only what holds these words, or find them.", 3),
        ("goto", "g", "go to", "Go to an id such as op2.1, E14 or s1p0; g again: the top.", 1),
        ("steer", "s", "steer", "Steer the run: a second key says how.", 4),
        ("commit", "c", "commit", "Commit what is decided; the rest stays open.", 6),
        ("back", "escape", "back", "Clear the filter, close what is open, or go back.", 0),
        ("next_pane", "tab", "pane", "Next pane.", 0, "move_pane_focus(1)"),
        ("previous_pane", "shift+tab", "pane", "Previous pane.", 0, "move_pane_focus(-1)"),
        ("jump", "ctrl+w", "jump", "Jump to a pane by its letter.", 0),
        ("copy", "y", "copy", "Copy the item under the cursor.", 0, "copy(False)"),
        ("copy_pane", "Y", "copy all", "Copy the whole pane.", 0, "copy(True)"),
        ("settings", "f2", "settings", "Theme, keys, notification.", 0),
        ("take_over", "T", "take over", "Decide here; who decided before observes.", 0),
        ("redraw", "ctrl+l", "redraw", "Draw everything anew.", 0),
        ("detach", "q", "detach", "Leave the screen; the run goes on.", 8),
        ("interrupt", "ctrl+c", "detach", "Pressed twice: leave the screen.", 0),
    ),
    *_make_keys(
        "loop",
        ("pause", "p", "pause or go on", "Begin no new rollouts, or go on.", 5),
        ("pause_now", "P", "pause now", "Also hold tries under way at their next call.", 4),
        ("step", "s", "one step", "One batch through its commit, then hold.", 4),
        ("stop", "x", "stop", "End the run after this step, or now; asks which.", 4),
        ("resume", "r", "resume", "Start a run's process again after it ended early.", 4),
    ),
    *_make_keys(
        "list",
        ("down", "j,down", "down", "Down.", 0),
        ("up", "k,up", "up", "Up.", 0),
        ("left", "h,left", "left", "Left.", 0),
        ("right", "l,right", "right", "Right.", 0),
        ("page_down", "ctrl+d,pagedown", "page", "Half a page down.", 0),
        ("page_up", "ctrl+u,pageup", "page", "Half a page up.", 0),
        ("top", "home", "top", "The first line.", 0),
        ("bottom", "G,end", "bottom", "The last line.", 0),
    ),
    *_make_keys(
        "live",
        ("open", "enter", "open", "Open the rollout under the cursor.", 6),
        ("zoom", "z", "zoom", "Wall, group, solo.", 7),
        ("follow", "f", "follow", "Follow the end of the text, or stay.", 5),
        ("tools", "Z", "tools", "Fold or unfold the tool calls of a rollout.", 4),
        ("previous_group", "left_square_bracket", "group", "Previous group.", 0),
        ("next_group", "right_square_bracket", "group", "Next group.", 2),
        ("kill", "K", "kill", "End this rollout: an error, never a loss.", 0),
    ),
    *_make_keys(
        "review",
        ("approve", "a", "approve", "Approve, and show the next.", 8, "decide('approve')"),
        (
            "edit",
            "e",
            "edit",
            "Change the wording here; enter approves it so.",
            8,
            "reword('here')",
        ),
        ("editor", "E", "$EDITOR", "Change the wording in $EDITOR.", 0, "reword('editor')"),
        ("reject", "r", "reject", "Reject, and show the next.", 8, "decide('reject')"),
        (
            "reject_because",
            "R",
            "reject…",
            "Reject with a reason, which the reflector is told.",
            2,
            "describe('reject')",
        ),
        (
            "merge",
            "M",
            "merge",
            "Merge those that are marked, else into the similar experience under the cursor.",
            2,
            "reword('merge')",
        ),
        (
            "undo",
            "u",
            "undo",
            "Take the last decision back; after a commit, propose its inverse.",
            7,
        ),
        ("redo", "ctrl+r", "redo", "Decide again what was taken back.", 0, "undo(True)"),
        ("next", "n", "next open", "Next undecided operation.", 5, "go_to_open(1)"),
        ("previous", "N", "previous", "Previous undecided operation.", 0, "go_to_open(-1)"),
        (
            "safe",
            "A",
            "all safe",
            "Approve everything safe, after a look at the list.",
            6,
            "approve_safe",
        ),
        ("range", "v", "range", "Begin a range; move, then a or r.", 3),
        (
            "mark",
            "space",
            "mark",
            "Mark it for M; on the change: choose parts of it.",
            1,
            "reword('mark')",
        ),
        ("later", "t", "later", "Decide later, without holding the run.", 2, "decide('defer')"),
        ("note", "m", "note", "A note, kept with the decision.", 0, "describe('note')"),
        ("evidence", "enter", "evidence", "Open the evidence, or close it.", 4, "show('evidence')"),
        ("open", "o", "open", "Open the rollout under the cursor in Inspect.", 1),
        ("words", "w", "words", "Change by words, by lines, or side by side.", 1, "show('words')"),
        (
            "more",
            "z",
            "more",
            "All figures of a weight update; why proposals were dropped.",
            0,
            "show('more')",
        ),
        ("sort", "S", "sort", "Flagged first, by kind, or in order.", 0, "show('sort')"),
        ("pin", "p", "pin", "Pin the experience that it is about, or unpin it.", 1),
        ("drop", "d", "let go", "Let a reply go that cannot be understood.", 0, "reword('drop')"),
    ),
    *_make_keys(
        "library",
        ("edit", "e", "edit", "Propose another wording.", 8),
        ("delete", "d", "delete", "Propose to delete it.", 7),
        ("merge", "M", "merge", "Propose to merge it into another, or the two marked.", 5),
        ("mark", "space", "mark", "Mark it to merge it with another.", 1),
        ("pin", "p", "pin", "Let nothing change or delete it, or let it again.", 3),
        ("insert", "i", "insert", "Propose a new experience.", 6),
        ("uses", "enter", "uses", "The rollouts that cite it.", 4),
        ("history", "H", "history", "Every version of it.", 3),
        ("changed", "D", "diff", "What its last change changed.", 2),
        ("sort", "S", "sort", "By id, uses or length.", 2),
        ("export", "X", "export", "Write the library into a file.", 1),
    ),
    *_make_keys(
        "diff",
        ("next_change", "n,right_square_bracket", "change", "Next change.", 6),
        ("previous_change", "N,left_square_bracket", "change", "Previous change.", 0),
        ("base", "b", "base", "Choose what to compare with: an epoch, a version, another run.", 7),
        ("target", "B", "target", "Choose what is compared: an epoch, a version, another run.", 5),
        ("words", "w", "words", "By words, by lines, or side by side.", 4),
        ("same", "equals_sign", "same", "Show or hide what is equal.", 3),
        ("export", "X", "export", "Write the difference into a file.", 1),
        ("choose", "enter", "choose", "Compare what is under the cursor of the list.", 0),
    ),
    *_make_keys(
        "runs",
        ("open", "enter", "open", "Attach to this run.", 8),
        ("mark", "space", "mark", "Mark a run to compare it with another.", 4),
        ("compare", "B", "compare", "Compare the two that are marked, or one with this.", 5),
        ("sort", "S", "sort", "By time, reward or cost.", 2),
        ("export", "X", "export", "Write this list into a file.", 1),
    ),
    *_make_keys(
        "inspect",
        ("next", "n", "next", "Next rollout of the group.", 6, "step_rollout(1)"),
        ("previous", "N", "previous", "Previous rollout of the group.", 0, "step_rollout(-1)"),
        ("next_group", "right_square_bracket", "group", "Next group.", 3, "step_group(1)"),
        ("previous_group", "left_square_bracket", "group", "Previous group.", 0, "step_group(-1)"),
        ("split", "w", "split", "A winner and a loser side by side.", 7),
        ("parting", "enter", "parting", "Go to the step where winner and loser part.", 6),
        ("tokens", "dollar_sign", "tokens", "Tokens, times and cost of each call.", 2),
        ("fold", "z", "fold", "Fold or unfold a part.", 5),
        ("tools", "Z", "tools", "Fold or unfold the tool calls of the rollout.", 4),
        ("pager", "o", "pager", "Read it in $PAGER.", 2),
    ),
    *_make_keys(
        "progress",
        ("open", "enter", "open", "Open the rollouts of the step.", 8),
        ("next", "n", "point", "Next point.", 6, "step_point(1)"),
        ("previous", "N", "point", "Previous point.", 0, "step_point(-1)"),
        ("next_set", "right_square_bracket", "set", "Next held-out set.", 4, "step_set(1)"),
        ("previous_set", "left_square_bracket", "set", "Previous held-out set.", 0, "step_set(-1)"),
        ("base", "b", "lay over", "Choose a run to lay over this one.", 7),
        ("target", "B", "alone", "Take the run that is laid over away.", 7),
    ),
    *_make_keys(
        "start",
        ("open", "enter", "open", "Resume, attach or start what is under the cursor.", 8),
        ("check", "C", "check", "Check model, data and cost; asks and writes nothing.", 6),
        ("set", "e", "set", "Give key=value settings for a new run.", 5),
    ),
)


def offer_keys(offered: Mapping[str, str]) -> tuple[Key, ...]:
    """Keys with what they do, as the bottom line tells them instead of the page's."""
    return tuple(
        Key(f"offer.{key}", key, "", does, "", 99 - number)
        for number, (key, does) in enumerate(offered.items())
    )


def keys_of_scope(scope: str, keys: tuple[Key, ...] = KEYS) -> tuple[Key, ...]:
    return tuple(key for key in keys if key.scope == scope)


def bindings(*scopes: str) -> list[Binding]:
    """Textual's bindings of these scopes."""
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
            from difflib import get_close_matches

            last = name.rpartition(".")[2]  # an id that has moved to another page keeps its name
            moved = [one for one in known if one.rpartition(".")[2] == last]
            near = moved or get_close_matches(name, known, n=1)
            move = "Press ? on the screen for every id."
            if near:
                move = f"Did you mean {' or '.join(near)}?"
            raise ConfigError(where, "there is no such key id.", move)
        for one in _split_keys(keys):
            if not one:
                raise ConfigError(where, "it names no key.", "Give one, or leave it out.")
            if one in UNBOUND:
                cause = f"{one} stays unbound: terminals or multiplexers take it."
                raise ConfigError(where, cause, "Choose another key.")
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
            cause = f"{key.id} and {other.id} are both on {format_key(min(shared))}."
            raise ConfigError(f"{place}: keys", cause, "Give one of them another key.")


_WRITTEN = {
    "colon": ":",
    "question_mark": "?",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "equals_sign": "=",
    "dollar_sign": "$",
    "escape": "esc",
    "pagedown": "PgDn",
    "pageup": "PgUp",
}


def format_key(key: str) -> str:
    """How a key is written for people."""
    return _WRITTEN.get(key, key)


def unused_key_text(pressed: str, page: str, keys: Sequence[Key], heard: Sequence[Key] = ()) -> str:
    """What is said of a key that does nothing on this page: which one it was, and where it does.

    Where others are `heard` instead of the page's, the first of them are told.
    """
    numbers = {name: number for name, number, _ in PAGES}
    out = [f"{format_key(pressed)} does nothing here"]
    if heard:
        return f"{out[0]}: {', '.join(f'{key.key_text} {key.label}' for key in heard[:3])}"
    for key in keys:
        if pressed not in _split_keys(key.keys) or key.scope in ("global", "list", page):
            continue
        where = "" if key.after else f" on {numbers[key.scope]} {SCOPES[key.scope]}"
        out.append(f"{key.key_text}{where}: {key.label}")
    return "; ".join(out)
