"""Every key of the screen: its id, what it does, how it is called, and who may remap it.

One table, from which bindings, the footer, the help page and the palette are made, so that
none of them can drift. Ids are what `keys:` of the screen settings name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from textual.binding import Binding

from engines.core.errors import ConfigError

SCOPES = {
    "global": "everywhere",
    "loop": "the run",
    "list": "lists and panes",
    "live": "Live",
    "review": "Review",
    "library": "Library",
    "diff": "Diff",
    "runs": "Runs",
    "inspect": "Inspect",
    "start": "Start",
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
    shown: str = ""  # how the key is written; "" as it is called

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def key_text(self) -> str:
        """The first of its keys as a person reads it."""
        return self.shown or format_key(self.keys.partition(",")[0])


def _make_keys(scope: str, *rows: tuple[str, str, str, str, str, int]) -> tuple[Key, ...]:
    return tuple(
        Key(f"{scope}.{name}", keys, action, label, tip, rank)
        for name, keys, action, label, tip, rank in rows
    )


KEYS: tuple[Key, ...] = (
    *_make_keys(
        "global",
        ("live", "1", "page('live')", "live", "Watch rollouts stream.", 0),
        ("review", "2", "page('review')", "review", "Decide operations.", 0),
        ("library", "3", "page('library')", "library", "What has been learned.", 0),
        ("diff", "4", "page('diff')", "diff", "Compare two versions of a library.", 0),
        ("runs", "5", "page('runs')", "runs", "Every run of the workspace.", 0),
        ("inspect", "6", "page('inspect')", "inspect", "One rollout whole, beside another.", 0),
        ("start", "0", "page('start')", "start", "Start, resume or attach a run.", 0),
        ("palette", "colon,ctrl+p", "command_palette", "palette", "Find any command by name.", 1),
        (
            "help",
            "question_mark",
            "help",
            "help",
            "Keys of this screen, and facts of the terminal.",
            9,
        ),
        ("filter", "slash", "filter", "filter", "Show only what holds these words.", 3),
        (
            "goto",
            "g",
            "goto",
            "go to",
            "Go to an id such as op2.1, E14 or s1p0; g again: the top.",
            1,
        ),
        ("back", "escape", "back", "back", "Clear the filter, close what is open, or go back.", 0),
        ("next_pane", "tab", "next_pane", "pane", "Next pane.", 0),
        ("previous_pane", "shift+tab", "previous_pane", "pane", "Previous pane.", 0),
        ("jump", "ctrl+w", "jump", "jump", "Jump to a pane by its letter.", 0),
        ("copy", "y", "copy", "copy", "Copy the item under the cursor.", 0),
        ("copy_pane", "Y", "copy_pane", "copy all", "Copy the whole pane.", 0),
        ("settings", "f2", "settings", "settings", "Theme, keys, notification.", 0),
        (
            "take_over",
            "T",
            "take_over",
            "take over",
            "Decide here; who decided before observes.",
            0,
        ),
        ("redraw", "ctrl+l", "redraw", "redraw", "Draw everything anew.", 0),
        ("detach", "q", "detach", "detach", "Leave the screen; the run goes on.", 8),
        ("interrupt", "ctrl+c", "interrupt", "detach", "Pressed twice: leave the screen.", 0),
    ),
    *_make_keys(
        "loop",
        (
            "pause",
            "p",
            "pause",
            "pause",
            "Begin no new rollouts, or go on; what is under way ends.",
            5,
        ),
        (
            "pause_now",
            "P",
            "pause_now",
            "pause now",
            "Also hold tries under way at their next call.",
            0,
        ),
        ("step", "s", "step", "step", "One batch through its commit, then hold.", 4),
        ("stop", "x", "stop", "stop", "End the run after this step, or now.", 4),
    ),
    *_make_keys(
        "list",
        ("down", "j,down", "down", "down", "Down.", 0),
        ("up", "k,up", "up", "up", "Up.", 0),
        ("left", "h,left", "left", "left", "Left.", 0),
        ("right", "l,right", "right", "right", "Right.", 0),
        ("page_down", "ctrl+d,pagedown", "page_down", "page", "Half a page down.", 0),
        ("page_up", "ctrl+u,pageup", "page_up", "page", "Half a page up.", 0),
        ("top", "home", "top", "top", "The first line.", 0),
        ("bottom", "G,end", "bottom", "bottom", "The last line.", 0),
    ),
    *_make_keys(
        "live",
        ("open", "space,enter", "open", "open", "Open the rollout under the cursor.", 6),
        ("zoom", "z", "zoom", "zoom", "Wall, group, solo.", 7),
        ("follow", "f", "follow", "follow", "Follow the end of the text, or stay.", 5),
        ("previous_group", "left_square_bracket", "previous_group", "group", "Previous group.", 0),
        ("next_group", "right_square_bracket", "next_group", "group", "Next group.", 2),
        ("kill", "K", "kill", "kill", "End this rollout: an error, never a loss.", 0),
        ("resume", "r", "resume", "resume", "Start a run's process again after it ended early.", 0),
    ),
    *_make_keys(
        "review",
        ("approve", "a", "decide('approve')", "approve", "Approve, and show the next.", 8),
        (
            "edit",
            "e",
            "reword('here')",
            "edit",
            "Change the wording here; enter approves it so.",
            8,
        ),
        ("editor", "E", "reword('editor')", "$EDITOR", "Change the wording in $EDITOR.", 0),
        ("reject", "r", "decide('reject')", "reject", "Reject, and show the next.", 8),
        (
            "reject_because",
            "R",
            "describe('reject')",
            "reject…",
            "Reject with a reason, which the reflector is told.",
            2,
        ),
        (
            "merge",
            "M",
            "reword('merge')",
            "merge",
            "Merge into the similar experience under the cursor.",
            2,
        ),
        (
            "undo",
            "u",
            "undo",
            "undo",
            "Take the last decision back; after a commit, propose its inverse.",
            7,
        ),
        ("redo", "ctrl+r", "redo", "redo", "Decide again what was taken back.", 0),
        ("next", "n", "go_to_open(1)", "next open", "Next undecided operation.", 5),
        ("previous", "N", "go_to_open(-1)", "previous", "Previous undecided operation.", 0),
        (
            "safe",
            "A",
            "approve_safe",
            "all safe",
            "Approve everything safe, after a look at the list.",
            6,
        ),
        ("range", "v", "range", "range", "Begin a range; move, then a or r.", 3),
        ("later", "t", "decide('defer')", "later", "Decide later, without holding the run.", 2),
        ("note", "m", "describe('note')", "note", "A note, kept with the decision.", 0),
        ("evidence", "enter", "show('evidence')", "evidence", "Open the evidence, or close it.", 4),
        ("open", "o", "open", "open", "Open the rollout under the cursor in Inspect.", 1),
        ("words", "w", "show('words')", "words", "Change by words, by lines, or side by side.", 1),
        ("commit", "c", "commit", "commit", "Commit what is decided; the rest stays open.", 6),
        ("sort", "S", "show('sort')", "sort", "Flagged first, by kind, or in order.", 0),
        ("drop", "D", "drop", "drop", "Let a reply go that cannot be understood.", 0),
    ),
    *_make_keys(
        "library",
        ("edit", "e", "edit", "edit", "Propose another wording.", 8),
        ("delete", "d", "delete", "delete", "Propose to delete it.", 7),
        ("merge", "M", "merge", "merge", "Propose to merge it into another.", 5),
        ("insert", "i", "insert", "insert", "Propose a new experience.", 6),
        ("uses", "enter", "uses", "uses", "The rollouts that cite it.", 4),
        ("history", "H", "history", "history", "Every version of it.", 3),
        ("changed", "D", "changed", "diff", "What its last change changed.", 2),
        ("sort", "S", "sort", "sort", "By id, uses or length.", 2),
        ("export", "X", "export", "export", "Write the library into a file.", 1),
    ),
    *_make_keys(
        "diff",
        ("next_change", "right_square_bracket", "next_change", "change", "Next change.", 6),
        (
            "previous_change",
            "left_square_bracket",
            "previous_change",
            "change",
            "Previous change.",
            0,
        ),
        ("base", "b", "base", "base", "Choose what to compare with.", 7),
        ("target", "B", "target", "target", "Choose what is compared.", 5),
        ("words", "w", "words", "words", "By words, by lines, or side by side.", 4),
        ("same", "space", "same", "same", "Show or hide what is equal.", 3),
        ("export", "X", "export", "export", "Write the difference into a file.", 1),
        ("choose", "enter", "choose", "choose", "Compare what is under the cursor of the list.", 0),
    ),
    *_make_keys(
        "runs",
        ("open", "enter", "open", "open", "Attach to this run.", 8),
        ("compare", "c", "compare", "compare", "Mark it, then compare another with it.", 5),
        ("resume", "r", "resume", "resume", "Start its process again.", 7),
        ("sort", "S", "sort", "sort", "By time, reward or cost.", 2),
        ("export", "X", "export", "export", "Write this list into a file.", 1),
    ),
    *_make_keys(
        "inspect",
        ("next", "n", "next_rollout", "next", "Next rollout of the group.", 6),
        ("previous", "N", "previous_rollout", "previous", "Previous rollout of the group.", 0),
        ("split", "w", "split", "split", "A winner and a loser side by side.", 7),
        ("search", "S", "search", "search", "Find text in it.", 4),
        ("tokens", "t", "tokens", "tokens", "Tokens and times of each call.", 2),
        ("fold", "space", "fold", "fold", "Fold or unfold a part.", 5),
        ("pager", "o", "pager", "pager", "Read it in $PAGER.", 2),
    ),
    *_make_keys(
        "start",
        ("open", "enter", "open", "open", "Resume, attach or start what is under the cursor.", 8),
        ("check", "c", "check", "check", "Check model, data and cost; asks and writes nothing.", 6),
        ("set", "e", "set", "set", "Give key=value settings for a new run.", 5),
    ),
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
            show=key.rank > 0,
            tooltip=key.tooltip,
            id=key.id,
            # So that a list that has the focus does not take them.
            priority=key.id == "global.interrupt",
        )
        for scope in scopes
        for key in keys_of_scope(scope)
    ]


def remap_keys(changes: Mapping[str, str], place: str) -> tuple[Key, ...]:
    """The table with other keys for some ids.

    Raises:
        ConfigError: an id is unknown, a key is one that stays unbound, or two that are
            heard at the same time share a key; both are named.
    """
    known = {key.id: key for key in KEYS}
    for name, keys in changes.items():
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{place}: keys.{name}",
                "there is no such key id.",
                f"Did you mean {near[0]}?" if near else "Press ? on the screen for every id.",
            )
        for one in keys.split(","):
            if not one.strip():
                raise ConfigError(
                    f"{place}: keys.{name}", "it names no key.", "Give one, or leave it out."
                )
            if one.strip() in UNBOUND:
                raise ConfigError(
                    f"{place}: keys.{name}",
                    f"{one.strip()} stays unbound: terminals or multiplexers take it.",
                    "Choose another key.",
                )
    table = tuple(
        replace(key, keys=changes[key.id], shown="") if key.id in changes else key for key in KEYS
    )
    _check_clashes(table, set(changes), place)
    return table


def _check_clashes(table: tuple[Key, ...], changed: set[str], place: str) -> None:
    for key in table:
        for other in table:
            if key.id >= other.id or not (key.id in changed or other.id in changed):
                continue
            together = key.scope == other.scope or {key.scope, other.scope} & {"global", "loop"}
            shared = {k.strip() for k in key.keys.split(",")} & {
                k.strip() for k in other.keys.split(",")
            }
            # A page's own key may stand in front of one of the run, as shipped ones do; one
            # that was remapped was meant.
            if together and shared:
                raise ConfigError(
                    f"{place}: keys",
                    f"{key.id} and {other.id} are both on {format_key(sorted(shared)[0])}.",
                    "Give one of them another key.",
                )


_WRITTEN = {
    "colon": ":",
    "question_mark": "?",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "escape": "esc",
    "pagedown": "PgDn",
    "pageup": "PgUp",
}


def format_key(key: str) -> str:
    """How a key is written for people."""
    return _WRITTEN.get(key, key)
