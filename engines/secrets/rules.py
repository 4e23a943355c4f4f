"""The rules by which a secret is known: its shape, the name before it, and how random it looks.

One table for the mask of a run, the redactor of sessions and the settings of a run file. Rows that
are `bold` may take a harmless word, too: only sessions, which still teach without it, use them.

No library's shapes are used. Of the 17 shapes of keys in our tests detect-secrets (1.5.0, of 2024)
and its maintained fork bc-detect-secrets (1.5.52) know 5, of the 36 lines of sessions 9; they take
115 ms to import, need requests, and read files and lines, not pieces of a stream (November 2026).
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

from engines.core.frozen import frozen

Span = tuple[int, int]

RUN = r"[A-Za-z0-9_.~+/=-]"
GAP = r"(?:\s|\\{1,4}[nrt]){0,40}+"
"""Blanks and new lines, also those of JSON that was printed for people."""
START = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4}))"
"""No letter or digit before, or the end of an escape of JSON: `\\nsk-…` is a new line."""


def _random_pattern(least: int) -> str:
    """A run of characters that holds a digit near its start: words of a language do not.

    All that is searched ahead is bounded, and nothing is tried twice (the run is
    possessive): a model's text must not cost quadratic time.
    """
    return rf"(?=[A-Za-z_.~+/=-]{{0,80}}+\d){RUN}{{{least},}}+"


_LETTERS = r"(?=[a-z]{0,200}[A-Z])(?=[A-Z]{0,200}[a-z])[A-Za-z]{30,}+(?![A-Za-z0-9_-])"
"""So many letters in mixed case are no word, even without a digit."""


@frozen
class Shape:
    """What a secret contains in small letters (`hints`), and the pattern of it.

    The pattern is tried where a hint stands, unless `anywhere`. The whole match is the secret, or
    its group `run`, or its group `drawn` if that looks drawn by chance.
    """

    hints: tuple[str, ...]
    pattern: str
    anywhere: bool = False
    bold: bool = False


_KEYS = (
    ("sk- pk- rk-", "", rf"(?:{_random_pattern(16)}|{_LETTERS})"),
    ("sk_ pk_ rk_", "[spr]k_(?:live|test|prod)_", _random_pattern(10)),
    ("gsk_ hf_ ghp_ gho_ ghs_ ghu_ ghr_", "", rf"(?:{_random_pattern(16)}|{_LETTERS})"),
    ("r8_ npm_ github_pat_", "", rf"(?:{_random_pattern(16)}|{_LETTERS})"),
    ("glpat- nvapi- pplx- tvly- xai-", "", _random_pattern(10)),
    ("xox xapp-", "(?:xox[a-z]|xapp)-", _random_pattern(10)),
    ("jina_ fw_ whsec_ lin_api_ figd_ shpat_ sntrys_ dckr_pat_", "", _random_pattern(16)),
    ("pypi- GOCSPX- NRAK- ", "", _random_pattern(20)),
    ("dp.", r"dp\.[a-z]{2,5}\.", _random_pattern(20)),
    ("dop_v1_ doo_v1_ dor_v1_", "", r"[0-9a-f]{32,}+"),
    ("SG.", "", rf"[A-Za-z0-9_-]{{16,}}+\.{_random_pattern(16)}"),
    ("ya29. hvs.", "", _random_pattern(20)),
    ("AGE-SECRET-KEY-1", "", r"[0-9A-Z]{16,}+"),
    ("AKIA ASIA", "", r"[0-9A-Z]{16}"),
    ("AIza", "", r"[0-9A-Za-z_-]{30,}+"),
    ("dapi", "", r"[0-9a-f]{32}(?![0-9a-f])"),
)
"""What keys of a service begin with, the pattern of that where it is another, and what follows."""
PREFIXES = ("eyj", *(prefix.lower() for row in _KEYS for prefix in row[0].split()))
NAMES = ("key", "token", "secret", "password", "passwd", "authorization", "signature", "cookie")
_TO = rf"(?:\\*[\"'])?(?:{GAP}[:=]|\s(?:is|provided:)){GAP}(?:\\*[\"'])?"


def _key_shape(prefixes: str, begins: str, rest: str) -> Shape:
    begins = begins or "|".join(map(re.escape, prefixes.split()))
    return Shape(tuple(prefixes.lower().split()), rf"{START}(?:{begins}){rest}")


def _bold(hints: str, pattern: str) -> Shape:
    return Shape(tuple(hints.split()), pattern, anywhere=True, bold=True)


SHAPES = (
    *(_key_shape(*row) for row in _KEYS),
    Shape(
        ("eyj",),
        rf"{START}(?<![_-])eyJ[A-Za-z0-9_-]{{10,2000}}+\.eyJ[A-Za-z0-9_-]{{10,4000}}+"
        r"\.[A-Za-z0-9_-]{8,}+",
    ),
    Shape(
        ("bearer", "basic"),
        rf"(?i)(?:bearer|basic)(?::?[ \t]{{1,8}}+|:)(?P<drawn>{_random_pattern(12)})",
    ),
    Shape(
        ("-----begin ",),
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:(?!-----)[\s\S]){0,9000}?-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:[A-Za-z0-9+/=\s]|\\[nr])*+)",
    ),
    Shape(
        ("://",),
        r"(?<=[A-Za-z])://(?:(?P<run>[^\s/@:\"'\\]{0,100}:[^\s/@\"'\\]{1,200})(?=@)"
        r"|(?P<drawn>[A-Za-z0-9_.~%+=-]{12,200}+)(?=@))",
    ),
    Shape(NAMES, rf"(?i)(?:{'|'.join(NAMES)}){_TO}(?P<behind_name>{_random_pattern(16)})(?!\()"),
    # Half hidden, as endpoints quote a key that they refuse: `sk-ab***yz`.
    Shape(("**",), r"\b[sp]k-(?P<run>[\w.-]{0,40}\*{2,}[\w*.-]{0,80})", anywhere=True),
    _bold("hooks.slack /webhooks/", r"(?:hooks\.slack\.com/\w+|/webhooks)/(?P<run>[\w/-]{12,})"),
    _bold("key- :aa 1//0", r"\b(?:key-[0-9a-f]{32}|\d{8,10}:AA[\w-]{30,}|1//0[\w-]{20,})"),
    _bold("gldt- glrt- glptt- glsoat-", r"(?i)\bgl[a-z]{2,4}-[\w+/=-]{16,}"),  # GitLab
    _bold("eyj", r"\beyJ[\w-]{10,}\.[\w-]{6,}(?:\.[\w-]*){0,3}"),
    _bold(
        "://",
        r"(?<=://)(?P<run>[^\s/\"'<>@:]{0,100}:(?!\d{1,5}/)[^\s\"'<>]{1,300}"
        r"|[^\s/\"'<>@]{0,200}\d[^\s/\"'<>@]{0,200})(?=@)",
    ),
    _bold(
        "sig key token code= secret",
        r"(?i)[?&](?:sig|x-amz-[a-z-]{1,30}|[a-z_-]{0,20}(?:key|token|signature|code|secret))="
        r"(?P<run>[^&\s\"'<>]{8,})",
    ),
    _bold(
        "authorization api-key apikey cookie -token",
        r"(?i)(?:authorization|x?-?api-?key|(?:set-)?cookie|x-[a-z-]{0,30}token)\\*[\"']?"
        r"\s{0,3}[:=]\s{0,3}\\*[\"']?(?P<run>[^\"'\n\r\\]{4,})",
    ),
    _bold(
        "curl wget http", r"(?:-u|--user)[ =]{1,3}[\"']?(?P<run>[^\s\"':]{1,60}:[^\s\"']{1,200})"
    ),
    _bold("sshpass mysql", r"\b(?:sshpass|mysql\w{0,10})\b[^\n|;]{0,200}?\s-p ?(?P<run>[^\s]{4,})"),
    _bold(
        "key token secret pass pwd auth cred dsn cookie",  # of .env files
        r"(?m)^[ \t]*(?:\d{1,6}[→\t:|] ?)?(?:(?:export|set|ENV|ARG)[ \t]{1,3})?"
        r"(?!OLDPWD=/)[A-Z][A-Z0-9_]{0,60}?(?:KEY|TOKEN|SECRET|PASS|PWD|AUTH|CRED|DSN|COOKIE)"
        r"[A-Z0-9_]{0,30}=[\"']?(?P<run>(?!\d{1,6}$)[^\s\"'$(<][^\n\"']{3,400})",
    ),
    _bold("password", r"(?i)\blogin\s{1,9}\S{1,80}\s{1,9}password\s{1,9}(?P<run>\S{4,})"),
    _bold(
        "--",
        r"(?i)--[a-z-]{0,30}(?:password|passwd|token|secret|api-?key|access-?key)[ =]{1,3}[\"']?"
        r"(?P<run>[^\s\"'$<-][^\s\"']{3,})",
    ),
    # Discord: digits in base64, first. A search for a letter takes a quarter of one for a `\b`.
    _bold(".", r"[MNO](?<!\w.)[\w-]{22,27}\.[\w-]{6,7}\.[\w-]{27,45}"),
    _bold("pin=", r"\b(?:[A-Z0-9]{1,20}_){0,4}PIN=[\"']?(?P<run>\d{4,12})\b"),
    _bold(
        "password passphrase passcode passwort",
        r"(?i)\bpass(?:word|phrase|code|wort)\b(?: \w{1,20}){0,2}? (?:is|was|to|ist|auf):? [\"'`]?"
        r"(?P<run>(?=\S{0,60}\d)[^\s\"'`<>,;]{5,100}[^\s\"'`<>,;.!?)])",
    ),
    _bold(
        "path= home= shlvl=",  # what env, printenv and set print: a name that tells is enough
        r"(?im)^[ \t]{0,20}(?:export |declare -x )?(?!(?:OLD)?PWD=/)(?=[^=\n]{0,60}?"
        r"(?:key|token|secret|pass|pwd|auth|cred|dsn|cookie|salt|webhook|(?:^|_)(?:pin|pw|pat)[_=]))"
        r"\w{1,80}=[\"']?(?P<run>[^\n\"']{1,4000})",
    ),
)
_HINTED = tuple((hint, shape) for shape in SHAPES for hint in shape.hints)
_SURE = tuple(row for row in _HINTED if not row[1].bold)
_BOLD = tuple(row for row in _HINTED if row[1].bold)
HINTS = frozenset(hint for hint, _ in _SURE)
_NUMBERS = re.compile(r"\[[-\d.,e]*+\]")
"""A list of token ids or log-probabilities, in which no hint can stand: most of a record."""


def find_secrets(text: str, *, bold: bool = False) -> Iterator[Span]:
    """Yield where the shapes that are bold, or those that are not, stand; spans may overlap."""
    low = lower_in_place(text)
    words = _NUMBERS.sub("", low)
    searched: set[str] = set()
    for hint, shape in _BOLD if bold else _SURE:
        if hint not in words or shape.pattern in searched:
            continue
        pattern = compile_pattern(shape.pattern)
        if shape.anywhere:
            searched.add(shape.pattern)
            yield from map(_secret_span, pattern.finditer(text))
        else:
            yield from _find_at_hint(text, low, hint, pattern)


def _find_at_hint(text: str, low: str, hint: str, pattern: re.Pattern[str]) -> Iterator[Span]:
    at = low.find(hint)
    while at >= 0:
        match = pattern.match(text, at)
        if match is not None and _is_plausible(match):
            yield _secret_span(match)
            at = low.find(hint, match.end())
        else:
            at = low.find(hint, at + 1)


def lower_in_place(text: str) -> str:
    """The text in small letters, each where it stood: some grow when they are made small."""
    low = text.lower()
    if len(low) == len(text):
        return low
    return "".join(small if len(small := char.lower()) == 1 else char for char in text)


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiled when first needed: all of them cost 5 ms, and most texts need none."""
    return re.compile(pattern)


