"""The settings over a page: what each one means, changed by one key, kept in the workspace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.tui.drawing.lines import Row, line
from studio.tui.keymap import Key, offer_keys
from studio.tui.settings.file import MEANING, VALUES, ScreenSettings, write_settings
from studio.tui.widgets.line_view import RowList
from studio.tui.widgets.prompt import Prompt, PromptBox


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


def setting_rows(settings: ScreenSettings, keys: Sequence[Key], width: int) -> list[Row]:
    """Settings first, then every key with its id, remapped ones marked."""
    out = []
    for name, meaning in MEANING.items():
        value = one_line(value_text(settings, name), 12)
        head = (f"{name:<14}", "title"), (f"{value:<13}", "key")
        out.append(Row(name, line(*head, (meaning, "") if width >= 60 else "")))
    out.append(Row("", ()))
    out.append(Row("", line(("Keys", "title"), " (write `keys:` of screen.yaml to change one)")))
    for key in keys:
        mark = ("  changed", "flag") if key.id in settings.keys else ""
        shown = one_line(", ".join(key.written), 24)
        out.append(Row("", line((f"  {shown:<24}", "key"), f"{key.id:<24}", key.label, mark)))
    return out


class SettingsScreen(PromptBox):
    """One row a setting; enter or space changes it at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f2", "leave", "leave"),
        Binding("enter,space", "turn", "change"),
    ]
    offers = offer_keys({"enter": "changes it", "escape": "leaves"})
    hint = "enter changes   esc leaves"
    view: RowList

    def __init__(self, at: str = "theme") -> None:
        super().__init__("Settings", RowList(id="settings"), Prompt(id="setting"))
        self._at = at  # the setting that the cursor begins on

    def show(self) -> None:
        view, settings = self.view, self.host.settings
        view.show_rows(setting_rows(settings, self.host.keys, view.line_width), self._at or None)
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
