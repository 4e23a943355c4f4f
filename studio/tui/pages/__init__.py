"""The pages of the screen, a folder each, and the table of them."""

from importlib import import_module
from typing import TYPE_CHECKING

from engines.core.frozen import frozen

if TYPE_CHECKING:
    from textual.widget import Widget


@frozen
class PageEntry:
    """A page of the screen; its class is `NAMEPage` of the module."""

    name: str  # also the scope of its keys
    key: str
    purpose: str  # a sentence
    module: str

    @property
    def title(self) -> str:
        return self.name.capitalize()

    def load_class(self) -> "type[Widget]":
        """Import the class, which itself imports the keys, and they this table."""
        page_class: type[Widget] = getattr(import_module(self.module), f"{self.title}Page")
        return page_class


PAGES = (
    PageEntry("live", "1", "Watch rollouts stream.", "studio.tui.pages.live.page"),
    PageEntry("review", "2", "Decide operations.", "studio.tui.pages.review.page"),
    PageEntry("library", "3", "What has been learned.", "studio.tui.pages.library.page"),
    PageEntry("diff", "4", "Compare two versions of a library.", "studio.tui.pages.diff.page"),
    PageEntry("runs", "5", "Every run of the workspace.", "studio.tui.pages.runs.page"),
    PageEntry(
        "inspect", "6", "One rollout whole, beside another.", "studio.tui.pages.inspect.page"
    ),
    PageEntry(
        "progress", "7", "Reward, tokens and cost, step by step.", "studio.tui.pages.progress.page"
    ),
    PageEntry("start", "0", "Start, resume or attach a run.", "studio.tui.pages.start.page"),
)
"""Every page, in the order of the tabs: a new one is its folder and its line here."""
