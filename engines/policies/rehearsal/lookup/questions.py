"""The five kinds of question that rehearsal can work on with pages to look things up in only.

Owns the right and the typical wrong way of each. Knows no answer: what a page states is for the
tools to tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.policies.rehearsal.families import LookupFamily, Step


class _Kind(NamedTuple):
    """A kind of question: how it reads, and how pages state the two things it needs.

    `decoy` is what the wrong way takes for the answer; "" where it finds nothing.
    """

    family: LookupFamily
    question: re.Pattern[str]
    first: str
    second: str
    decoy: str


_NAME = r"[A-Z]\w+(?: [A-Z]\w+)?"
_KINDS = (
    _Kind(
        "order",
        re.compile(r"river flows past the birthplace of ([^?]+)\?"),
        rf"born in ({_NAME})",
        rf"lies on the ({_NAME})",
        rf"longest river is the ({_NAME})",
    ),
    _Kind(
        "premature",
        re.compile(r"mayor of the town where the ([^?]+) stands\?"),
        rf"stands in ({_NAME})",
        rf"mayor is ({_NAME})",
        rf"opened by ({_NAME})",
    ),
    _Kind(
        "empty",
        re.compile(r"market held in the town where ([^?]+) died\?"),
        rf"died in ({_NAME})",
        r"market is held on (\w+day)",
        "",
    ),
    _Kind(
        "ungrounded",
        re.compile(r"town founded where the ([^?]+) have their house\?"),
        rf"house in ({_NAME})",
        r"founded in (\d{4})",
        "",
    ),
    _Kind(
        "unchecked",
        re.compile(r"town known for in which the ([^?]+) stands\?"),
        rf"stands in ({_NAME})",
        r"known for its (\w+)",
        r"served the (\w+) trade",
    ),
)
_NOTHING = re.compile(r"^(?:error: )?Nothing found", re.M)
APART = Step("apart", "when a question names a thing by way of another, take the two apart", "")
"""What every try begins with."""


@dataclass(frozen=True, slots=True)
class Act:
    """What is done next: a search, or with `query` None the end, and what is answered then."""

    step: Step
    query: str | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A recognised question: `named` is the thing that it names."""

    kind: _Kind
    named: str

    @property
    def family(self) -> LookupFamily:
        return self.kind.family

    def choose_act(self, results: Sequence[str], right: bool) -> Act:
        """The next act after so many results, on the way that is `right` or wrong.

        Only where the two ways part is it asked which; from then on what was found tells.
        """
        told = "\n".join(results)
        place, answer = _find(self.kind.first, told), _find(self.kind.second, told)
        if answer and place:
            step = Step("stated", "give what the page of the right place states", answer)
            return Act(step, answer=answer)
        if not results:
            return self._first_act(right)
        if self.family == "empty" and not place:
            return self._after_nothing(right, searched=len(results))
        if not place:
            found = _find(self.kind.decoy, told) or "none"
            step = Step("at hand", "take what the page at hand names", found)
            return Act(step, answer=found)
        if self.family == "premature":
            if right:
                clause = "when a page names the next place, read the page of that place, too"
                return Act(Step("next page", clause, place), place)
            decoy = _find(self.kind.decoy, told)
            step = Step("settled", "take the name that the first page gives", decoy)
            return Act(step, answer=decoy)
        return Act(Step("place", "read the page of the place", place), place)

    def check_memory(self, results: Sequence[str], right: bool) -> tuple[bool, Step]:
        """Whether a verifier stops, and why."""
        told = "\n".join(results)
        place, answer = _find(self.kind.first, told), _find(self.kind.second, told)
        decoy = _find(self.kind.decoy, told)
        if self.family == "unchecked" and place and not answer:
            if not right:
                clause = "stop as soon as a word that fits stands in memory"
                return True, Step("fits", clause, decoy)
            clause = "when memory is checked, stop only where it is stated of the place asked for"
            return False, Step("asked place", clause, place)
        stop = bool(place and answer)
        clause = "the answer is stated" if stop else "the answer is not stated yet"
        return stop, Step("check", clause, self.named)

    def answer(self, results: Sequence[str]) -> str:
        """What is answered from the results, right or not."""
        told = "\n".join(results)
        if (found := _find(self.kind.second, told)) and _find(self.kind.first, told):
            return found
        return _find(self.kind.decoy, told) or ("none" if results else "1400")

    def _first_act(self, right: bool) -> Act:
        named = self.named
        match self.family:
            case "order" if right:
                clause = "when a question describes a thing, look up first what it names"
                return Act(Step("named first", clause, named), named)
            case "order":
                step = Step("asked first", "look up the kind of thing that is asked for", "river")
                return Act(step, "longest river")
            case "ungrounded" if right:
                clause = "when a fact is asked, let a page state it before you answer"
                return Act(Step("evidence", clause, named), named)
            case "ungrounded":
                step = Step("known", "answer from what is commonly known", "1400")
                return Act(step, answer="1400")
            case "empty":
                word = named.replace(" ", "").lower()
                return Act(Step("one word", "search for the name as one word", word), word)
        return Act(Step("named", "look up what the question names", named), named)

    def _after_nothing(self, right: bool, searched: int) -> Act:
        if right and searched == 1:
            clause = "when a search finds nothing, search again with the name as it is written"
            return Act(Step("once more", clause, self.named), self.named)
        step = Step("no entry", "conclude from the empty result that there is none", "none")
        return Act(step, answer="none")


def recognise_lookup(question: str) -> Lookup | None:
    for kind in _KINDS:
        if found := kind.question.search(question):
            return Lookup(kind, found[1].strip())
    return None


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text) if pattern else None
    return found[1] if found else ""
