"""Facts as JSON: a subject's fields and its properties, under their names.

The one renderer of `--json` for every subject of `studio.facts`. A subject needs no code here.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from engines.core.codec import dumps
from engines.core.text.sanitize import escape_unsafe_json
from engines.core.types import Usage
from engines.pipeline.evaluation.statistics import Interval
from studio.facts.subject import LIFTED, Subject
from studio.secrets.output import MaskedText, current_mask


def json_data(value: Any) -> Any:
    """Return a value as what JSON has: objects, lists, texts and numbers.

    A dataclass becomes an object of its fields, a subject also of its public properties. An
    interval is the list of its ends. The fields of a value that is `LIFTED` stand beside those of
    the subject itself.
    """
    if isinstance(value, Interval):
        return [value.low, value.high]
    if is_dataclass(value) and not isinstance(value, type):
        return _dataclass_data(value)
    if isinstance(value, Mapping):
        return {key: json_data(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_data(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _dataclass_data(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field in fields(value):
        if "untold" in field.metadata:
            continue
        entry = json_data(getattr(value, field.name))
        if field.metadata == LIFTED:
            data |= entry
        else:
            data[field.name] = entry
    if isinstance(value, Subject | Usage):
        for name, member in vars(type(value)).items():
            if isinstance(member, property) and not name.startswith("_"):
                data[name] = json_data(getattr(value, name))
    return data


def print_json(value: object) -> None:
    """Print one line of JSON on stdout, with secrets masked and nothing that steers a terminal."""
    line = escape_unsafe_json(current_mask().line(dumps(json_data(value))).decode())
    sys.stdout.write(MaskedText(line + "\n"))  # another pass over JSON could break it
    sys.stdout.flush()


def print_result(value: object, text: str, *, json: bool) -> None:
    """Print one set of facts: as JSON, or as text for people."""
    if json:
        print_json(value)
    else:
        print(text, flush=True)
