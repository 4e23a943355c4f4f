"""What counts as a secret in a run file, and how it is kept out of what is written.

Values that came from `${…}` are written back as that text; a secret written as its value is masked
and cannot be read back.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.core.types import Names
from engines.secrets.mask import MASK, PLACEHOLDERS, PROTOCOL, SHORTEST
from engines.secrets.rules import Grade, find_secrets, grade_name, is_random, looks_random, words

_DATA = words(
    "properties json_schema schema parameters guided_json definitions $defs tools functions "
    "response_format messages"
)
"""Below these the names are the user's own words: a JSON schema may well describe a `token`."""
_FREE = words("metadata chat_template_kwargs fields")
"""Below these only a name that is surely a secret's counts."""
_ASKED_VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")
_INTERPOLATION = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
_DEFAULT = re.compile(r"(?<=,)(?!\s*\$\{)\s*[^{}]+(?=\})")
_URL_PART = re.compile(  # an interpolation in another part of an address is met first, and stays
    rf"(?<=://)(?P<user>(?:{_INTERPOLATION.pattern}|[^/?#])*)(?=@)"
    rf"|(?<=[?&;])(?P<pair>(?:{_INTERPOLATION.pattern}|[^&;#])+)"
    rf"|(?<=\#)(?P<fragment>.+)|{_INTERPOLATION.pattern}"
)
_HARMLESS_QUERY = words("api-version api_version version model region")
_HARMLESS_HEADERS = words(
    "accept accept-language content-type http-referer referer user-agent x-title"
)
_SCHEMES = ("bearer", "basic", "token")
_ADDRESSES = ("base_url", "replicas")
_KEPT = ("headers", "extra_body", *_ADDRESSES)


def is_secret(key: Names, value: object = "") -> bool:
    """True for a value that must never be shown or stored as it is.

    What stands anywhere below a name of a secret is one: `auth: {value: …}`, `tokens: […]`.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in PLACEHOLDERS):
        return False
    grades = _grade_key(key)
    if "sure" in grades:
        return True
    if isinstance(value, int | float):
        return False
    if "likely" in grades:
        return True
    if "perhaps" in grades and (value == "" or (isinstance(value, str) and looks_random(value))):
        return True
    if len(key) > 1 and key[-2] == "headers":
        return key[-1].lower() not in _HARMLESS_HEADERS  # whatever it is called
    if not isinstance(value, str):
        return False
    if value.lower().startswith(("bearer ", "basic ")) or (0, len(value)) in find_secrets(value):
        return True  # under whatever name it stands
    return is_address(key) and _mask_url(value) != value


def is_address(key: Names) -> bool:
    """Whether a setting is an address, or stands in a list of them."""
    return any(name in _ADDRESSES for name in key[-2:])


def _grade_key(key: Names) -> set[Grade]:
    """What the names on the way to a value say of it, as far as they are names of settings."""
    ends = next((at for at, name in enumerate(key) if name in _DATA), len(key))
    grades = {grade_name(name) for name in key[:ends]}
    return grades & {"sure"} if _FREE & set(key[:ends]) else grades


def is_masked(key: Names, value: object) -> bool:
    """Whether a stored value has lost a secret, wholly or in part."""
    return isinstance(value, str) and MASK in value and is_kept_as_written(key, value)


def storable_text(key: Names, text: str) -> str:
    """A text with interpolations as it may be stored: its own literal secrets are masked.

    Names of variables stay, and so do schemes such as `Bearer`; what a default spells out
    is as literal as the rest.
    """
    if is_address(key):
        return _mask_url(text)
    if not is_secret(key):
        return text
    scheme = re.match(r"(?i)(bearer|basic|token)\s+", text)
    begin = scheme.end() if scheme else 0
    return text[:begin] + _mask_literals(text[begin:])


def _literals(text: str) -> Iterator[str]:
    """What a secret spells out beside its variables: a server may quote it without them."""
    for piece in _INTERPOLATION.split(text):
        literal = piece.strip(" -_.:/")
        if literal.lower() not in _SCHEMES:
            yield from (literal, literal.partition(" ")[2])


def _mask_literals(text: str) -> str:
    masked, end = "", 0
    for variable in _INTERPOLATION.finditer(text):
        masked += _mask_literal(text[end : variable.start()])
        masked += _DEFAULT.sub(lambda default: _mask_literal(default[0]), variable[0])
        end = variable.end()
    return masked + _mask_literal(text[end:])


def _mask_literal(literal: str) -> str:
    kept = not literal.strip() or literal.strip().lower() in PLACEHOLDERS
    return literal if kept else MASK


def _mask_url(url: str) -> str:
    """An address, with or without interpolations, whose user and query's values are masked."""

    def mask_part(match: re.Match[str]) -> str:
        match match.lastgroup:
            case "user":
                return ":".join(map(_mask_literals, match["user"].split(":", 1)))
            case "pair":
                name, equals, value = match["pair"].partition("=")
                if not equals:
                    return _mask_literals(name)
                if name.lower() in _HARMLESS_QUERY:
                    return match[0]
                return f"{name}={_mask_literals(value)}"
            case "fragment":
                return _mask_literals(match["fragment"])
        return match[0]

    return _URL_PART.sub(mask_part, url)


def names_secret(text: str) -> bool:
    """Whether an interpolation asks for a variable that is named as secrets are."""
    return any(map(grade_name, _ASKED_VARIABLE.findall(text)))


def is_kept_as_written(key: Names, text: str) -> bool:
    """True where an interpolation is stored instead of the value it stands for."""
    return is_secret(key) or any(name in key for name in _KEPT) or names_secret(text)


