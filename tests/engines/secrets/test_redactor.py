"""What leaves a session once secrets are out of it."""

from __future__ import annotations

import json
import random
import re
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from string import ascii_letters, digits
from urllib.parse import quote

import pytest

from engines.secrets.redactor import Redactor

HIDDEN = {
    "AWS id": ("aws configure AKIAQ3EGRVLZK7PMTN2B", "AKIAQ3EGRVLZK7PMTN2B"),
    "AWS key": (
        "aws_secret_access_key = tR9/xW2mK+vB7nQ1zL5dF8hJ3gP6sC0aYuE4oIwT",
        "tR9/xW2mK+vB7nQ1z",
    ),
    "GitHub": (
        "git clone https://x@h ghp_a8Kd93nfLq0Zx7Yw2Vb5Tc1Re6Ui4Op9Ms3",
        "a8Kd93nfLq0Zx7Yw2Vb5",
    ),
    "Slack": ("xoxb-2938475610-hG7kLm29sQ", "2938475610-hG7kLm29sQ"),
    "Slack hook": ("https://hooks.slack.com/services/T02AB/B03CD/kQ9mZx7Lp2", "kQ9mZx7Lp2"),
    "JWT": ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0.dBjftJeZ4CVP", "dBjftJeZ4CVP"),
    "unsigned JWT": ("eyJhbGciOiJub25lIn0.eyJzdWIiOiI3In0.", "eyJzdWIiOiI3In0"),
    "private key": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7b\n-----END RSA PRIVATE KEY-----",
        "MIIEpAIBAAKCAQEA7b",
    ),
    "basic auth": ("curl https://bob:s3cr/t@h.example/x", "s3cr"),
    "password with @": ("postgresql://bob:p@ss7w@db:5432/x", "ss7w"),
    "user option": ("curl -u bob:hunter2 https://h", "hunter2"),
    "header": ("Authorization: Token 99ab-cdef", "99ab-cdef"),
    "key header": ("-H 'x-api-key: abcdefgh'", "abcdefgh"),
    "cookie": ("Cookie: sid=onlyletters; theme=dark", "onlyletters"),
    ".env": ("DB_PASSWORD=correct&horse$battery", "horse"),
    ".env, numbered": ("    12→export API_TOKEN='two words'", "two words"),
    "Google": ("AIzaSyD4k8Fq2Lw9Zr6Xm1Nv7Bp3Tc5Yh0Ue8Ij", "SyD4k8Fq2Lw9Zr6Xm1"),
    "connection string": ("Server=db;User Id=sa;Password=hunter2!;Encrypt=yes", "hunter2"),
    "account key": ("AccountName=a;AccountKey=zq83JKd0aLm27hPx==;", "zq83JKd0aLm27hPx"),
    "query": ("https://h/x?api_key=abcdefghij&v=1", "abcdefghij"),
    "YAML": ("db:\n  password: onlyletters\n", "onlyletters"),
    "quoted": ('config = {"clientSecret": "onlyletters"}', "onlyletters"),
    "JSON in JSON": ('{\\"password\\": \\"onlyletters\\"}', "onlyletters"),
    "option": ("deploy --auth-token onlyletters --now", "onlyletters"),
    "mysql": ("mysql -h db -u root -phunter2", "hunter2"),
    "netrc": ("machine h login bob password onlyletters", "onlyletters"),
    "telegram": ("bot 123456789:AAH7k2LmN9pQrStUvWxYz0123456789abcd", "AAH7k2LmN9pQ"),
    "OpenAI": ("sk-proj-k29fJ3nd8Ls0xQ7v", "k29fJ3nd8Ls0xQ7v"),
    "Discord": (
        "bot MTE5ODYyMjQ4MzQ3MTkyNTI0OA.Gk3xPq.hX7bQw2Zt9Lr5Vn8Kc4Jd6Mf1Sg3Yp0Ru7Ta2Eo",
        "hX7bQw2Zt9Lr5Vn8Kc4Jd6",
    ),
    "Doppler": ("dp.pt.Qw7Er5Ty3Ui1Op9As8Df6Gh4Jk2Lz0Xc", "Qw7Er5Ty3Ui1Op9As8"),
    "PIN": ("CARD_PIN=4711", "4711"),
    "told": ("my new password is Sonnenschein77.", "Sonnenschein77"),
    "told, set": ("set the password of bob to Sommer2024!", "Sommer2024"),
    "output of env": ("PATH=/bin\nAPI_KEY=4711\nLANG=C", "4711"),
    "output of set": ("HOME=/root\ndb_pw='a b'", "a b"),
    "Stripe": ("sk_live_51Hk29fJ3nd8Ls", "51Hk29fJ3nd8Ls"),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_a_secret_is_hidden_also_where_it_is_encoded(kind: str) -> None:
    text, secret = HIDDEN[kind]
    assert secret in text
    redact = Redactor()
    assert secret not in redact(f"before\n{text}\nafter") and redact.count
    for encoded in (b64encode(text.encode()).decode(), quote(text, safe="")):
        assert encoded not in redact(f"payload {encoded} end"), encoded


