"""What counts as a secret in a run file, and how it is kept out of what is written.

Owns the naming rule and the mask. Values that came from `${…}` are written back as that
text; a secret spelled out in a file is masked and cannot be read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

MASK = "***"

_SECRET = re.compile(
    r"(^|[_.-]|(?<=[a-z])(?=[A-Z]))(?i:(api|access|secret|private)[_-]?key|token|secret|"
    r"password|passwd|authorization|auth|cookie|credentials?)$"
)
_SECRET_VARIABLE = re.compile(r"oc\.env\s*:\s*\w*(KEY|TOKEN|SECRET|PASS|AUTH|CRED)", re.IGNORECASE)
_LOOKS_SECRET = re.compile(r"(bearer |basic |(sk|pk|gsk|hf|ghp)[-_][\w-]{12,}$)", re.IGNORECASE)
_HARMLESS_HEADERS = frozenset(
    {
        "accept",
        "accept-language",
        "content-type",
        "http-referer",
        "referer",
        "user-agent",
        "x-title",
    }
)
_KEPT = ("headers", "extra_body", "base_url")


def is_secret(key: tuple[str, ...], value: object = "") -> bool:
    """True for a value that must never be shown or stored as it is."""
    if _SECRET.search(key[-1]):
        return True
    if len(key) > 1 and key[-2] == "headers":
        return key[-1].lower() not in _HARMLESS_HEADERS  # whatever it is called
    if not isinstance(value, str):
        return False
    if _LOOKS_SECRET.match(value):  # under whatever name it stands
        return True
    if key[-1] != "base_url":
        return False
    parts = urlsplit(value)
    return "@" in parts.netloc or bool(parts.query)


def names_secret(text: str) -> bool:
    """Whether an interpolation asks for a variable that is named as secrets are."""
    return bool(_SECRET_VARIABLE.search(text))


def is_kept_as_written(key: tuple[str, ...], text: str) -> bool:
    """True where an interpolation is stored instead of the value it stands for."""
    return (
        is_secret(key) or any(name in key for name in _KEPT) or bool(_SECRET_VARIABLE.search(text))
    )


def without_secrets(tree: Any, key: tuple[str, ...] = ("",)) -> Any:
    """A copy of a tree of settings with every secret masked."""
    if isinstance(tree, Mapping):
        return {name: without_secrets(value, (*key, str(name))) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(item, key) for item in tree]
    return MASK if tree is not None and is_secret(key, tree) else tree


def shown_override(text: str) -> str:
    """An override as it may be shown: the value of a secret is hidden."""
    name, equals, value = text.partition("=")
    key = tuple(name.lstrip("+~").split("."))
    hidden = is_secret(key, value) or "headers" in key or "api_key" in value
    return f"{name}=…" if equals and hidden and "${" not in value else text
