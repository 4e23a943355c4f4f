"""Facts of what a command printed and of what lies on disk, so that two releases compare.

Owns what is left out: times, durations, places on this machine, processes, and prose, whose
wording may change. Knows files and JSON only, nothing of the studio.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.old_workspaces.commands import Command, command

Ask = Callable[[Command], tuple[str, int]]
"""Runs a command in a workspace: what it printed, and its exit code."""

SAM = "sam"
"""Who decided in the workspaces as they were made."""
ME = "me"
"""Stands for Sam, and for whoever runs this, as the reviewer of what is decided now."""
_TIMES = frozenset(
    (
        "at",
        "began",
        "last",
        "took_s",
        "elapsed_s",
        "median_s",
        "mean_s",
        "pid",
        "journal_bytes",
        "machine",
    )
)
_PROSE = frozenset(
    ("scripted", "next", "change_lines", "curation_lines", "training_lines", "cause", "move")
)
"""Keys of printed JSON that hold sentences of ours."""
_PLACES = frozenset(
    ("refs", "digest", "folder", "handle", "records", "run_file", "agent", "best_agent")
)
_ENVELOPE = frozenset(("v", "seq", "settings"))
_WORDED = frozenset(("prompts", "critique", "detail", "note", "tail", "answer"))
"""What code of ours words, and what the records hold anyway."""
_ID = r"\bop\d+\.\w+|\bE\d+\b|\bs\d+p\d+(?:r\d+)?|\bv\d+\b|\b\d+\.\d+\b"
_SINCE = re.compile(r"by luck alone [\d.]+")  # which no older release said
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d(?::\d\d)?")
_LONGEST = 300
_OF_GROUPS = ("RolloutFinished", "RolloutJudged", "GroupReflected")
"""Events whose order is chance: rollouts run side by side."""


def answered(ask: Ask, look: Command, workspace: Path) -> dict[str, Any]:
    """The facts of what a command printed, and its exit code."""
    text, code = ask(look)
    if look.prints_json:
        return {"code": code, "facts": printed(text, workspace)}
    return {"code": code, "figures": figures(text), "quoted": quoted(text, workspace)}


def resumed(ask: Ask, commands: Sequence[Command], before: Path, after: Path) -> dict[str, Any]:
    """Go on with a copy `after` of the workspace `before`; what is on disk then."""
    codes = [ask(one)[1] for one in commands]
    known = {path.relative_to(before): len(events(path)) for path in journals(before)}
    found = {path.relative_to(after): path for path in journals(after)}
    listed = ("runs list --json", "library list --json", "doctor --json")
    return {
        "codes": codes,
        "journals": {
            name.as_posix(): happened(path, after, known.get(name, 0))
            for name, path in found.items()
        },
        "libraries": libraries(after),
        "adapters": adapters(after),
        "listed": {line: printed(ask(command(line))[0], after) for line in listed},
    }


def quoted(text: str, workspace: Path) -> list[str]:
    """Which wordings of experiences and operations, and answers of rollouts, a text holds."""
    return sorted(known for known in _texts(workspace) if known in text)


def figures(text: str) -> list[str]:
    """Every id, version and decimal number of a text, each once."""
    return sorted(set(re.findall(_ID, _SINCE.sub("", _CLOCK.sub("", text)))))


def printed(text: str, workspace: Path) -> Any:
    """The facts of a JSON output."""
    found = json.loads(_moved(text, workspace))
    if isinstance(found, dict) and "findings" in found:  # of the workspace, not of the machine
        found["findings"] = [f for f in found["findings"] if f["place"].startswith("./practice")]
    return _plain(found, _TIMES | _PROSE)


def happened(journal: Path, workspace: Path, known: int = 0) -> dict[str, list[Any]]:
    """The events of a journal behind the first lines, which are known.

    Those of groups are in the order of their places, the others as they came. What code of
    ours says of them is left out: critiques, flags' details, reasons that nobody typed.
    """
    found: dict[str, list[Any]] = {"in order": [], "of groups": []}
    for event in events(journal, workspace)[known:]:
        if event["kind"] in LATER_KINDS:
            continue
        kind = "of groups" if event["kind"] in _OF_GROUPS else "in order"
        left_out = _TIMES | _PLACES | _ENVELOPE | _WORDED
        found[kind].append(_plain(event, left_out, typed_reasons=True))
    found["of groups"].sort(key=_place)
    return found


def events(journal: Path, workspace: Path | None = None) -> list[dict[str, Any]]:
    """The raw events of a journal, envelope included; the file is read as plain text."""
    text = journal.read_text("utf-8")
    text = text if workspace is None else _moved(text, workspace)
    return [json.loads(line)["e"] for line in text.split("\n") if line]


def journals(workspace: Path) -> list[Path]:
    return sorted(workspace.glob("*/*/journal.jsonl"))


def libraries(workspace: Path) -> dict[str, Any]:
    """The readable file of every version of every library, without its times."""
    return {
        path.relative_to(workspace).as_posix(): _without_times(path.read_text("utf-8"))
        for path in sorted(workspace.glob("libraries/*/v*.yaml"))
    }


def adapters(workspace: Path) -> dict[str, dict[str, list[float]]]:
    """Of each tensor of each checkpoint's adapter: its norm, its mean, and its first value."""
    found = {}
    for path in sorted(workspace.glob("runs/*/checkpoints/*/*/*/adapter_model.safetensors")):
        found[path.parent.name] = {
            name: [math.sqrt(sum(v * v for v in values)), sum(values) / len(values), values[0]]
            for name, values in _tensors(path.read_bytes())
        }
    return found