def test_a_value_that_a_name_told_is_hidden_wherever_else_it_stands() -> None:
    first = Redactor()
    first("export DB_PASSWORD=correct-horse9")
    first.tree({"headers": {"X-Api-Key": "staple-7"}})
    final = first.knowing_all()
    assert final("psql with correct-horse9 and staple-7") == "psql with *** and ***"
    assert "horse9" not in final(b64encode(b"it is correct-horse9").decode())


NAMED = {
    "command": "API_TOKEN={} python run.py",
    "command, small": "cd app && PGPASSWORD={} psql -h x",
    "exported": "export API_TOKEN={} # of the test account",
    "several": "API_TOKEN={}; echo done",
    "option": "--token={}, --verbose",
    "url": "DATABASE_URL=postgres://bob:{}@db/x",
    "url, bare": "postgres://bob:{}@db/x",
    "url, no user": "redis://:{}@h",
    "url, escaped": "https://u%40x:{}@h/",
    "user": "curl -u bob:{} https://x",
    "token header": "Authorization: token {}",
    "key header": "Authorization: ApiKey {}",
    "cookie": "Cookie: theme=dark; sid={}; a=b",
    "connection": "DB_DSN=Server=x;Password={};",
    "bearer": "sent Bearer {} to it",
    "told": "the api key is {}",
    "colon": "token: {}",
    "plain key": "my-key={}",
    "JSON pair": '{{"name":"API_TOKEN","value":"{}"}}',
    "JSON in JSON": '{{\\"name\\": \\"API_TOKEN\\", \\"value\\": \\"{}\\"}}',
    "YAML pair": "env:\n- name: API_TOKEN\n  value: {}\n",
    "arguments": '["--password", "{}"]',
    "map": '{{"tokens": {{"prod": "{}"}}}}',
    "list": '{{"secrets": ["{}"]}}',
    "tag": "<password>{}</password>",
    "attribute": '<add key="ApiKey" value="{}"/>',
    "continued line": "export API_KEY=\\\n  {}",
    "YAML block": "api_key: |\n  {}\n",
    "YAML folded": "api_key: >-\n  {}\n",
    "setx": "setx TOKEN {}",
    "setenv": "setenv API_KEY {}",
    "fish": "set -x API_KEY {}",
    "aws": "aws configure set aws_secret_access_key {}",
    "git": "git config x.token {}",
    "table": "| name | value |\n| token | {} |",
    "wrapped": "ghp_a8Kd93nfLq0Zx7Yw2Vb5\n{}\nend",
    "zero width": "API_KEY\u200b={}",
    "soft hyphen": "ghp_\u00ad{}",
    "index": 'os.environ["API_KEY"] = "{}"',
    "default": "os.environ.setdefault('API_KEY', '{}')",
    "f-string": 'api_key=f"{}"',
    "Rails": "secret_key_base: {}",
    "short name": "pw={}",
    "session": "JSESSIONID={}",
    "blank": "PASSWORD {}",
    "told of the past": "the password was {}",
}
"""Where a value that looks drawn by chance stands behind a name."""
TREES: dict[str, Callable[[str], object]] = {
    "pair": lambda value: {"env": [{"name": "API_TOKEN", "value": value}]},
    "pair, turned": lambda value: {"value": value, "key": "API_TOKEN"},
    "argument": lambda value: {"args": ["run", "--password", value, "--now"]},
    "map": lambda value: {"tokens": {"prod": value}},
    "map in a map": lambda value: {"secrets": {"prod": [{"db": value}]}},
    "list": lambda value: {"secrets": [value]},
    "unseen": lambda value: {"to\u200bken": value},
}


