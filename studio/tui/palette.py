"""What the palette finds by its words: keys and pages, and what the workspace and the run hold.

A key of another page only opens that page: what has not been seen is not acted on. What is to be
found besides is one more function in `SOURCES`.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from rich.markup import escape
from textual.app import App, SystemCommand
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from engines.core.errors import StudioError
from studio.secrets.sanitize import one_line
from studio.tui import keymap, settings
from studio.tui.drawing.lines import holds_words
from studio.tui.page import Host
from studio.tui.terminal.textual_parts import MOST_HITS, Palette

_NOT_HERE = frozenset({"global.palette", "global.interrupt"})
"""One is open already, the other a key that is pressed twice."""


def commands(app: App[Any], host: Host, page: Widget) -> Iterator[SystemCommand]:
    """All keys, those of the open page and the panes by what they do there."""
    screen = app.screen_stack[0]
    targets: dict[str, Widget] = {  # what an action is called on, by the scope of its key
        "global": screen,
        "loop": screen,
        "list": screen.focused or screen,
        host.page_name: page,
    }
    about = "Operations, experiences, rejections, versions, evaluations of all runs."
    yield SystemCommand("find in everything learned …", about, partial(_find, app), True)
    for key in host.keys:
        if key.id in _NOT_HERE:
            continue
        title = _title(key)
        call: Callable[[], object] = partial(_open_page, host, key)
        if target := targets.get(key.scope):
            call = partial(app.run_action, key.action, target)
        # What lists and other pages have is found by its words, and not listed unasked.
        near = key.scope in targets and key.scope != "list"
        yield SystemCommand(title, key.tooltip, call, near)


def _find(app: App[Any]) -> None:
    app.push_screen(Palette([LearnedHits], placeholder="words of what was learned or decided"))


def _title(key: keymap.Key) -> str:
    if key.action.startswith("page("):
        return f"{keymap.SCOPES[key.label]}: open the page ({key.key_text})"
    scope = "screen" if key.scope == "global" else keymap.SCOPES[key.scope]
    return f"{scope}: {key.label} ({key.key_text})"


def _open_page(host: Host, key: keymap.Key) -> None:
    host.open_page(key.scope)
    host.tell(f"{key.key_text}: {key.tooltip}")


# -- what the run and the screen hold -------------------------------------------------------------


def _settings(host: Host) -> Iterator[SystemCommand]:
    from studio.tui.help import SettingsScreen

    for name, meaning in settings.MEANING.items():
        call = partial(_push, host, SettingsScreen, name)
        yield SystemCommand(f"setting: {name}", f"{meaning}.", call, False)


def _manual(host: Host) -> Iterator[SystemCommand]:
    from studio.guide import TOPICS, read_page, title_of
    from studio.tui.help import GuideScreen

    for topic in TOPICS:
        headings = [row.lstrip("# ") for row in read_page(topic).splitlines() if row[:2] == "##"]
        about = ", ".join(headings) or title_of(topic)
        yield SystemCommand(
            f"manual: {title_of(topic)}", about, partial(_push, host, GuideScreen, topic), False
        )


def _push(host: Host, screen: Callable[[str], Screen[Any]], at: str) -> None:
    cast("App[Any]", host).push_screen(screen(at))


# -- what is read from folders: in a thread -------------------------------------------------------


def _runs(host: Host) -> Iterator[SystemCommand]:
    def attach(name: str) -> None:
        host.attach(name)
        host.open_page("live")

    for path in sorted(host.workspace.runs_folder.glob("*/journal.jsonl")):
        name = path.parent.name
        yield SystemCommand(f"run: {name}", "Open this run.", partial(attach, name), False)


def _presets(host: Host) -> Iterator[SystemCommand]:
    from studio.presets import list_presets

    for name, about in list_presets():
        call = partial(host.open_page, "start", name)
        yield SystemCommand(f"preset: {name}", about, call, False)


def _experiences(host: Host) -> Iterator[SystemCommand]:
    started = host.session.state.started if host.session is not None else None
    if started is None:
        return
    for experience in host.workspace.library(started.library).head().experiences:
        call = partial(host.open_page, "library", experience.id)
        about = one_line(experience.text, 400)
        yield SystemCommand(f"experience {experience.id}", about, call, False)


Source = Callable[[Host], Iterable[SystemCommand]]
SOURCES: tuple[Source, ...] = (_settings, _runs, _presets, _experiences, _manual)
"""Read in a thread; nothing waits for them until words are typed."""


class StudioCommands(Provider):
    """All of it, found by words of names and of descriptions, in any order."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._commands: list[SystemCommand] = []

    async def startup(self) -> None:
        app, host = self.app, cast(Host, self.app)
        self._commands = [*app.get_system_commands(app.screen_stack[0])]
        self._commands += await asyncio.to_thread(_read_sources, host)

    async def discover(self) -> Hits:
        for title, about, call, near in self.app.get_system_commands(self.app.screen_stack[0]):
            if near:
                yield DiscoveryHit(Content(title), call, text=title, help=escape(about))

    async def search(self, query: str) -> Hits:
        scored = []
        for number, (title, about, call, _) in enumerate(self._commands):
            if score := int(holds_words(f"{title} {about}", query)):
                begins = title.casefold().startswith(query.casefold())
                score += (1 + begins) * holds_words(title, query)
                scored.append((score, -number, title, about, call))
        for score, number, title, about, call in heapq.nlargest(MOST_HITS, scored):
            # As content and escaped: text of a model is never markup.
            shown = self._highlight(title, query)
            yield Hit(score + number * 1e-6, shown, call, text=title, help=escape(about))

    def _highlight(self, title: str, query: str) -> Content:
        shown = Content(title)
        for word in query.casefold().split():
            if self.match_style is not None and (at := title.casefold().find(word)) >= 0:
                shown = shown.stylize(self.match_style, at, at + len(word))
        return shown


class LearnedHits(Provider):
    """What the catalogue finds of the words that are typed."""

    async def search(self, query: str) -> Hits:
        from engines.record.derived.catalogue import condition, find_rows
        from studio.library.find import hit_title

        workspace = cast(Host, self.app).workspace
        rows, _ = await asyncio.to_thread(find_rows, workspace, condition(query.split()))
        for number, row in enumerate([r for r in rows if r.get("change") != "keep"][:MOST_HITS]):
            title, _, date = hit_title(row).rpartition("  ")
            about = escape(f"{date}  {one_line(row['text'], 400)}".lstrip())
            call = partial(_open_hit, self.app, row)
            yield Hit(1 - number * 1e-6, Content(title), call, text=title, help=about)


def _open_hit(app: App[Any], row: Mapping[str, Any]) -> None:
    """Open the page that shows it; of what the open run has not, tell the command that does."""
    from studio.library.find import decision_text, next_command

    host, name = cast(Host, app), row["id"]
    state = host.session.state if host.session is not None else None
    started = state.started if state is not None else None
    pages = {"version": "library", "experience": "library", "evaluation": "progress"}
    page = ""
    if state is not None and started is not None and started.library == row["library"]:
        if row["status"] != "deleted":
            page = pages.get(row["kind"], "")
        if name in state.operations and started.run == row["run"]:
            page = "review"
    if page:
        host.open_page(page, "" if row["kind"] in ("version", "evaluation") else name)
    else:
        host.tell(f"{decision_text(row)}; see {next_command(row, host.workspace)}")


def _read_sources(host: Host) -> list[SystemCommand]:
    out: list[SystemCommand] = []
    for source in SOURCES:
        try:
            out += source(host)
        except (StudioError, OSError):
            continue  # its own page says what is wrong with it
    return out