def _secret_span(match: re.Match[str]) -> Span:
    """Where a secret stands; the full stop after it belongs to the sentence."""
    start, stop = match.span(match.lastgroup or 0)
    while match.string[stop - 1] == ".":
        stop -= 1
    return start, stop


def _is_plausible(match: re.Match[str]) -> bool:
    """True unless it could as well be a word or a sum."""
    match match.lastgroup:
        case "behind_name":
            return is_random(match["behind_name"])
        case "drawn":
            pieces = re.split(r"[_.~+/=%-]", match["drawn"][:500])
            return any(len(piece) >= 8 and _mixes_letters_and_digits(piece) for piece in pieces)
    return True


_LETTER_AFTER_DIGIT = re.compile(r"\d[A-Za-z]")
_HEX = re.compile(r"[0-9a-fA-F-]{32,}|0[xX][0-9a-fA-F]{40,}")
_NUMBER = re.compile(r"0[xXbBoO][0-9a-fA-F_]+")
_BASE64 = re.compile(r"[A-Za-z0-9/+]{40}")


def is_random(run: str, shortest_piece: int = 10) -> bool:
    """Whether a value is drawn by chance, and not an expression, a number or a file's name."""
    if _HEX.fullmatch(run):
        return any(char.isalpha() for char in run)
    if _NUMBER.fullmatch(run):
        return False
    if _BASE64.fullmatch(run) and run.lower() != run and run.upper() != run:
        return any(char.isdigit() for char in run)
    pieces = re.split(r"[_.~+/=-]", run[:500])
    return any(len(p) >= shortest_piece and _LETTER_AFTER_DIGIT.search(p) for p in pieces)


