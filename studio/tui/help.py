"""The help: keys as they are now, what counts as safe, and facts for a report of a bug."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from rich.console import Console
from rich.style import Style
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import Input

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.tui import keymap, page
from studio.tui.drawing.lines import (
    BLANK,
    Line,
    Row,
    holds_words,
    labelled_lines,
    line,
    paragraph,
    plain_text,
)
from studio.tui.settings import MEANING, VALUES, ScreenSettings, write_settings
from studio.tui.terminal.textual_parts import has_synchronized_output
from studio.tui.widgets import line_view, prompt

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


def key_lines(title: str, keys: Sequence[keymap.Key], width: int) -> list[Line]:
    """A table of keys: how it is pressed, what it does, its id for `keys:` of the settings."""
    out: list[Line] = [line((title, "title"))]
    for key in keys:
        spans = [(key.tooltip, "")]
        if width >= 90:
            spans.append((f"  {key.id}", "dim"))
        out += labelled_lines(f"  {', '.join(key.written)}", spans, width, label_width=18)
    return out


def help_lines(
    keys: Sequence[keymap.Key],
    scopes: Sequence[str],
    facts: Sequence[tuple[str, str]],
    width: int,
    words: str = "",
) -> list[Line]:
    """All of the help, or what holds these words: keys of some scopes, facts by their labels."""
    out: list[Line] = []
    for scope in scopes:
        found = [
            key
            for key in keymap.keys_of_scope(scope, tuple(keys))
            if holds_words(f"{' '.join(key.written)} {key.label} {key.tooltip} {key.id}", words)
        ]
        if found:
            out += [*key_lines(f"Keys: {keymap.SCOPES[scope]}", found, width), BLANK]
    terminal = [
        row
        for label, text in facts
        if holds_words(f"{label} {text}", words)
        for row in labelled_lines(label, text, width - 2, label_width=12)
    ]
    for title, text in (("What is safe?", SAFE), ("Leaving", LEFT), ("This terminal", "")):
        rows = paragraph([(text, "")], width - 2) if holds_words(f"{title} {text}", words) else []
        if rows := [*(rows if text else terminal)]:
            out += [line((title, "title")), *((("  ", ""), *row) for row in rows), BLANK]
    return out[:-1] or [line(f"nothing here holds {one_line(words, 60)!r}: esc clears")]


def terminal_facts(app: App[Any], host: page.Host) -> list[tuple[str, str]]:
    """What a report of a bug needs to know."""
    environ = host.environ
    sync = "yes" if has_synchronized_output(app) else "no"
    facts = [
        ("size", f"{app.size.width}x{app.size.height} cells"),
        ("colours", app.console.color_system or "none"),
        ("theme", app.theme + (", ASCII signs" if app.has_class("-ascii") else "")),
        ("TERM", one_line(environ.get("TERM", ""), 40) or "not set"),
        ("tmux", "yes" if environ.get("TMUX") else "no"),
        ("NO_COLOR", "set" if environ.get("NO_COLOR") else "not set"),
        ("frames", f"synchronized output: {sync}"),
        ("link", host.frame_clock.link_text or "not measured"),
        ("settings", one_line(host.settings.place, 200)),
    ]
    if host.session is not None:
        facts.append(("journal", one_line(str(host.session.run.journal), 200)))
    return facts


class TextScreen(prompt.PromptBox):
    """Lines over a page, which `/` narrows to those of some words; escape or q leave it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "leave", "leave"),
        Binding("y,Y", "copy", "copy"),
        Binding("slash", "filter", "filter"),
    ]
    offers = keymap.offer_keys({"slash": "filters", "y": "copies it", "escape": "leaves"})
    hint = "/ filters   y copies it   esc leaves"

    def __init__(self, title: str) -> None:
        super().__init__(title, line_view.LineView(id="help"), prompt.Prompt(id="help-filter"))
        self.words = ""

    def text_lines(self, width: int) -> list[Line]:
        """What holds `words`, for a width in cells."""
        raise NotImplementedError

    def show(self) -> None:
        self.view.show_lines(self.text_lines(self.view.line_width))

    def action_leave(self) -> None:
        if self.words:
            self._show_only("")
        else:
            self.dismiss(None)

    def action_filter(self) -> None:
        asked = self.prompt.ask("filter:", self.words)

        async def wait() -> None:
            if await asked is None:
                self._show_only("")

        self.run_worker(wait())

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show_only(event.value)

    def _show_only(self, words: str) -> None:
        self.words = words
        self.show()
        self.view.action_move_to_end(-1)

    def action_copy(self) -> None:
        from studio.tui.terminal.clipboard import copy_text

        answer = copy_text(self.host, self.view.text())
        self.host.tell(answer)
        self.frame.border_subtitle = one_line(answer, 60).replace("[", "(")


