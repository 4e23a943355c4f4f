r"""Secrets and other private things, taken out of sessions before anything of them is written.

Bolder than the mask of a run: a trajectory may lose a harmless word, and still teach. A value is
masked for its shape, for the name before it (`DB_PASSWORD=…`, `"token": "…"`, `-u user:…`), for
what it is once decoded, and, where it can be told from a word, wherever else it stands. Behind a
name without a sign (`setx TOKEN …`, `<token>…`) only what looks drawn by chance is masked.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from engines.core.codec import fix_surrogates
from engines.core.text.masking import MASK, PLACEHOLDERS, SHORTEST, Mask, hide_spans, is_random

_SHAPES = (
    ("xox xapp-", r"\bx(?:ox[a-z]|app)-[\w-]{10,}"),
    ("hooks.slack /webhooks/", r"(?:hooks\.slack\.com/\w+|/webhooks)/(?P<v>[\w/-]{12,})"),
    (
        "whsec_ pypi- lin_api_ figd_ shpat_ sntrys_ dckr_pat_ gocspx- gldt- glrt- glptt- glsoat-",
        r"(?i)\b(?:whsec_|pypi-|lin_api_|figd_|shpat_|sntrys_|dckr_pat_|gocspx-|gl[a-z]{2,4}-)"
        r"[\w+/=-]{16,}",
    ),
    (
        "dapi hvs. nrak- 1//0 key- :aa",
        r"\b(?:dapi[0-9a-f]{32}|hvs\.[\w-]{20,}|NRAK-\w{20,}|1//0[\w-]{20,}|key-[0-9a-f]{32}"
        r"|\d{8,10}:AA[\w-]{30,})",
    ),
    ("eyj", r"\beyJ[\w-]{10,}\.[\w-]{6,}(?:\.[\w-]*){0,3}"),
    (
        "://",
        r"(?<=://)(?P<v>[^\s/\"'<>@:]{0,100}:(?!\d{1,5}/)[^\s\"'<>]{1,300}"
        r"|[^\s/\"'<>@]{0,200}\d[^\s/\"'<>@]{0,200})(?=@)",
    ),
    (
        "sig key token code= secret",
        r"(?i)[?&](?:sig|x-amz-[a-z-]{1,30}|[a-z_-]{0,20}(?:key|token|signature|code|secret))="
        r"(?P<v>[^&\s\"'<>]{8,})",
    ),
    (
        "authorization api-key apikey cookie -token",
        r"(?i)(?:authorization|x?-?api-?key|(?:set-)?cookie|x-[a-z-]{0,30}token)\\*[\"']?"
        r"\s{0,3}[:=]\s{0,3}\\*[\"']?(?P<v>[^\"'\n\r\\]{4,})",
    ),
    ("curl wget http", r"(?:-u|--user)[ =]{1,3}[\"']?(?P<v>[^\s\"':]{1,60}:[^\s\"']{1,200})"),
    ("sshpass mysql", r"\b(?:sshpass|mysql\w{0,10})\b[^\n|;]{0,200}?\s-p ?(?P<v>[^\s]{4,})"),
    (
        "key token secret pass pwd auth cred dsn cookie",  # of .env files
        r"(?m)^[ \t]*(?:\d{1,6}[→\t:|] ?)?(?:(?:export|set|ENV|ARG)[ \t]{1,3})?"
        r"(?!OLDPWD=/)[A-Z][A-Z0-9_]{0,60}?(?:KEY|TOKEN|SECRET|PASS|PWD|AUTH|CRED|DSN|COOKIE)[A-Z0-9_]{0,30}="
        r"[\"']?(?P<v>(?!\d{1,6}$)[^\s\"'$(<][^\n\"']{3,400})",
    ),
    ("password", r"(?i)\blogin\s{1,9}\S{1,80}\s{1,9}password\s{1,9}(?P<v>\S{4,})"),
    (
        "--",
        r"(?i)--[a-z-]{0,30}(?:password|passwd|token|secret|api-?key|access-?key)[ =]{1,3}[\"']?"
        r"(?P<v>[^\s\"'$<-][^\s\"']{3,})",
    ),
    ("dp.", r"\bdp\.[a-z]{2,5}\.[\w.-]{20,}"),
    # Discord: digits in base64, first. A search for a letter takes a quarter of one for a `\b`.
    (".", r"[MNO](?<!\w.)[\w-]{22,27}\.[\w-]{6,7}\.[\w-]{27,45}"),
    ("pin=", r"\b(?:[A-Z0-9]{1,20}_){0,4}PIN=[\"']?(?P<v>\d{4,12})\b"),
    (
        "password passphrase passcode passwort",
        r"(?i)\bpass(?:word|phrase|code|wort)\b(?: \w{1,20}){0,2}? (?:is|was|to|ist|auf):? [\"'`]?"
        r"(?P<v>(?=\S{0,60}\d)[^\s\"'`<>,;]{5,100}[^\s\"'`<>,;.!?)])",
    ),
    (
        "path= home= shlvl=",  # what env, printenv and set print: a name that tells is enough
        r"(?im)^[ \t]{0,20}(?:export |declare -x )?(?!(?:OLD)?PWD=/)(?=[^=\n]{0,60}?"
        r"(?:key|token|secret|pass|pwd|auth|cred|dsn|cookie|salt|webhook|(?:^|_)(?:pin|pw|pat)[_=]))"
        r"\w{1,80}=[\"']?(?P<v>[^\n\"']{1,4000})",
    ),
)
"""What a shape contains in small letters, and its pattern; the secret is its group, if it has one.

