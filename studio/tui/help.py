"""The help: keys as they are now, what counts as safe, and facts for a report of a bug."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import BLANK, Line, labelled_lines, line, paragraph, plain_text
from studio.tui.host import Host
from studio.tui.keymap import SCOPES, Key, keys_of_scope
from studio.tui.terminal.textual_parts import has_synchronized_output
from studio.tui.widgets.line_view import LineView

SAFE = (
    "Safe is an operation without a flag that adds, modifies or keeps. A flag says that a person "
    "should look: it is close to another experience, one group alone supports it, it names the "
    "question or the gold answer, it is long, it changes much, two operations meet in one "
    "target, the library has moved on since, or the reply had to be repaired. To delete is "
    "never safe."
)
LEFT = (
    "Leaving the screen (q) never stops a run; `studio attach` or bare `studio` comes back to "
    "the same operation. The mouse is the screen's: shift-drag selects text in most terminals."
)


def key_lines(title: str, keys: Sequence[Key], width: int) -> list[Line]:
    """A table of keys: how it is pressed, what it does, its id for `keys:` of the settings."""
    out: list[Line] = [line((title, "title"))]
    id_width = 24 if width >= 90 else 0
    for key in keys:
        pressed = ", ".join(key.written)
        left = f"  {pressed:<14} "
        rows = paragraph([(key.tooltip, "")], max(20, width - len(left) - id_width))
        for number, row in enumerate(rows):
            head = (left if number == 0 else " " * len(left), "key")
            gap = max(1, width - len(left) - id_width - len(plain_text(row)))
            tail = ((" " * gap + key.id, "dim"),) if id_width and number == 0 else ()
            out.append((head, *row, *tail))
    return out


def help_lines(
    keys: Sequence[Key], scopes: Sequence[str], facts: Sequence[tuple[str, str]], width: int
) -> list[Line]:
    """All of the help: of keys those of some scopes, of facts their labels and texts."""
    out: list[Line] = []
    for scope in scopes:
        if found := keys_of_scope(scope, tuple(keys)):
            out += [*key_lines(f"Keys: {SCOPES[scope]}", found, width), BLANK]
    terminal = [
        row
        for label, text in facts
        for row in labelled_lines(label, text, width - 2, label_width=12)
    ]
    for title, rows in (
        ("What is safe?", paragraph([(SAFE, "")], width - 2)),
        ("Leaving", paragraph([(LEFT, "")], width - 2)),
        ("This terminal", terminal),
    ):
        out += [line((title, "title")), *((("  ", ""), *row) for row in rows), BLANK]
    return out[:-1]


def terminal_facts(app: App[Any], host: Host) -> list[tuple[str, str]]:
    """What a report of a bug needs to know."""
    environ = host.environ
    clock = getattr(app, "frame_clock", None)
    sync = "yes" if has_synchronized_output(app) else "no"
    facts = [
        ("size", f"{app.size.width}x{app.size.height} cells"),
        ("colours", app.console.color_system or "none"),
        ("theme", app.theme + (", ASCII signs" if app.has_class("-ascii") else "")),
        ("TERM", one_line(environ.get("TERM", ""), 40) or "not set"),
        ("tmux", "yes" if environ.get("TMUX") else "no"),
        ("NO_COLOR", "set" if environ.get("NO_COLOR") else "not set"),
        ("frames", f"synchronized output: {sync}"),
        ("link", getattr(clock, "link_text", "") or "not measured"),
        ("settings", one_line(host.settings.place, 200)),
    ]
    if host.session is not None:
        facts.append(("journal", one_line(str(host.session.run.journal), 200)))
    return facts


class HelpScreen(ModalScreen[None]):
    """The help over a page; escape, ? or q leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "leave", "leave"),
        Binding("y,Y", "copy", "copy"),
    ]

    def __init__(self, page_name: str) -> None:
        super().__init__()
        self.scopes = ("list", page_name, "loop", "global")

    @property
    def host(self) -> Host:
        return cast("Host", self.app)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Help"
            box.border_subtitle = "y copies it   esc leaves"
            yield LineView(id="help")

    def on_mount(self) -> None:
        self.query_one(LineView).focus()
        self.call_after_refresh(self.show)

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        view = self.query_one(LineView)
        facts = terminal_facts(self.app, self.host)
        view.show_lines(help_lines(self.host.keys, self.scopes, facts, view.line_width))

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_copy(self) -> None:
        from studio.tui.terminal.clipboard import copy_text

        answer = copy_text(self.host, self.query_one(LineView).text())
        self.host.tell(answer)
        self.query_one(Vertical).border_subtitle = one_line(answer, 60).replace("[", "(")