@dataclass(frozen=True)
class Shape:
    """Of one kind of event: keys that each has at its top, and all that any has, at any depth."""

    always: frozenset[str]
    ever: frozenset[str]


def shapes(written: Sequence[Mapping[str, Any]]) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for event in written:
        own = frozenset(event)
        before = found.get(event["kind"], Shape(own, own))
        found[event["kind"]] = Shape(before.always & own, before.ever | keys_below(event))
    return found


def keys_below(event: Any) -> frozenset[str]:
    """The keys at any depth, each with those above it; `[]` stands for an item of a list."""
    return frozenset(_keys(event))


LATER_KINDS = frozenset({"LibraryCredited", "AgentOpened", "EffectMeasured", "LibraryMeasured"})
LATER_KINDS |= {"HeldOutShown", "LessonsCompared", "LibraryLabelled"}
"""Events that a later release added; they say so by another format."""
LATER = frozenset({"curve", "later", "spent_on", "fates", "position", "nothing_read"})
LATER |= {"credits", "credited", "turns", "tool_calls", "failed_calls", "rollouts_done"}
LATER |= {"speaker", "learns", "cells", "diagnosis", "curates", "proposed", "practises", "checks"}
LATER |= {"cached_tokens"}
"""Keys of answers that a later release added, whatever they say."""


def differences(wanted: Any, found: Any, rel: float = 1e-9, where: str = "") -> Iterator[str]:
    """Where two values differ; numbers may by so much of themselves, or by a millionth.

    A key that came later and says that nothing is so (`pinned: false`, `shown: null`) is none.
    """
    number = (int, float)
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in wanted.keys() | found.keys():
            if key not in wanted and (key in LATER or found[key] in (False, [], {}, None)):
                continue
            if key not in found or key not in wanted:
                yield f"{where}/{key}: only {'before' if key in wanted else 'now'}"
            else:
                yield from differences(wanted[key], found[key], rel, f"{where}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for at, (a, b) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(a, b, rel, f"{where}/{at}")
    elif isinstance(wanted, number) and isinstance(found, number) and wanted != found:
        if not math.isclose(wanted, found, rel_tol=rel, abs_tol=1e-6 if rel > 1e-6 else 1e-12):
            yield f"{where}: {wanted} before, {found} now"
    elif wanted != found:
        yield f"{where}: {wanted!r:.300} before, {found!r:.300} now"


def _plain(value: Any, left_out: frozenset[str], *, typed_reasons: bool = False) -> Any:
    if isinstance(value, list):
        return [_plain(entry, left_out, typed_reasons=typed_reasons) for entry in value]
    if isinstance(value, str):
        return ME if value in (SAM, _user()) else _short(value)
    if not isinstance(value, dict):
        return value
    kept = {_plain(k, left_out): v for k, v in value.items() if k not in left_out}
    if typed_reasons and kept.get("reviewer") not in (SAM, _user()):
        kept.pop("reason", None)
    if "mean_reward" in kept or "prompt_tokens" in kept:
        kept.pop("text", None)  # the same figures as a sentence
    for key in ("verdict", "training", "weights"):
        if isinstance(kept.get(key), str):
            kept[key] = figures(kept[key])
    if isinstance(kept.get("evaluations"), list):
        kept["evaluations"] = [figures(e) if isinstance(e, str) else e for e in kept["evaluations"]]
    return {k: _plain(v, left_out, typed_reasons=typed_reasons) for k, v in kept.items()}


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:40]} … {len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _place(event: Mapping[str, Any]) -> tuple[int, str, int, int]:
    return (event["step"], event["kind"], event["position"], event.get("index", -1))


def _keys(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _keys(entry, f"{above}[].")
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield f"{above}{key}"
            if key not in ("settings", "facts", "metrics"):  # whose keys are values
                yield from _keys(entry, f"{above}{key}.")


def _texts(workspace: Path) -> set[str]:
    def below(value: Any) -> Iterator[str]:
        if isinstance(value, list):
            for entry in value:
                yield from below(entry)
        elif isinstance(value, dict):
            for key, entry in value.items():
                if key == "text" and entry:
                    yield str(entry)
                elif key == "tail" and entry:
                    yield str(entry).rsplit("\n", 1)[-1]
                yield from below(entry)

    return {text for path in journals(workspace) for text in below(events(path))}


def _moved(text: str, workspace: Path) -> str:
    """The text with the folder above the workspace named by a dot."""
    return text.replace(str(workspace.parent), ".")


def _without_times(text: str) -> str:
    """Nor with its seal, which newer releases write."""
    return _CLOCK.sub("", re.sub(r"^# sha256 .+\n", "", text))


def _tensors(data: bytes) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The float32 tensors of a safetensors file: a length, a JSON head, then bytes."""
    (length,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + length])
    for name, told in sorted(head.items()):
        if name != "__metadata__":
            assert told["dtype"] == "F32"
            begin, end = told["data_offsets"]
            at = 8 + length + begin
            yield name, struct.unpack_from(f"<{(end - begin) // 4}f", data, at)


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return getpass.getuser()
