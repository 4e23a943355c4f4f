"""What counts as a secret in a run file, and how it is kept out of what is written.

Owns the naming rule and the mask. Values that came from `${…}` are written back as that
text; a secret spelled out in a file is masked and cannot be read back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MASK = "***"

_SECRET = re.compile(
    r"(^|[_.-]|(?<=[a-z])(?=[A-Z]))(?i:(api|access|secret|private)[_-]?key|token|secret|"
    r"password|passwd|authorization|auth|cookie|credentials?)$"
)
_SECRET_VARIABLE = re.compile(r"oc\.env\s*:\s*\w*(KEY|TOKEN|SECRET|PASS|AUTH|CRED)", re.IGNORECASE)
_ASKED_VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY(?:_ID)?|SECRET_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|"
    r"CREDENTIALS?|AUTH|COOKIE|PAT)$",
    re.IGNORECASE,
)
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
    from urllib.parse import urlsplit  # not before it is needed: `--help` does without

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


def secrets_known(
    leaves: Iterable[tuple[tuple[str, ...], Any]],
    origins: Mapping[str, str],
    environ: Mapping[str, str],
) -> frozenset[str]:
    """Every value that a run must never show.

    Args:
        leaves: the resolved settings, each with its key.
        origins: dotted key → the `${…}` text that a kept value came from.
        environ: the environment it was resolved with.
    """
    found = set(secrets_of_environment(environ))
    for key, value in leaves:
        if isinstance(value, str):
            found.update(_secrets_in(key, value))
    for dotted, text in origins.items():
        key = tuple(dotted.split("."))
        for name in _ASKED_VARIABLE.findall(text):
            if _SECRET_NAME.search(name) or is_secret(key) or key[-1] != "base_url":
                found.add(environ.get(name, ""))
    return frozenset(found - {"", MASK})


def secrets_of_environment(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Values of variables that are named as secrets are, whether a run asks for them or not.

    One that holds the path of a file, as GOOGLE_APPLICATION_CREDENTIALS does, is no secret.
    """
    given = os.environ if environ is None else environ
    return frozenset(
        value
        for name, value in given.items()
        if _SECRET_NAME.search(name) and not (os.sep in value and Path(value).exists())
    )


def secrets_asked_for(run_file: Path, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """What the variables hold that a run's `run.yaml` refers to, where it can be read.

    In such a file only secrets, and what may hold some, stand as `${oc.env:NAME}`.
    """
    given = os.environ if environ is None else environ
    try:
        text = run_file.read_text("utf-8", "replace")
    except OSError:
        return frozenset()  # a run without its file has been told no key
    values = {given.get(name, "") for name in _ASKED_VARIABLE.findall(text)}
    found: set[str] = set()
    for value in values - {""}:
        found.update(_secrets_of_url(value) if "://" in value else [value])
    return frozenset(found)


def _secrets_in(key: tuple[str, ...], value: str) -> Iterator[str]:
    named = key
    while len(named) > 1 and named[-1].isdecimal():
        named = named[:-1]  # an entry of a list is called as the list is
    if "://" in value:
        yield from _secrets_of_url(value)
    elif is_secret(named, value):
        yield value
        scheme, _, rest = value.partition(" ")
        if scheme.lower() in ("bearer", "basic", "token"):
            yield rest.strip()


def _secrets_of_url(url: str) -> Iterator[str]:
    """User and password, together, apart and as a header has them, and the query's values."""
    from base64 import b64encode
    from urllib.parse import parse_qsl, unquote, urlsplit

    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    if user:
        yield user
        name, _, password = user.partition(":")
        # Without a password the user is the key, as some gateways have it.
        for said in (password or name,):
            yield said
            yield unquote(said)
        yield b64encode(unquote(user).encode()).decode()
    for _, value in parse_qsl(parts.query):
        yield value
    if parts.query and "=" not in parts.query:
        yield parts.query