def looks_random(value: str) -> bool:
    """Whether a value is no word and no number: letters with digits, or long in mixed case."""
    if _mixes_letters_and_digits(value):
        return len(value) >= 8
    return len(value) >= 20 and value.lower() != value and value.upper() != value


def _mixes_letters_and_digits(value: str) -> bool:
    return any(map(str.isalpha, value)) and any(map(str.isdigit, value))


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = words(
    "secret secrets password passwords passwd passwds pwd pw passphrase passphrases jwt bearer "
    "authorization auth cookie cookies credential credentials cred creds dsn apikey apikeys "
    "jsessionid"
)
"""The last word of a name that is a secret's, whatever stands before it."""
_USUAL_WORDS = words("key keys token tokens pass pat")
"""The same alone; behind another word they mostly mean something else: `image_token`."""
_SECRET_ENDS = (
    *("password", "passwd", "passphrase", "secret", "token", "tokens", "cookie", "credentials"),
    *("apikey", "connstr", "connectionstring", "databaseurl"),
)
"""What a name may end with in one word: `PGPASSWORD`."""
_FORMS = words("id base base64 b64 value hash")
"""What may stand behind the word: `secret_key_base`."""
_KEY_OF = words(
    "api access secret private account auth client encryption license master service session "
    "signing subscription"
)
_TOKENS_OF = words("access api auth bearer id refresh secret session")
_TEXT_TOKENS = words("bos eos pad sep unk cls mask stop special")
"""What stands before `token` where it is a piece of text: `eos_token`."""

Grade = Literal["sure", "likely", "perhaps", "bold", ""]
"""How far a name tells that what it names is secret; `bold`: enough in a session's text, where the
value speaks for it too, and not in settings."""


@lru_cache(maxsize=4096)  # one name stands in each entry of a long list
def grade_name(name: str) -> Grade:
    """Grade a name by its last word, in whatever case it is written.

    `max_tokens`, `stop_token_ids` and `prompt_cache_key` are usual fields of a request.
    """
    *before, last = [word.lower() for word in _WORD.findall(name)] or [""]
    of = before[-1] if before else ""
    if last in _SECRET_WORDS:
        return "sure"
    if last in _USUAL_WORDS:
        if of in (_KEY_OF if last in ("key", "keys") else _TOKENS_OF):
            return "sure"
        if not before:
            return "likely"
        unusual = last in ("keys", "tokens", "key") or of in _TEXT_TOKENS
        return "bold" if unusual else "perhaps"
    if (of + last).endswith(_SECRET_ENDS):
        return "bold"
    if before and (last in _FORMS or last.isdigit()) and grade_name("_".join(before)):
        return "bold"
    return ""
