"""YAML as we read and write it: keys in order, texts of several lines as blocks, plain Unicode."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    pass


# In C, where PyYAML was built with it: less than half the time, of which each run needs several.
class _QuickDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    pass


for _kind in (_Dumper, _QuickDumper):
    _kind.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )


# In C, too: a tenth of the time. A date is read as the text that it is, as OmegaConf does.
QUICK_LOADER: Any = type("QuickLoader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
QUICK_LOADER.yaml_implicit_resolvers = {
    first: [one for one in found if not one[0].endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(text: str) -> Any:
    """The plain data of a text; raises yaml.YAMLError, RecursionError where it nests too deep."""
    return yaml.load(text, Loader=QUICK_LOADER)


LONG = 100
"""A list of so many experiences is written here: PyYAML takes five times as long."""
_ID = re.compile(r"[A-Z]\d+")
# Begins with a letter, holds no break of any script, and ends with neither blank nor colon.
_PLAIN = re.compile(
    r"[A-Za-z\u00c0-\u024f\u3400-\u9fff][ -~\u00a1-\u1fff\u2010-\u2027\u3000-\ud7ff]*(?<![ :])"
)
_STAND_IN = "rows of list {} stand here"


def dump_yaml(data: Any, width: int = 96) -> str:
    lists: list[str] = []
    text = _dump(_set_lists_aside(data, 0, width, lists), width)
    for number, rows in enumerate(lists):
        before, *behind = text.split(f" {_STAND_IN.format(number)}\n")
        if len(behind) != 1:  # somebody wrote these words
            return _dump(data, width)
        text = f"{before}\n{rows}{behind[0]}"
    return text


def _set_lists_aside(data: Any, depth: int, width: int, lists: list[str]) -> Any:
    """The data with words in place of long lists of mappings, whose text goes into `lists`."""
    if isinstance(data, dict):
        return {
            name: _set_lists_aside(value, depth + 1, width, lists) for name, value in data.items()
        }
    is_long = isinstance(data, list) and len(data) >= LONG and depth
    if not is_long or not all(isinstance(row, dict) and row for row in data):
        return data
    rows = [_format_row(row, "  " * depth, width) for row in data]
    others: Any = [row for row, text in zip(data, rows, strict=True) if text is None]
    for _ in range(depth):
        others = {"in": others}
    written = _dump(others, width).removesuffix("...\n").split("\n", depth)[depth]
    rest = iter(re.split(f"^(?={'  ' * (depth - 1)}- )", written, flags=re.MULTILINE)[1:])
    lists.append("".join(text or next(rest) for text in rows))
    return _STAND_IN.format(len(lists) - 1)


def _format_row(row: dict[str, Any], indent: str, width: int) -> str | None:
    """An entry of a list as `_dump` writes it; None where it is not of the usual kind."""
    lines = []
    for name, value in row.items():
        is_plain = isinstance(value, str) and "  " not in value and _PLAIN.fullmatch(value)
        if name == "text" and is_plain and " " in value:
            quote = "'" if ": " in value or " #" in value else ""
            value = quote + (value.replace("'", "''") if quote else value) + quote
            value = _fold(value, len(indent) + len("text: "), width, f"\n{indent}  ")
        elif name == "pinned" and isinstance(value, bool):
            value = str(value).lower()
        elif not (name == "id" and is_plain and _ID.fullmatch(value)):
            return None
        lines.append(f"{indent}{name}: {value}\n")
    return f"{indent[2:]}- {''.join(lines)[len(indent) :]}"


def _fold(text: str, column: int, width: int, line_break: str) -> str:
    """A text in lines: each ends at the first blank beyond the width."""
    lines, start = [], 0
    while (at := text.find(" ", max(start, start + width + 1 - column))) > 0:
        lines.append(text[start:at])
        start, column = at + 1, len(line_break) - 1
    return line_break.join([*lines, text[start:]])


def _dump(data: Any, width: int) -> str:
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": width}
    try:
        text: str = yaml.dump(data, Dumper=_QuickDumper, **options)
        if "\\U" not in text:  # it escapes emoji
            return text
    except UnicodeEncodeError:  # a lone surrogate, which it cannot write
        pass
    text = yaml.dump(data, Dumper=_Dumper, **options)
    return text


def escape_interpolation(text: str) -> str:
    """Text in which `${` stands for itself when the file is composed into a run file."""
    parts = text.split("${")
    for number, part in enumerate(parts[:-1]):
        body = part.rstrip("\\")
        parts[number] = body + "\\" * (2 * (len(part) - len(body)) + 1)
    return "${".join(parts)


def unescape_interpolation(text: str) -> str:
    """Inverse of `escape_interpolation`."""
    return _ESCAPED.sub(lambda match: match[1] + "${", text)


_ESCAPED = re.compile(r"(\\*)\1\\\$\{")
