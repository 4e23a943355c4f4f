"""Entries by id and by text. A value: a change gives another index, which shares what it can."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar


class Entry(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def text(self) -> str: ...


E = TypeVar("E", bound=Entry)


class EntryIndex(Generic[E]):
    """Made once for some thousand entries, then a dict the size of the changes for each change."""

    def __init__(self, entries: Sequence[E]) -> None:
        self.entries = entries  # those it is the index of
        self._base = {entry.id: (at, entry) for at, entry in enumerate(entries)}
        texts: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for entry in entries:
            texts[entry.text] += (entry.id,)
        self._texts: Mapping[str, tuple[str, ...]] = texts
        self._changed: dict[str, E | None] = {}
        self._changed_texts: dict[str, tuple[str, ...]] = {}

    def get(self, name: str | None) -> E | None:
        if name is None:
            return None
        return self._changed[name] if name in self._changed else self._base.get(name, (0, None))[1]

    def with_text(self, text: str) -> E | None:
        """The entry that says exactly this."""
        return self.get(next(iter(self._holders(text)), None))

    def replace_entry(self, name: str, after: E | None) -> Sequence[E]:
        """The entries with one put in the place of another, or without it where `after` is None."""
        before = self.get(name)
        at = min(self._base.get(name, (len(self.entries),))[0], len(self.entries) - 1)
        while at >= 0 and self.entries[at] is not before:  # what went before it moved it up
            at -= 1
        if at < 0:
            at = next(n for n, entry in enumerate(self.entries) if entry is before)
        return (*self.entries[:at], *((after,) if after else ()), *self.entries[at + 1 :])

    def index_of_change(self, entries: Sequence[E], name: str, after: E | None) -> "EntryIndex[E]":
        """The index of `entries`, which are these but for one; None: it is gone."""
        new = EntryIndex[E](())
        new.entries, new._base, new._texts = entries, self._base, self._texts
        new._changed = {**self._changed, name: after}
        new._changed_texts = dict(self._changed_texts)
        if (before := self.get(name)) is not None:
            left = tuple(one for one in self._holders(before.text) if one != name)
            new._changed_texts[before.text] = left
        if after is not None:
            new._changed_texts[after.text] = (*new._holders(after.text), name)
        return new

    def _holders(self, text: str) -> tuple[str, ...]:
        if text in self._changed_texts:
            return self._changed_texts[text]
        return self._texts.get(text, ())