def without_secrets(tree: Any, key: Names = ("",)) -> Any:
    """A copy of a tree of settings with every secret masked."""
    if isinstance(tree, Mapping):
        return {name: without_secrets(value, (*key, str(name))) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_secrets(item, key) for item in tree]
    return MASK if tree is not None and is_secret(key, tree) else tree


def mask_override(text: str) -> str:
    """An override as it may be shown: the value of a secret is hidden."""
    name, equals, value = text.partition("=")
    key = tuple(name.lstrip("+~").split("."))
    # What a mapping holds is not looked at: it may be headers.
    is_free = not {"headers", "extra_body"}.isdisjoint(key) or "{" in value
    hidden = is_secret(key, value) or is_free
    return f"{name}=…" if equals and hidden and "${" not in value else text


def known_secrets(
    leaves: Iterable[tuple[Names, Any]],
    origins: Mapping[str, str],
    environ: Mapping[str, str],
) -> frozenset[str]:
    """Every value that a run must never show; `origins`: dotted key → the `${…}` it came from."""
    found = set(environment_secrets(environ))
    for key, value in leaves:
        if isinstance(value, str):
            found.update(_secrets_in(key, value))
    for dotted, text in origins.items():
        key = tuple(dotted.split("."))
        if is_secret(key) and not is_address(key):
            found.update(_literals(text))
        for name in _ASKED_VARIABLE.findall(text):
            value = environ.get(name, "")
            plain = is_address(key) and not _is_secret_url_part(name, value, text)
            if is_secret(key) or not plain:
                found.add(value)
    return frozenset(found - {"", MASK})


def environment_secrets(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Values of variables that are named as secrets are, whether a run asks for them or not.

    Only those that look random: `AUTH=required` must not be masked wherever that word occurs. The
    path of a file, as in GOOGLE_APPLICATION_CREDENTIALS, is no secret.
    """
    given = os.environ if environ is None else environ
    named = (
        value
        for name, value in given.items()
        if grade_name(name)
        and looks_random(value)
        and not (os.sep in value and os.path.exists(value))
    )
    return frozenset((*named, *_collector_secrets(given))) - {""}


def _collector_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """What the variables of tracing hold: headers as `name=value,…`, and addresses."""
    from urllib.parse import unquote

    for name, value in environ.items():
        if not name.startswith(("OTEL_EXPORTER_OTLP_", "PHOENIX_")):
            continue
        if name.endswith("_ENDPOINT"):
            yield from _url_secrets(value)
        for pair in value.split(",") if name.endswith("_HEADERS") else ():
            header, _, written = pair.partition("=")
            if header.strip().lower() not in _HARMLESS_HEADERS:
                for text in (written.strip(), unquote(written.strip())):
                    yield from (text, text.partition(" ")[2].strip())


def is_common(value: str) -> bool:
    """Whether a value is one word or one number, which ordinary text holds too."""
    if len(value) < SHORTEST or value.lower() in PROTOCOL:
        return False  # no text is masked for its sake
    return value.isascii() and (value.isalpha() or value.isdigit())


def _is_secret_url_part(name: str, value: str, text: str) -> bool:
    """Whether a variable that is one part of an address is a secret, and not a version or host."""
    if _INTERPOLATION.fullmatch(text.strip()):
        return "://" not in value and bool(grade_name(name))
    if "://" in value:
        return False  # an address, whose own secrets are found in it
    return bool(grade_name(name)) or is_random(value, shortest_piece=8)


def run_file_secrets(run_file: Path, environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """What the variables hold that a run's `run.yaml` refers to, where it can be read.

    In such a file only secrets, and what may hold some, stand as `${oc.env:NAME}`.
    """
    given = os.environ if environ is None else environ
    try:
        text = run_file.read_text("utf-8", "replace")
    except OSError:
        return frozenset()  # a run without its file was given no key
    found: set[str] = set()
    for line in text.splitlines():
        key, _, written = line.strip().partition(": ")
        for name in _ASKED_VARIABLE.findall(line):
            value = given.get(name, "")
            if "://" in value:
                found.update(_url_secrets(value))
            elif key != "base_url" or _is_secret_url_part(name, value, written):
                found.add(value)
    return frozenset(found - {""})


def _secrets_in(key: Names, value: str) -> Iterator[str]:
    if "://" in value:
        yield from _url_secrets(value)
    elif is_secret(key, value) and _is_distinctive(key, value):
        yield value
        scheme, _, rest = value.partition(" ")
        if scheme.lower() in _SCHEMES:
            yield rest.strip()


def _is_distinctive(key: Names, value: str) -> bool:
    """Whether a secret may be masked wherever it occurs.

    A plain word under a name such as `key` may be no secret at all, and masking it would
    leave gaps in ordinary texts: it is left out of the stored settings only.
    """
    sure = "sure" in _grade_key(key) or "headers" in key
    return sure or not (value.isascii() and (value.isalpha() or value.isdigit()))


def _url_secrets(url: str) -> Iterator[str]:
    """User and password, together, apart and as a header has them, and the query's values."""
    from base64 import b64encode
    from urllib.parse import unquote, unquote_plus, urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return  # no address: it is refused where it is read
    user = parts.netloc.rpartition("@")[0]
    if user:
        yield user
        name, _, password = user.partition(":")
        # Without a password the user is the key, as some gateways have it.
        yield from (password or name, unquote(password or name))
        yield b64encode(unquote(user).encode()).decode()
    for pair in [*parts.query.split("&"), *re.split("[&;]", parts.query)]:
        name, equals, value = pair.partition("=")
        if name.lower() not in _HARMLESS_QUERY:
            secret = value if equals else name
            yield from (secret, unquote(secret), unquote_plus(secret))
    if parts.fragment:
        yield parts.fragment
