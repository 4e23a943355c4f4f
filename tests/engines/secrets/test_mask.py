"""Secrets are taken out by value and by shape, and nothing else is altered."""

from __future__ import annotations

import dataclasses
import json
import random
import time
import types
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core import events
from engines.core import types as values
from engines.core.state import fold
from engines.secrets.mask import (
    HELD_BACK,
    MASK,
    NO_SECRETS,
    PLACEHOLDERS,
    STRUCTURE,
    Mask,
    StreamMask,
    hide_spans,
)

SHAPED = (
    "sk-proj-Ab3dEf6hIj9kLmNoPqRs",
    "sk-ant-api03-4f6G8h0J2k4L6m8N0p",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "gsk_4f6G8h0J2k4L6m8N0pQ2",
    "hf_aBcDeFgHiJkLmNoPqRsTuVwX12",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "glpat-4f6G8h0J2k4L6m",
    "xoxb-17653672481-19874698323",
    "sk-AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEf",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
    "SG.abcdefghijklmnop.qrstuvwxyz1234567890",
    "ya29.a0AfH6SMBabcdefghij1234567890",
    "dop_v1_0123456789abcdef0123456789abcdef",
    "fw_abcdef1234567890abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyD-4f6G8h0J2k4L6m8N0pQ2r4S6t8U0w",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9",
)


@pytest.mark.parametrize("key", SHAPED)
@pytest.mark.parametrize("around", ["{}", "the key is {}.", '"{}"', "\n{}\n", "x={}&y", "({})"])
def test_a_key_of_a_known_shape_is_masked_wherever_it_stands(key: str, around: str) -> None:
    assert NO_SECRETS(around.format(key)) == around.format(MASK)
    line = json.dumps({"text": around.format(key)}).encode()
    assert json.loads(NO_SECRETS.line(line)) == {"text": around.format(MASK)}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer q7Zr9kT2mX4vB8nL", "Authorization: Bearer ***"),
        ("api_key=q7Zr9kT2mX4vB8nL1s", "api_key=***"),
        ("Incorrect key: sk-ab***yz9.", "Incorrect key: sk-***."),
        ('{"token": "q7Zr9kT2mX4vB8nL1s"}', '{"token": "***"}'),
        ("https://me:hunter22@host/v1", "https://***@host/v1"),
        ("OPENAI_API_KEY='q7Zr9kT2mX4vB8nL1s'", "OPENAI_API_KEY='***'"),
        ("authorization:   Bearer \t q7Zr9kT2mX4vB8nL", "authorization:   Bearer \t ***"),
        ("X-API-KEY:\t\tq7Zr9kT2mX4vB8nL1s", "X-API-KEY:\t\t***"),
        ('{\n  "api_key":\n    "q7Zr9kT2mX4vB8nL1s"\n}', '{\n  "api_key":\n    "***"\n}'),
        ("https://q7Zr9kT2mX4vB8nL@host/v1", "https://***@host/v1"),
        ("Incorrect API key provided: q7Zr9kT2mX4vB8nL1s.", "Incorrect API key provided: ***."),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "aws_secret_access_key = ***",
        ),
        (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nxyz1\n-----END PGP PRIVATE KEY BLOCK-----",
            "***",
        ),
        ("password: 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "password: ***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENC\nMIIE+4k/\n"
            "-----END RSA PRIVATE KEY-----.",
            "***.",
        ),
    ],
)
def test_a_secret_is_known_by_what_stands_before_it(text: str, left: str) -> None:
    assert NO_SECRETS(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "token = get_token(value)",
        "token = get_token_from_environment2(value)",
        "key = user_profile_2024_data",
        "sorted(rows, key=lambda row: row[1])",
        "key: 31415926535897932384626433",
        "the key to 12 + 34 is to add the tens first",
        "Signature: def add(a: int, b: int) -> int",
        "risk-averse choices and a disk-1 label, ask-me-anything-2024-edition-now",
        "https://example.org/a:b/c?d=e",
        "see https://example.org:8080/path and mail me@example.org",
        "a sk-learn model, a pk-field",
        "basic arithmetic: bearer of bad news",
        "password: none, secret: of the trade",
        "the tokens: 1234567890123456789",
        "basic 12+34+56+78+90=270",
        "Basic 1234567890123",
        "key=0b1010101010101010101010",
        "key: 0xdeadbeefdeadbeef12345678",
        "ratio 3://4:5@6",
        "the key is abcdefghijklmnopqrstuvwxyz",
        "sk-abcdefghijklmnopqrstuvwxyzabcdefghij",
    ],
)
def test_ordinary_text_and_code_are_left_alone(text: str) -> None:
    assert NO_SECRETS(text) == text
    line = json.dumps({"text": text}).encode()
    assert NO_SECRETS.line(line) is line