def a_drawn_value(seed: str, size: int = 24) -> str:
    chance = random.Random(seed)
    while True:
        value = "".join(chance.choices(ascii_letters + digits, k=size))
        if re.search(r"\d[A-Za-z]+\d", value):  # one without a digit may be a name
            return value


def later_forms(value: str) -> list[str]:
    raw = value.encode()
    spelled = f"%{raw[0]:02X}{value[1:]}"
    hidden = [b64encode(before + raw + b" y").decode() for before in (b"", b"a ", b"ab ")]
    return [value, raw.hex(), raw.hex().upper(), *hidden, spelled]


def leaks_later(redact: Redactor, value: str) -> list[str]:
    final = redact.knowing_all()
    forms = later_forms(value)
    said = [final(f"calling https://x.y/{form}/items, it used {form}.") for form in forms]
    return [form for form, text in zip(forms, said, strict=True) if form in text or value in text]


@pytest.mark.parametrize("form", NAMED)
def test_a_value_behind_a_name_is_hidden_at_once_and_wherever_it_stands_later(form: str) -> None:
    for number in range(8):
        value, redact = a_drawn_value(f"{form} {number}"), Redactor()
        text = NAMED[form].format(value)
        for said in (text, f"before\n{text}\nafter"):
            assert value not in redact(said) and redact.count, said
        held = f"ghp_{value}" if form == "soft hyphen" else value
        assert leaks_later(redact, held) == [], text


@pytest.mark.parametrize("form", TREES)
def test_a_value_behind_a_name_of_json_is_hidden_at_once_and_later(form: str) -> None:
    for number in range(8):
        value, redact = a_drawn_value(f"{form} {number}"), Redactor()
        assert value not in json.dumps(redact.tree(TREES[form](value)))
        assert leaks_later(redact, value) == []


def test_what_a_basic_header_says_is_hidden_wherever_it_stands_later() -> None:
    value, redact = a_drawn_value("basic"), Redactor()
    said = b64encode(f"bob:{value}".encode()).decode()
    assert said not in redact(f"Authorization: Basic {said}")
    assert leaks_later(redact, value) == []


@pytest.mark.parametrize(
    ("said", "later"),
    [
        ("Authorization: Token correct-horse", "correct-horse"),  # no chance speaks for it
        ("PGPASSWORD=correct%40horse-9", "correct@horse-9"),
    ],
)
def test_a_value_is_hidden_later_without_its_scheme_and_decoded(said: str, later: str) -> None:
    redact = Redactor()
    redact(said)
    assert later not in redact.knowing_all()(f"log in with {later} now")


@pytest.mark.parametrize("size", [300, 3000])
def test_all_of_a_list_behind_a_name_are_hidden_in_linear_time(size: int) -> None:
    values = [a_drawn_value(str(number)) for number in range(size)]
    for text in (json.dumps({"tokens": values}), "".join(f"| token | {v} |\n" for v in values)):
        redact, began = Redactor(), time.process_time()
        said = redact(text)
        assert not any(value in said for value in values)
        assert time.process_time() - began < size / 300


