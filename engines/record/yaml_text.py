"""YAML as we read and write it: keys in order, texts of several lines as blocks, plain Unicode."""

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


def dump_yaml(data: Any, width: int = 96) -> str:
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": width}
    try:
        text: str = yaml.dump(data, Dumper=_QuickDumper, **options)
        if "\\U" not in text:  # it escapes emoji
            return text
    except UnicodeEncodeError:  # a lone surrogate, which it cannot write
        pass
    return str(yaml.dump(data, Dumper=_Dumper, **options))


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
