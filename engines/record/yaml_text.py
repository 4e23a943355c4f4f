"""YAML as we write it: keys in their order, texts of several lines as blocks, Unicode as it is."""

from __future__ import annotations

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


def dump_yaml(data: Any) -> str:
    """The text of plain data."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 96}
    try:
        text: str = yaml.dump(data, Dumper=_QuickDumper, **options)
        if "\\U" not in text:  # it escapes emoji
            return text
    except UnicodeEncodeError:  # a lone surrogate, which it cannot write
        pass
    text = yaml.dump(data, Dumper=_Dumper, **options)
    return text
