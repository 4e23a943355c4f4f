"""What every format of recorded sessions is read into, and how their files are opened.

Readers give steps in order and judge nothing; `tries` makes problems of them. What cannot be read
is counted by its kind, and never stops the rest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

LONGEST_LINE = 32_000_000
"""Bytes of a line that is read; a longer one is a blob, and is counted."""
LONGEST_FILE = 512_000_000
"""Bytes of a file that has to be read whole."""
_EXIT = re.compile(
    r"(?:exit(?:ed)?(?: with)? (?:code|status)|exit_?code\"?|returncode)\"?[:=\s]{1,3}(-?\d{1,4})",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")

Kind = Literal["user", "assistant", "call", "result", "summary", "error", "interrupted", "rewound"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was said or done.

    `summary` stands for earlier steps that were compacted; `rewound` takes back all but the first
    `turns` requests of the person.
    """

    kind: Kind
    text: str = ""
    name: str = ""  # of the tool that is called
    id: str = ""  # of the call, also in its result
    arguments: Any = None
    failed: bool | None = None  # of a result; None: it is not told
    model: str = ""
    turns: int = 0


@dataclass(slots=True)
class Session:
    """One recorded session; `steps` is read once, and before the next session is asked for."""

    id: str
    steps: Iterable[Step] = ()
    part_of: str = ""  # the session whose sub-agent this is: it is linked and gives no problem
    subagents: list[str] = field(default_factory=list)  # known once the steps are read
    score: float | None = None  # what the format itself says of it, and where
    score_name: str = ""
    answer: str | None = None  # the expected one
    whole: bool = False  # it is one request, whatever the user says in it


@dataclass(slots=True)
class Intake:
    """What one import has met so far: what it left out, and which lines it knows already."""

    dropped: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)

    def drop(self, what: str, count: int = 1) -> None:
        self.dropped[what] += count

    def drop_kind(self, kind: object) -> None:
        """A line or part that no reader knows, by its name where that is a plain word."""
        plain = isinstance(kind, str) and _PLAIN.fullmatch(kind)
        self.drop(f'"{kind}" entries' if plain else "entries of no known kind")

    def read_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The objects of a JSONL file, one after the other."""
        with path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE):
                if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                    self.drop("over-long lines")
                    while (raw := file.readline(LONGEST_LINE)) and not raw.endswith(b"\n"):
                        pass
                elif raw.strip():
                    row = parse_json(raw)
                    if isinstance(row, dict):
                        yield row
                    else:
                        self.drop("unreadable lines")

    def read_whole(self, path: Path) -> Any:
        """The JSON of a file; None where it holds none."""
        if path.stat().st_size > LONGEST_FILE:
            self.drop("over-long files")
            return None
        found = parse_json(path.read_bytes())
        if found is None:
            self.drop("unreadable files")
        return found


Reader = Callable[[Path, Intake], Iterator[Session]]


def parse_json(raw: bytes | str) -> Any:
    """None where it is none. Half a surrogate pair, which cut texts end in, passes."""
    try:
        return orjson.loads(raw)
    except ValueError:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None


def as_object(value: Any) -> dict[str, Any]:
    """The object itself, or that of a JSON text; empty where it is neither."""
    if isinstance(value, str) and value[:1] == "{":
        value = parse_json(value)
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; empty where it is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text_of(content: Any, intake: Intake) -> str:
    """The text of a message's content: a text, or parts of which others than texts are counted."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        return str(content)
    said = []
    for part in content:
        text = part.get("text", part.get("content")) if isinstance(part, dict) else part
        if isinstance(text, str):
            said.append(text)
        elif isinstance(part, dict) and part.get("type") in ("image", "input_image", "image_url"):
            intake.drop("images")
        else:
            intake.drop_kind(part.get("type") if isinstance(part, dict) else None)
    return "\n".join(said)


def chat_steps(message: Mapping[str, Any], intake: Intake, model: str = "") -> Iterator[Step]:
    """The steps of a message in the form of chat APIs; one of the system's says nothing."""
    text, role = text_of(message.get("content"), intake), message.get("role")
    if role == "user" and text:
        yield Step("user", text)
    elif role == "tool":
        failed = True if message.get("error") else exit_failed(text)
        yield Step("result", text, id=str(message.get("tool_call_id") or ""), failed=failed)
    elif role == "assistant":
        if text:
            yield Step("assistant", text, model=model)
        for call in objects(message.get("tool_calls")):
            of = call["function"] if isinstance(call.get("function"), dict) else call
            name = str(of.get("name") or of.get("function") or "")
            yield Step(
                "call",
                name=name,
                id=str(call.get("id") or ""),
                arguments=of.get("arguments"),
            )
    elif role not in ("system", "developer", "user"):
        intake.drop_kind(role)


def exit_failed(text: str) -> bool | None:
    """Whether a result says with which exit code it ended, and that was not 0."""
    found = _EXIT.search(text, 0, 400) or _EXIT.search(text, max(0, len(text) - 400))
    return None if found is None else int(found[1]) != 0
