"""Stand-in for what verifier files read from their Youtu-Agent checkout: prompts and templates.

The checkout is the folder above the verifier file that holds `utu/prompts`. What cannot be read is
also noted for the call under way: such files make a reward of any exception, and that would be
nobody's verdict.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from pathlib import Path
from typing import Any

unread: ContextVar[list[str]] = ContextVar("unread")
"""What the call under way asked for in vain."""

_FIELD = re.compile(r"\{\{-?\s*(\w+)\s*-?\}\}")


class CannotRead(Exception):
    """A prompt or a template cannot be had."""

    def __init__(self, text: str) -> None:
        unread.get([]).append(text)
        super().__init__(text)


class Template:
    """A Jinja template; without that package only one that puts in values by their names."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, **fields: Any) -> str:
        try:
            import jinja2
        except ImportError:
            return render_fields(self._text, fields)
        return str(jinja2.Template(self._text).render(**fields))


def render_fields(text: str, fields: dict[str, Any]) -> str:
    """Put in `{{ name }}`, as Jinja does. CannotRead: the template has more than that."""
    if "{%" in text or "{{" in _FIELD.sub("", text):
        raise CannotRead("the template has more than {{ names }}, which needs the package jinja2")
    return _FIELD.sub(lambda found: str(fields.get(found[1], "")), text).removesuffix("\n")


class FileUtils:
    """Reads below the checkout `root`; None: the verifier file lies in none."""

    root: Path | None = None

    @classmethod
    def load_prompts(cls, fn: str | Path) -> Any:
        if isinstance(fn, str):
            name = f"utu/prompts/{fn.removesuffix('.yaml')}.yaml"
            if cls.root is None:
                raise CannotRead(f"{name} is asked for, and the verifier lies in no checkout")
            fn = cls.root / name
        return cls.load_yaml(fn)

    @staticmethod
    def load_yaml(file_path: str | Path) -> Any:
        import yaml  # a process for a file that reads none starts sooner

        try:
            return yaml.safe_load(Path(file_path).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or "it is not YAML"
            raise CannotRead(f"{file_path} cannot be read ({reason})") from error

    @staticmethod
    def get_jinja_template_str(template_str: str) -> Template:
        return Template(template_str)


def file_utils_for(file: Path | None) -> type[FileUtils]:
    """FileUtils of the checkout that a verifier file lies in."""
    above = () if file is None else file.absolute().parents
    root = next((folder for folder in above if (folder / "utu" / "prompts").is_dir()), None)
    return type("FileUtils", (FileUtils,), {"root": root})
