"""What leaves a session once secrets are out of it."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

import pytest

from engines.data.sessions.redaction import Redactor

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
