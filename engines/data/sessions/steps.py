"""The steps that every format of recorded sessions is read into, and how their files are opened.

Readers give steps in order and judge nothing; `tries` makes problems of them. What cannot be read
is counted by its kind, and never stops the rest.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from engines.core.codec import JsonObject
from engines.core.frozen import frozen

LONGEST_LINE, LONGEST_FILE = 32_000_000, 512_000_000
"""Bytes of a line, and of a file that has to be read whole; what is longer is left out."""
_EXIT = re.compile(
    r"(?i)(?:exit(?:ed)?(?: with)? (?:code|status)|exit_?code|returncode)\"?[:=\s]{1,3}(-?\d{1,4})"
)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
Kind = Literal["user", "assistant", "call", "result", "summary", "error", "interrupted", "rewound"]


@frozen
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

    def drop_kind(self, of: object) -> None:
        """A line or part that no reader knows, by its type where that is a plain word."""
        kind = str(of.get("type") if isinstance(of, dict) else of)
        self.drop(f'"{kind}" entries' if _PLAIN.fullmatch(kind) else "entries of no known kind")

    def text_of(self, content: Any) -> str:
        """The text of a message's content: a text, or parts, of which other ones are counted."""
        if not isinstance(content, list | dict):
            return "" if content is None else str(content)
        said = []
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text", part.get("content")) if isinstance(part, dict) else part
            if isinstance(text, str):
                said.append(text)
            else:
                self.drop_kind(part)
        return "\n".join(said)

    def read_lines(self, path: Path) -> Iterator[JsonObject]:
        """The objects of a JSONL file, one after the other."""
        with path.open("rb") as file:
            while raw := file.readline(LONGEST_LINE):
                if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                    self.drop("over-long lines")
                    while (raw := file.readline(LONGEST_LINE)) and not raw.endswith(b"\n"):
                        pass
                elif row := as_object(parse_json(raw)):
                    yield row
                elif raw.strip():
                    self.drop("unreadable lines")

    def read_whole(self, path: Path) -> Any:
        """The JSON of a file; None where it holds none."""
        short = path.stat().st_size <= LONGEST_FILE
        found = parse_json(path.read_bytes()) if short else None
        if found is None:
            self.drop("unreadable files" if short else "over-long files")
        return found


Reader = Callable[[Path, Intake], Iterator[Session]]


def call_step(name: object, id: object, arguments: Any) -> Step:
    if isinstance(arguments, str) and isinstance(parsed := parse_json(arguments), dict):
        arguments = parsed
    return Step("call", name=str(name or ""), id=str(id or ""), arguments=arguments)


def result_step(text: str, id: object, code: Any = None, failed: bool | None = None) -> Step:
    """Whether it failed its exit code tells, its program, or what it says at its ends."""
    if isinstance(code, int):
        failed = code != 0
    elif failed is None:
        found = _EXIT.search(text, 0, 400) or _EXIT.search(text, max(0, len(text) - 400))
        failed = None if found is None else int(found[1]) != 0
    return Step("result", text, id=str(id or ""), failed=failed)


def chat_steps(message: JsonObject, intake: Intake, model: str = "") -> Iterator[Step]:
    """The steps of a message in the form of chat APIs; one of the system's says nothing."""
    text, role = intake.text_of(message.get("content")), message.get("role")
    if role == "tool":
        failed = True if message.get("error") else None
        yield result_step(text, message.get("tool_call_id"), failed=failed)
    elif role in ("user", "assistant"):
        if text:
            yield Step("user" if role == "user" else "assistant", text, model=model)
        for call in objects(message.get("tool_calls")):
            of = call["function"] if isinstance(call.get("function"), dict) else call
            yield call_step(
                of.get("name") or of.get("function"), call.get("id"), of.get("arguments")
            )
    elif role not in ("system", "developer"):
        intake.drop_kind(role)


def parse_json(raw: bytes | str) -> Any:
    """None where it is none, or nested like no message; half a surrogate pair passes."""
    try:
        found = orjson.loads(raw)
    except ValueError:
        try:
            found = json.loads(raw)
        except (ValueError, TypeError, RecursionError):
            return None
    return found if _is_shallow(found) else None


def _is_shallow(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(60):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for many in inner for one in many if isinstance(one, dict | list)]
        if not level:
            return True
    return False


def as_object(value: Any) -> JsonObject:
    """The object itself, or that of a JSON text; empty where it is neither."""
    if isinstance(value, str) and value[:1] == "{":
        value = parse_json(value)
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[JsonObject]:
    """The objects of a list; empty where it is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