def test_what_stands_beside_a_value_is_not_hidden_elsewhere() -> None:
    redact = Redactor()
    redact("export API_TOKEN=q7Rk2Vx9Lm4T python run.py\nMY_KEY_FILE=/usr/lib/x:/usr/local/bin\n")
    redact("AUTH_URL=http://localhost:8080/x\nCookie: theme=dark-mode; sid=q7Rk2Vx9Lm4T\n")
    redact('{"total_tokens": usage.total_tokens, "api_key": self.api_key, "token": "a/b/c.txt"}')
    text = (
        "python run.py; /usr/lib/x; /usr/local/bin; localhost:8080/x; dark-mode; usage.total_tokens"
    )
    assert redact.knowing_all()(text) == text


@pytest.mark.parametrize("before", [b"", b"a", b"ab", b"abc", b"\xff\xfe\x00\x01"])
def test_a_value_is_hidden_in_hex_and_base64_among_whatever_bytes(before: bytes) -> None:
    first = Redactor()
    first("DB_PASSWORD=hunter2secret")
    final, raw = first.knowing_all(), before + b"hunter2secret" + b"\xf0z"
    for said in (raw.hex(), raw.hex().upper()):
        assert b"hunter2secret".hex() not in final(f"x {said}").lower()
    for said in (b64encode(raw), urlsafe_b64encode(raw), b64encode(b"hunter2secret")):
        assert "***" in final(f"x {said.decode()} y")
    assert final("at %68unter2secret%21 there") == "at *** there"


def test_the_folder_that_env_prints_is_no_password() -> None:
    redact, said = Redactor(), "HOME=/home/a\nPWD=/home/a/app\nOLDPWD=/home/a/b\nSHLVL=1"
    assert redact(said) == said and not redact.found


@pytest.mark.parametrize(
    "text",
    [
        "def token(self, key: str) -> Token: return self.tokens[key]",
        "token = other.token",
        "max_tokens: 4096 and eos_token",
        "password = getpass()",
        "api_key = os.environ['KEY']",
        "API_KEY=$API_KEY run",
        "the key to this: read it",
        "the password is required, and the password is 12 characters long",
        "PINNED=4711 OPIN=12 see a.b.c",
        "git@github.com:ann/app.git and ssh://git@github.com/ann/app",
        "sha 3f786850e387550fdaba2e5a1d6f0b9a6e0c3a1b",
        "/home/ann/app/src/components/Button.tsx",
        "pass: 3, fail: 0",
        "100% of it, a%20b",
        "<class 'str'> x = 'key'",
        "key(base64decode(x)) and Token Http2Connection, token Utf8Decoder",
        'job["api_key"] = other.value\napi_key=f"{name}.key"',
        "if token > 3 and secret-> x</b> <th>Password</th>",
        "\U0001f468\u200d\U0001f469 tokens:\n  one: two",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor()(text) == text


def test_names_and_values_of_json_are_redacted() -> None:
    redact = Redactor()
    given = {
        "env": {"DB_PASS": "letters", "n": 3, "on": True},
        "ghp_a8Kd93nfLq0Zx7Yw2Vb5Tc1": ["x"],
    }
    assert redact.tree(given) == {"env": {"DB_PASS": "***", "n": 3, "on": True}, "***": ["x"]}


def test_binary_content_is_left_out_and_counted() -> None:
    redact = Redactor()
    block = "\n".join(["QUJD" * 19] * 5)
    assert redact(f"a {'A1b2' * 400} b\n{block}\nc") == (
        "a [binary content left out] b\n[binary content left out]\nc"
    )
    assert redact.binary == 2


def test_home_folders_and_addresses_go_where_that_is_asked_for() -> None:
    text = "/home/ann/x and C:\\Users\\Ann\\y by ann@example.org"
    assert Redactor()(text) == text
    redact = Redactor(anonymous=True)
    assert redact(text) == "~/x and ~\\y by ***"
    assert (redact.count, redact.private) == (0, 3)