They stand beside those of every mask (`engines.core.text.masking`)."""
_HINTED = tuple((tuple(hints.split()), re.compile(shape)) for hints, shape in _SHAPES)
_NAME = (
    r"(?:pass(?:words?|wds?|phrases?)?|pwd|secrets?|tokens?|credentials?|authorization|cookies?"
    r"|(?:api|access|account|private|signing|encryption|master|auth|client|service|[_-])_?-?keys?"
    r"|(?<=[_-])(?:auth|pat|dsn)|(?<![a-z])pw|conn(?:ection)?_?str(?:ing)?|database_url"
    r"|jsessionid)(?:_?(?:id|base|base64|b64|value|hash|\d{1,2}))?"
)
_HINTS = (
    *("pass", "pw", "secret", "token", "credential", "key", "auth", "cookie", "conn"),
    *("_pat", "dsn", "database_url", "jsessionid"),
)
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
_NO_SECRET = re.compile(  # a path, or a name of code: it would maim what else is shown
    rf"(?:~|\.{{1,2}}|[A-Za-z]:)?(?:[/\\]+[\w.@:-]+){{2,}}[/\\]?|(?i:[a-z_.]*?{_NAME})[,;)]*"
)
_CODE = re.compile(rf"//|.*[(){{}}\[\]<>$]|(?:{_NO_SECRET.pattern})\Z")
_BEFORE = re.compile(r"[\w.-]{0,40}\Z")
_SECRET_KEY = re.compile(rf"(?i).*?{_NAME}")
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
        self._mask = Mask(form for value in self._values for form in _forms(value))
        self.found: set[str] = set()
        self.count = self.binary = self.private = 0
        self._harmless: set[str] = set()  # names and ids, which come again with every call

    def knowing_all(self) -> Redactor:
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
        told = bool(_SECRET_KEY.fullmatch(name[-80:]))
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
        low = text.lower()
        for hints, shape in _HINTED:
            for hint in hints:  # a generator would cost more than what it looks for
                if hint in low:
                    text = shape.sub(self._hide, text)
                    break
        text = self._hide_named(self._mask(text, self._remember))
        return _WRAPPED.sub(self._hide, text) if MASK in text else text

    def _hide(self, match: re.Match[str]) -> str:
        value = match.groupdict().get("v") or match[0]
        self._remember(value)
        before, _, after = match[0].rpartition(value)
        return before + MASK + after

    def _hide_named(self, text: str) -> str:
        """Values behind a secret's name. The names are looked for as texts, which is faster."""
        low, spans = text.lower(), []
        if len(low) != len(text):  # some letters grow when they are made small
            low = text.encode("ascii", "replace").decode().lower()
        for hint in _HINTS:
            at = low.find(hint)
            while at >= 0:
                if (match := _ASSIGNED.match(text, at)) and self._tells_secret(match):
                    spans.append(match.span("bare" if match["quoted"] is None else "quoted"))
                elif (match := _NEXT.match(text, at)) and is_random(match["v"]):
                    spans += (drawn := [*_find_drawn(match)])
                    at = drawn[-1][1] - len(hint) if drawn else at
                at = low.find(hint, at + len(hint))
        return hide_spans(text, spans, self._remember)

    def _tells_secret(self, match: re.Match[str]) -> bool:
        name = _name_of(match)
        value = match["quoted"] or match["bare"]
        if not _SECRET_KEY.fullmatch(name) or not value.strip("*."):
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
    if found and _SECRET_KEY.fullmatch(_name_of(found)):
        while found and is_random(found["v"]) and _APART.search(found["v"]):
            yield found.span("v")
            found = _NEXT.match(found.string, found.end())


def _parts(value: str) -> Iterator[str]:
    """A value, and what of it may be the secret alone: `V # note`, `bob:V`, `a=b; Password=V`."""
    value = _SCHEME.sub("", value.strip(), count=1)
    if is_random(value) or not _NO_SECRET.fullmatch(value):
        yield value
    for number, piece in enumerate(re.split(r"[\s;,&]+", value)):
        for said in {piece, unquote(piece), _from_base64(piece)}:
            name, _, behind = said.partition("=")
            user, _, password = said.partition(":")
            first, named = number == 0, bool(_SECRET_KEY.fullmatch(name[-80:]))
            ways = ((said, first), (password, first and "/" not in user), (behind, named))
            for part, likely in ways:
                part = part.strip("\"'`")
                if is_random(part) or (likely and not _CODE.match(part)):
                    yield part


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