def test_a_value_is_masked_in_every_spelling_of_it() -> None:
    value = 'pa"ss wörd\\7/&'
    mask = Mask([value])
    nested = json.dumps({"arguments": json.dumps({"q": value}, ensure_ascii=False)})
    for text in (value, json.dumps(value), json.dumps(value, ensure_ascii=False), nested):
        assert "ss w" not in mask(text), text
    assert mask("https://h/?q=pa%22ss%20w%C3%B6rd%5C7%2F%26") == "https://h/?q=***"
    assert mask("<b>pa&quot;ss wörd\\7/&amp;</b>") == "<b>***</b>"


def test_a_value_of_several_lines_is_masked_folded_and_line_by_line() -> None:
    mask = Mask(["first line of mine\n  second  line of mine\nshort\n"])
    assert mask("a first line of mine second line of mine short b") == "a *** b"
    assert mask("only second  line of mine here, and short") == "only *** here, and short"


def test_the_longer_of_two_secrets_leaves_no_part_of_itself() -> None:
    assert Mask(["secret1", "secret1-and-more"])("a secret1-and-more b secret1") == "a *** b ***"


@pytest.mark.parametrize("value", ["", "abc", "12345", "***", *sorted(PLACEHOLDERS)])
def test_what_is_too_short_or_no_secret_at_all_masks_no_text(value: str) -> None:
    assert Mask([value]).values == ()


SECRETS = st.text(
    st.characters(codec="utf-8") | st.sampled_from('",:{}[]\\0123456789nrtu'), min_size=6
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, SECRETS)
def test_json_stays_json_whatever_the_secret_looks_like(data: Any, secret: str) -> None:
    raw = json.dumps({"data": data, "said": f"a {secret} b"}, ensure_ascii=False).encode()
    masked = json.loads(Mask([secret]).line(raw))
    assert secret not in masked["said"] or not Mask([secret]).values


@pytest.mark.parametrize(
    "secret", ["123456", "approve", '","at":', "elapsed_s", "nabc123", "1123456.5"]
)
def test_a_secret_that_looks_like_our_own_lines_breaks_none(secret: str) -> None:
    line = {"kind": "approve", "at": 1123456.5, "elapsed_s": 0.5, "text": f"\nabc12 {secret}"}
    raw = json.dumps(line, separators=(",", ":")).encode()
    masked = json.loads(Mask([secret]).line(raw))
    assert masked == line | {"text": "\nabc12 ***"}


def test_a_text_that_reads_like_a_secret_only_in_json_is_left_as_it_is() -> None:
    line = json.dumps({"text": "first\nabc123"}).encode()
    assert Mask(["nabc123"]).line(line) is line


def test_names_that_a_model_chose_are_masked_and_those_of_fields_are_not() -> None:
    masked = Mask(["hunter22!"]).tree({"hunter22!": 1, "text": "x", "n": ["hunter22!", None]})
    assert masked == {MASK: 1, "text": "x", "n": [MASK, None]}


