"""Fetching from honest and from hostile servers."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engines.tools.web.fetch import MAX_BYTES, MAX_REDIRECTS, AddressGuard, Fetcher, FetchFailed
from tests.support.web_server import Asked, json_reply, redirect, reply, serving


def _packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)  # else the names of tests would follow the clock


HERE = AddressGuard(("127.0.0.1",))
FETCHER = Fetcher("tester/1.0", HERE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


async def refused(url: str, fetcher: Fetcher = FETCHER, limit_s: float = 10) -> str:
    with pytest.raises(FetchFailed) as failed:
        await fetcher.fetch(url, limit_s)
    return str(failed.value)


async def test_a_page_is_fetched_with_our_name_and_nothing_else_of_us() -> None:
    async with serving({"/a": reply("text", kind="text/plain")}) as web:
        fetched = await FETCHER.fetch(f"{web.url}/a?b=c#d")
        (asked,) = web.asked
    assert (fetched.body, fetched.content_type, fetched.is_cut) == (b"text", "text/plain", False)
    assert asked.target == "/a?b=c"
    assert asked.headers == {
        "host": f"127.0.0.1:{web.port}",
        "user-agent": "tester/1.0",
        "accept-encoding": "gzip",
        "connection": "close",
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "no address that begins with http"),
        ("ftp://example.org/", "no address that begins with http"),
        ("javascript:alert(1)", "no address that begins with http"),
        ("http:///nowhere", "no address that begins with http"),
        ("http://me:secret@example.org/", "a name or password"),
        ("http://evil.example\\@127.0.0.1/", "a name or password"),
        ("http://a\nb/", "is no address"),
        ("http://127.0.0.1:1/", "127.0.0.1, which is no public address"),
        ("http://[::ffff:127.0.0.1]/", "no public address"),
    ],
)
async def test_an_address_that_is_none_of_the_web_is_refused(url: str, said: str) -> None:
    message = await refused(url, Fetcher("t"))
    assert said in message and "secret" not in message


async def test_a_redirect_to_this_machine_is_refused() -> None:
    inner, outside = serving({"/": reply("secret")}), Fetcher("t", AddressGuard(("127.0.0.2",)))
    async with inner as web, serving({"/": redirect(web.url)}, "127.0.0.2") as outer:
        message = await refused(outer.url + "/", outside)
    assert "127.0.0.1 is at 127.0.0.1" in message and web.asked == []


async def test_redirects_are_followed_so_far_without_cookies() -> None:
    def answer(asked: Asked) -> bytes:
        left = int(asked.path[1:])
        return redirect(f"/{left - 1}") if left else reply("there", kind="text/plain")

    async with serving(answer) as web:
        fetched = await FETCHER.fetch(f"{web.url}/{MAX_REDIRECTS}")
        message = await refused(f"{web.url}/{MAX_REDIRECTS + 1}")
        assert not any("cookie" in asked.headers for asked in web.asked)
    assert (fetched.url, fetched.body) == (f"{web.url}/0", b"there")
    assert message == f"after 5 redirects it redirects again, to {web.url}/0."


async def test_a_name_that_changes_between_look_up_and_connect_gains_nothing() -> None:
    """The first answer is judged and reached; the second comes with a redirect and is judged."""
    answers = [["127.0.0.2"], ["127.0.0.1"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    fetcher = Fetcher("t", AddressGuard(("127.0.0.2",), resolve))

    def answer(asked: Asked) -> bytes:
        return (
            redirect(f"http://{asked.headers['host']}/next") if asked.path == "/go" else reply("a")
        )

    async with serving(answer, "127.0.0.2") as web:
        fetched = await fetcher.fetch(f"http://changing.example:{web.port}/")
        assert web.asked[0].headers["host"] == f"changing.example:{web.port}"
        assert fetched.body == b"a" and answers == [["127.0.0.1"]]
        answers.insert(0, ["127.0.0.2"])
        message = await refused(f"http://changing.example:{web.port}/go", fetcher)
    assert "changing.example is at 127.0.0.1" in message and len(web.asked) == 2


async def test_certificates_are_those_of_the_name_and_a_dead_address_is_passed_over(
    tmp_path: Path,
) -> None:
    theirs, ours = a_certificate("named.example", tmp_path)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]  # nobody listens at the first

    guard = AddressGuard(("127.0.0.1", "127.0.0.3"), resolve)
    async with serving({"/": reply("sealed")}, tls=theirs) as web:
        fetched = await Fetcher("t", guard, ours).fetch(f"https://named.example:{web.port}/")
        message = await refused(f"https://other.example:{web.port}/", Fetcher("t", guard, ours))
    assert fetched.body == b"sealed"
    assert "Hostname mismatch" in message


async def test_of_a_gigabyte_the_first_megabytes_are_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield HEAD + b"content-length: 1000000000\r\n\r\n"
        for _ in range(1_000):
            yield b"x" * 1_000_000

    async with serving(lambda asked: endless()) as web:
        fetched = await FETCHER.fetch(web.url)
    assert (len(fetched.body), fetched.is_cut) == (MAX_BYTES, True)
    assert web.sent < 100_000_000


async def test_a_packed_body_of_which_nothing_can_be_unpacked_ends_too() -> None:
    async def endless_name() -> AsyncIterator[bytes]:
        """Of a gzip file, the name that stands in its header."""
        yield HEAD + b"content-encoding: gzip\r\n\r\n" + b"\x1f\x8b\x08\x08" + bytes(6)
        for _ in range(100):
            yield b"x" * 1_000_000

    async with serving(lambda asked: endless_name()) as web:
        fetched = await FETCHER.fetch(web.url)
    assert (fetched.body, fetched.is_cut) == (b"", True)
    assert web.sent < 90_000_000


async def test_a_body_that_drips_ends_at_the_limit() -> None:
    async def dripping() -> AsyncIterator[bytes]:
        yield HEAD + b"\r\n"
        while True:
            yield b"x"
            await asyncio.sleep(0.01)

    async with serving(lambda asked: dripping()) as web:
        message = await refused(web.url, limit_s=0.1)
    assert message == f"{web.url} took longer than 0.1 s."


@pytest.mark.parametrize("packing", ["gzip", "deflate"])
async def test_a_bomb_is_unpacked_no_further_than_the_limit(packing: str) -> None:
    pack = zlib.compressobj(9, wbits=31 if packing == "gzip" else 15)
    bomb = b"".join(pack.compress(bytes(1_000_000)) for _ in range(100)) + pack.flush()
    assert len(bomb) < 110_000
    async with serving({"/": reply(bomb, content_encoding=packing)}) as web:
        fetched = await FETCHER.fetch(web.url + "/")
    assert (fetched.body, fetched.is_cut) == (bytes(MAX_BYTES), True)


@pytest.mark.parametrize(
    ("packed", "is_cut"),
    [
        (_packed(b"a" * 9), False),
        (_packed(b"a" * 9)[:-8], True),  # breaks off
        (_packed(b"a" * 9) + _packed(b"b"), True),
    ],
)
async def test_a_packed_body_of_which_a_part_was_read_says_so(packed: bytes, is_cut: bool) -> None:
    async with serving({"/": reply(packed, content_encoding="gzip")}) as web:
        fetched = await FETCHER.fetch(web.url + "/")
    assert (fetched.body, fetched.is_cut) == (b"a" * 9, is_cut)


@pytest.mark.parametrize(
    ("body", "encoding", "said"),
    [
        (
            _packed(b"a" * 9_000)[:-40] + b"?" * 40,
            "gzip",
            "cannot be read (Error -3",
        ),
        (b"whatever", "br", "its encoding br was not asked for"),
        (
            _packed(_packed(b"a")),
            "gzip, gzip",
            "its encoding gzip, gzip was not",
        ),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_refused(
    body: bytes, encoding: str, said: str
) -> None:
    async with serving({"/": reply(body, content_encoding=encoding)}) as web:
        assert said in await refused(web.url + "/")


async def test_headers_without_end_a_cut_body_and_no_http_at_all_are_refused() -> None:
    pages = {
        "/headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
        "/cut": HEAD + b"content-length: 100\r\n\r\nhalf",
        "/noise": b"\x16\x03\x01\x02garbage\r\n\r\n",
    }
    async with serving(pages) as web:
        for path in pages:
            assert "cannot be read" in await refused(web.url + path), path
    assert "cannot be read" in await refused(web.url)  # nobody listens any more


async def test_a_service_is_asked_in_json_and_its_refusal_is_quoted() -> None:
    pages = {
        "/ok": json_reply({"a": 1}),
        "/limit": json_reply({"error": {"code": 429, "message": "Too\nmany"}}, 429),
        "/list": json_reply([1]),
        "/deep": reply("[" * 100_000, kind="application/json"),
        "/away": redirect("/ok"),
    }
    said = {}
    async with serving(pages) as web:
        assert await FETCHER.ask_service(f"{web.url}/ok", {"X-Key": "k"}, {"q": "ü"}) == {"a": 1}
        (asked,) = web.asked
        assert (asked.method, asked.headers["x-key"]) == ("POST", "k")
        assert asked.headers["content-type"] == "application/json"
        assert asked.body == b'{"q": "\\u00fc"}'
        for path in ("/limit", "/list", "/deep", "/away"):
            with pytest.raises(FetchFailed) as failed:
                await FETCHER.ask_service(web.url + path, {"X-Key": "k"})
            said[path] = str(failed.value)
        # A key is never sent on; without one there is nothing to keep.
        assert [a.path for a in web.asked].count("/ok") == 1
        assert await FETCHER.ask_service(f"{web.url}/away") == {"a": 1}
    host = web.url.removeprefix("http://")
    assert said == {
        "/limit": f'{host} answered 429 and says "'
        r'{\"error\": {\"code\": 429, \"message\": \"Too\\nmany\"}}".',
        "/list": f"{host} replied with something that is no JSON object.",
        "/deep": f"{host} replied with something that is no JSON object.",
        "/away": f"it redirects, unfollowed, to {web.url}/ok.",
    }


def a_certificate(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for the name, and one that trusts it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    named = x509.SubjectAlternativeName([x509.DNSName(name)])
    builder = x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).add_extension(named, False)
    made = builder.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM)
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "both.pem").write_bytes(
        pem + key.private_bytes(serialization.Encoding.PEM, kind, plain)
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(folder / "both.pem")
    return theirs, ssl.create_default_context(cadata=pem.decode())