class HelpScreen(TextScreen):
    def __init__(self, page_name: str) -> None:
        super().__init__("Help")
        self.scopes = (page_name, "list", "loop", "global")

    def text_lines(self, width: int) -> list[Line]:
        facts = terminal_facts(self.app, self.host)
        return help_lines(self.host.keys, self.scopes, facts, width, self.words)


class GuideScreen(TextScreen):
    """A page of the manual, or the paragraphs, lists and tables of it that hold some words."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"Manual: {topic}")
        self._topic = topic

    def text_lines(self, width: int) -> list[Line]:
        from studio.guide import read_page

        out: list[Line] = []
        for is_text, group in groupby(markdown_lines(read_page(self._topic), width - 1), key=bool):
            block = list(group)
            if is_text and holds_words(" ".join(map(plain_text, block)), self.words):
                out += [*block, BLANK]
        return out[:-1] or [line(f"nothing here holds {one_line(self.words, 60)!r}: esc clears")]


def markdown_lines(text: str, width: int) -> list[Line]:
    """A page of Markdown as `studio guide` prints it, wrapped to a width in cells."""
    from rich.markdown import Markdown  # heavy, and the help of the keys needs none

    rows = Console(width=width).render_lines(Markdown(text, hyperlinks=False), pad=False)
    out: list[Line] = []
    for row in rows:
        is_blank = not "".join(segment.text for segment in row).strip()
        if not is_blank or (out and out[-1]):  # one blank line is enough
            out.append(() if is_blank else tuple((s.text, _style_name(s.style)) for s in row))
    return out


def _style_name(style: Style | None) -> str:
    if style is None:
        return ""
    return "key" if style.bgcolor else "title" if style.bold else "dim" if style.dim else ""


def value_text(settings: ScreenSettings, name: str) -> str:
    value = getattr(settings, name)
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "none"


def with_next_value(settings: ScreenSettings, name: str) -> ScreenSettings:
    """The settings with the next value of one; a command is typed instead."""
    if name not in VALUES:
        return settings
    values = VALUES[name]
    after = values[(values.index(getattr(settings, name)) + 1) % len(values)]
    changed: dict[str, Any] = {name: after}
    return replace(settings, **changed)


def setting_rows(settings: ScreenSettings, width: int) -> list[Row]:
    """A row each, and where keys are changed."""
    rows = []
    for name, meaning in MEANING.items():
        value = one_line(value_text(settings, name), 12)
        head = (f"{name:<14}", "title"), (f"{value:<13}", "key")
        rows.append(Row(name, line(*head, (meaning, "") if width >= 60 else "")))
    text = "`keys:` of screen.yaml changes keys by their ids, which `?` shows"
    return [*rows, Row("", ()), Row("", line((text, "dim")))]


class SettingsScreen(prompt.PromptBox):
    """One row a setting; enter or space changes it at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f2", "leave", "leave"),
        Binding("enter,space", "turn", "change"),
    ]
    offers = keymap.offer_keys({"enter": "changes it", "escape": "leaves"})
    hint = "enter changes   esc leaves"
    view: line_view.RowList

    def __init__(self, at: str = "theme") -> None:
        super().__init__("Settings", line_view.RowList(id="settings"), prompt.Prompt(id="setting"))
        self._at = at  # the setting that the cursor begins on

    def show(self) -> None:
        view, settings = self.view, self.host.settings
        view.show_rows(setting_rows(settings, view.line_width), self._at or None)
        self._at = ""

    def action_turn(self) -> None:
        name = self.view.key
        if name == "command":
            self.run_worker(self._ask_command())
        elif name:
            self._save(with_next_value(self.host.settings, name))

    async def _ask_command(self) -> None:
        text = await self.prompt.ask("command:", self.host.settings.command)
        if text is None:
            return
        import shlex

        try:
            shlex.split(text)
        except ValueError as error:
            self._say(f"not kept: {error}")
            return
        self._save(replace(self.host.settings, command=text.strip()))

    def _save(self, settings: ScreenSettings) -> None:
        host = self.host
        host.settings = settings
        host.apply_settings()
        self.show()
        try:
            path = write_settings(settings, host.workspace.path)
        except StudioError as error:
            self._say(f"changed, but not kept: {error.cause}")
            return
        host.settings = replace(settings, place=str(path))
        self._say("kept in screen.yaml")

    def _say(self, text: str) -> None:
        shown = one_line(text, 60).replace("[", "(")
        self.frame.border_subtitle = f"{shown}   {self.hint}"
