r"""Secrets and other private things, taken out of sessions before anything of them is written.

Bolder than the mask of a run: a trajectory may lose a harmless word, and still teach. A value is
masked for its shape, for the name before it (`DB_PASSWORD=…`, `"token": "…"`, `-u user:…`), for
what it is once decoded, and, where it can be told from a word, wherever else it stands. Behind a
name without a sign (`setx TOKEN …`, `<token>…`) only what looks drawn by chance is masked.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from engines.core.codec import fix_surrogates
from engines.secrets.mask import MASK, PLACEHOLDERS, SHORTEST, Mask
from engines.secrets.rules import Span, find_secrets, grade_name, is_random, lower_in_place

_NAME_PARTS = (
    *("pass", "pw", "secret", "token", "credential", "key", "auth", "cookie", "conn"),
    *("_pat", "dsn", "database_url", "jsessionid"),
)
"""What a name of a secret contains: looked for as texts, which is faster than by a pattern."""
_ASSIGNED = re.compile(
    r"(?P<rest>\w{2,30})(?:\\*[\"'`]\]|(?P<close>\\*[\"'`])?)[ \t]{0,3}"
    r"(?:=>|:=|[:=：＝]|[\s,]{1,40}\\*[\"']?value\\*[\"']? ?[:=]|>(?=[^<>\s]{4,400}<))[ \t]{0,3}"
    r"(?:(?:[|>][+-]?|\\)[ \t]{0,3}\r?\n[ \t]{1,40})?"  # a block of YAML, a line that goes on
    r"(?:(?:[bru]|f(?!.{0,99}\{))?\\*[\"'`](?P<quoted>[^\"'`\n\\]{4,400})"
    r"|(?P<bare>[^\s\"'`,;(){}<>\[\]|&$\\][^\s\"'`,;(){}<>\[\]|\\]{3,400}+)(?![(\[]))"
)
_NEXT = re.compile(  # after ` `, `: {"prod": "`, `" value="`, or what stands before it in a list
    r"(?P<rest>\w{2,30}+)?[^\w+/]{1,24}+(?:[A-Za-z]\w{0,30}[^\w+/]{1,12}+)??"
    r"(?P<v>(?=[A-Za-z_.~+/=-]{0,80}+\d)[\w+/][\w.~+/=-]{9,400}+)(?!\()"
)
_APART = re.compile(r"\d[A-Za-z]+\d|\A(?!.*[a-z]{5})")
"""What a name with a digit (`base64decode`) does not have."""
_WRAPPED = re.compile(r"(?m)(?<=\*{3})\r?\n[ \t]*(?P<v>(?=\S*?\d[A-Za-z])[\w+/=-]{10,})[ \t]*$")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|api-?key|key|digest|bot)\s+")
_UNSEEN = "[\u00ad\u180e\u200b-\u200f\u2060-\u2064\ufeff]{1,9}"
_UNSEEN_WITHIN = re.compile(rf"(?<=[!-~]){_UNSEEN}|{_UNSEEN}(?=[!-~])")
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\]+[\w.@:-]+){2,}[/\\]?")
_CODE_NAME = re.compile(r"[A-Za-z_.]+[,;)]*")
_CODE = re.compile(r"//|.*[(){}\[\]<>$]")
_BEFORE = re.compile(r"[\w.-]{0,40}\Z")
_PLAIN = "str string text none null true false undefined optional bytes required"
_WORDS = frozenset(_PLAIN.split())
_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}+={0,2}")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_ESCAPED = re.compile(r"[^\s\"'<>]{12,4000}")
_LONG_LINE = re.compile(r"\n[A-Za-z0-9+/=]{60,76}\r?$", re.MULTILINE)
_BLOCK = re.compile(
    r"^[A-Za-z0-9+/=]{60,76}(?:\r?\n[A-Za-z0-9+/=]{60,76}$)+(?:\r?\n[A-Za-z0-9+/=]{4,76}$)?",
    re.MULTILINE,
)
_BLOB = 1000
"""Characters of a run that are data, whatever they say."""
_SHORT, _MANY = 40, 10_000
_HOME = re.compile(r"(?:/home/|/Users/|\b[A-Z]:\\+Users\\+)[^/\\\s\"':]{1,60}")
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")


class Redactor:
    """Masks text after text, and remembers which values it found by a name.

    `count` is of the masks that it put in. `anonymous`: also home folders and e-mail addresses,
    which `private` counts.
    """

    def __init__(self, values: Iterable[str] = (), *, anonymous: bool = False) -> None:
        self._values, self._anonymous = {*values}, anonymous
        forms = (form for value in self._values for form in _forms(value))
        self._mask = Mask(forms, self._find)
        self.found: set[str] = set()
        self.count = self.binary = self.private = 0
        self._harmless: set[str] = set()  # names and ids, which come again with every call

    def knowing_all(self) -> "Redactor":
        """One that masks what this one found wherever it stands: for a second reading."""
        return Redactor(self._values | self.found, anonymous=self._anonymous)

    def __call__(self, text: str) -> str:
        if text in self._harmless:
            return text
        given, text = text, _clean(text)
        before = text.count(MASK)
        text = self._encoded(self._plain(text))
        self.count += max(0, text.count(MASK) - before)
        if self._anonymous:
            for shape, instead in ((_HOME, "~"), (_EMAIL, MASK)):
                text, n = shape.subn(instead, text)
                self.private += n
        if text == given and len(text) <= _SHORT and len(self._harmless) < _MANY:
            self._harmless.add(text)
        return text

    def tree(self, value: Any, name: str = "", *, within: bool = False) -> Any:
        """The same of JSON, whose names tell secrets too; `within`: one of a map around it does."""
        told = grade_name(name[-80:]) != ""
        if isinstance(value, str):
            told = told or (within and is_random(value))
            if told and len(value) >= 4 and value.lower() not in _WORDS:
                self._remember(value)
                self.count += 1
                return MASK
            return self(value)
        within = within or told
        if isinstance(value, dict):
            pairs = [(_clean(str(key)), inner) for key, inner in value.items()]
            label = next((str(one) for key, one in pairs if key.lower() in ("name", "key")), "")
            return {
                self(key): self.tree(inner, label if key.lower() == "value" else key, within=within)
                for key, inner in pairs
            }
        if isinstance(value, list):
            options = [str(one) if str(one).startswith("--") else name for one in ["", *value]]
            return [self.tree(*pair, within=within) for pair in zip(value, options, strict=False)]
        return value

    def _plain(self, text: str) -> str:
        text = self._mask(text, self._remember)
        return _WRAPPED.sub(self._hide_line, text) if MASK in text else text

    def _hide_line(self, match: re.Match[str]) -> str:
        self._remember(match["v"])
        return match[0].replace(match["v"], MASK)

    def _find(self, text: str) -> Iterator[Span]:
        """Where bold shapes are, and values behind a secret's name."""
        yield from find_secrets(text, bold=True)
        low = lower_in_place(text)
        for part in _NAME_PARTS:
            at = low.find(part)
            while at >= 0:
                if (match := _ASSIGNED.match(text, at)) and self._tells_secret(match):
                    yield match.span("bare" if match["quoted"] is None else "quoted")
                elif (match := _NEXT.match(text, at)) and is_random(match["v"]):
                    for span in _find_drawn(match):
                        yield span
                        at = span[1] - len(part)
                at = low.find(part, at + len(part))

    def _tells_secret(self, match: re.Match[str]) -> bool:
        name = _name_of(match)
        value = match["quoted"] or match["bare"]
        if not grade_name(name) or not value.strip("*."):
            return False
        if name in ("PWD", "OLDPWD") and value.startswith("/"):
            return False  # the shell's folder; remembered it would mask every path
        if value.lower() in _WORDS | PLACEHOLDERS or (value.isdigit() and len(value) <= 6):
            return False  # `max_tokens: 4096`
        if match["quoted"] or match["close"] or name.isupper() or any(map(str.isdigit, value)):
            return True
        # Code, mostly: `token = other.token`. In YAML the name stands alone before a colon.
        line = match.string[: match.start()].rpartition("\n")[2]
        return ":" in match[0] and not line.removesuffix(name[: -len(match["rest"])]).strip(" \t-")

    def _remember(self, value: str) -> None:
        """A word or a number is not looked for elsewhere: ordinary text holds it too."""
        for part in _parts(value):
            mixed = sum(bool(re.search(one, part)) for one in ("[a-z]", "[A-Z]", r"\d", r"[\W_]"))
            if len(part) >= SHORTEST and MASK not in part and mixed >= 2:
                self.found.add(part)

    def _encoded(self, text: str, depth: int = 2) -> str:
        """Runs that say a secret once they are decoded."""

        def hide(decode: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
            def replace(match: re.Match[str]) -> str:
                if len(match[0]) >= _BLOB and decode is _from_base64:
                    return self._leave_out(match)
                said = decode(match[0])
                if not said or said == match[0]:
                    return match[0]
                clear = self._plain(said)
                clear = self._encoded(clear, depth - 1) if depth > 1 else clear
                return match[0] if clear == said else MASK

            return replace

        if _LONG_LINE.search(text):
            text = _BLOCK.sub(self._leave_out, text)
        text = _RUN.sub(hide(_from_base64), text)
        return _ESCAPED.sub(hide(_from_url), text) if _ESCAPE.search(text) else text

    def _leave_out(self, match: re.Match[str]) -> str:
        self.binary += 1
        return "[binary content left out]"


def _clean(text: str) -> str:
    """Without half surrogate pairs, and without what nobody sees within a name or a key."""
    return text if text.isascii() else _UNSEEN_WITHIN.sub("", fix_surrogates(text))


def _name_of(match: re.Match[str]) -> str:
    before = _BEFORE.search(match.string, max(0, match.start() - 40), match.start())
    return (before[0] if before else "") + match["rest"]


def _find_drawn(found: re.Match[str] | None) -> Iterator[tuple[int, int]]:
    """What looks drawn by chance right behind a secret's name, and all of its kind after it."""
    if found and grade_name(_name_of(found)):
        while found and is_random(found["v"]) and _APART.search(found["v"]):
            yield found.span("v")
            found = _NEXT.match(found.string, found.end())


def _parts(value: str) -> Iterator[str]:
    """A value, and what of it may be the secret alone: `V # note`, `bob:V`, `a=b; Password=V`."""
    value = _SCHEME.sub("", value.strip(), count=1)
    if is_random(value) or not _is_harmless(value):
        yield value
    for number, piece in enumerate(re.split(r"[\s;,&]+", value)):
        for said in {piece, unquote(piece), _from_base64(piece)}:
            name, _, behind = said.partition("=")
            user, _, password = said.partition(":")
            first, named = number == 0, grade_name(name[-80:]) != ""
            ways = ((said, first), (password, first and "/" not in user), (behind, named))
            for part, likely in ways:
                part = part.strip("\"'`")
                if is_random(part) or (likely and not _CODE.match(part) and not _is_harmless(part)):
                    yield part


def _is_harmless(value: str) -> bool:
    """Whether it is a path, or a name of code: to mask it would maim what else is shown."""
    if _PATH.fullmatch(value):
        return True
    return bool(_CODE_NAME.fullmatch(value)) and grade_name(value.rstrip(",;)")) != ""


def _forms(value: str) -> set[str]:
    """A value as it is, in hex, and in base64 wherever in what was encoded it began."""
    raw, found = value.encode("utf-8", "replace"), {value}
    if len(raw) < SHORTEST:
        return found
    found |= {raw.hex(), raw.hex().upper()}
    for before in range(3):  # its first and last letter may hold bits of the neighbours
        size = 8 * (before + len(raw))
        run = b64encode(b"\0" * before + raw).decode()[-(-8 * before // 6) : size // 6]
        found |= {run, run.replace("+", "-").replace("/", "_")}
    return found


def _from_url(run: str) -> str:
    return unquote(run) if "%" in run else ""


def _from_base64(run: str) -> str:
    """The text that a run of base64 stands for; "" where it is none."""
    if run.islower() or run.isupper():  # a name, as most such runs are
        return ""
    bare = run.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        text = b64decode(bare + "=" * (-len(bare) % 4), validate=True).decode()
    except ValueError:
        return ""
    return text if text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable() else ""