def test_masking_twice_is_masking_once() -> None:
    mask = Mask(["plain-secret-words"])
    text = " ".join([*SHAPED, "api_key=q7Zr9kT2mX4vB8nL1s plain-secret-words https://a:b1@c/"])
    assert mask(mask(text)) == mask(text)
    assert "plain-secret" not in mask(text)


def test_fields_of_a_few_words_are_those_that_are_never_masked() -> None:
    found: set[str] = set()
    for module in (values, events, fold):
        for kind in vars(module).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                hints = get_type_hints(kind)
                found |= {field for field, hint in hints.items() if _is_literal(hint)}
    assert found - STRUCTURE == set()


def _is_literal(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return True
    return get_origin(hint) is types.UnionType and any(_is_literal(arg) for arg in get_args(hint))


HOSTILE = {
    "dashes": "-eyJ" * 250_000,
    "tokens": " eyJaaaaaaaaaaaa." * 60_000,
    "starts": "sk-" * 350_000,
    "names": "key=" * 250_000,
    "near": "key: " + "a" * 79 + " ",
    "begins": "-----BEGIN PRIVATE KEY-----" * 37_000,
    "schemes": "://a:" * 200_000,
    "one run": "sk-1" + "a" * 1_000_000,
    "one letter": "a" * 1_000_000,
    "bearers": "bearer " * 140_000,
    "grows": "\u0130key=" * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_costs_more_than_its_length(name: str) -> None:
    """CPU time of half a MB against a quarter of it: a quadratic cost would be 16 times."""
    text = HOSTILE[name][:500_000]

    def cost(part: str) -> float:
        began = time.process_time()
        NO_SECRETS(part)
        return time.process_time() - began

    quarter = max(min(cost(text[: len(text) // 4]) for _ in range(2)), 0.02)
    assert min(cost(text) for _ in range(2)) < 10 * quarter


@given(st.integers(0, 2**32), st.sampled_from((*SHAPED, "words of mine", "abcabcabd7")))
def test_a_key_spread_over_pieces_never_shows(seed: int, key: str) -> None:
    chance = random.Random(seed)
    told: list[str] = []
    stream = StreamMask(Mask([key] if key not in SHAPED else []), told.append)
    text = f"so: {key} is it, s{key[:3]} {key}\nend"
    at = 0
    while at < len(text):
        size = chance.randint(1, 5)
        stream(text[at : at + size])
        at += size
        assert len(key) < 6 or key not in "".join(told)
    stream.flush()
    whole = "".join(told)
    assert len(key) < 6 or key not in whole
    assert whole.startswith("so: ") and whole.endswith("\nend")


def test_a_value_is_masked_however_its_name_was_streamed() -> None:
    told: list[str] = []
    stream = NO_SECRETS.stream(told.append)
    for piece in ("my api", "_key", " = ", '"q7Zr9', "kT2mX4", "vB8nL1s", '"', " ok"):
        stream(piece)
    stream.flush()
    assert "".join(told) == 'my api_key = "***" ok'


def test_ordinary_words_are_passed_on_at_once() -> None:
    told: list[str] = []
    stream = Mask(["zzzz-secret"]).stream(told.append)
    for piece in ("Add 3 and 4. ", "The sum is 7. ", "#### 7\n"):
        stream(piece)
    assert "".join(told) == "Add 3 and 4. The sum is 7. #### 7\n"


def test_a_stream_holds_back_no_more_than_its_bound() -> None:
    told: list[str] = []
    stream = NO_SECRETS.stream(told.append)
    for _ in range(100):
        stream("sk-" + "a" * 500)
    assert sum(map(len, told)) > 50_000 - 2 * HELD_BACK


def test_of_finds_that_overlap_nothing_is_left_between_them() -> None:
    told: list[str] = []
    shown = hide_spans("ab|secret-key|yz", [(9, 13), (3, 12), (4, 6)], told.append)
    assert shown == f"ab|{MASK}|yz"
    assert told == ["secret-ke", "ec", "-key"]  # each is hidden wherever it stands alone too
