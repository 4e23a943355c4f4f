"""The gateway as a proxy: named hosts through it, and nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engines.agents.gateway.server import Gateway, is_allowed
from engines.agents.guided_try import GuidedTry
from engines.core.types import Sampling
from tests.support.builders import answering

BASIC = "Proxy-Authorization: Basic {}\r\n"


@asynccontextmanager
async def an_echo() -> AsyncIterator[int]:
    """A server that says back what it is told, to the end of its head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + head)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def say(gateway: Gateway, request: str, *, token: str = "") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    known = base64.b64encode(f"try:{token or gateway.token}".encode()).decode()
    writer.write((request + BASIC.format(known) + "\r\n").encode())
    if request.startswith("CONNECT"):
        first = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " in first:
            writer.write(b"hello\r\n\r\n")
        else:
            writer.close()
            return (first + await reader.read()).decode()
    said = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    return said


def a_gateway(*hosts: str) -> Gateway:
    return Gateway(GuidedTry(answering("5"), Sampling()), hosts)


async def test_a_named_host_is_reached_plainly_and_through_a_tunnel() -> None:
    async with an_echo() as port, a_gateway(f"127.0.0.1:{port}") as gateway:
        said = await say(gateway, f"GET http://127.0.0.1:{port}/a?b=c HTTP/1.1\r\nHost: x\r\n")
        assert "GET /a?b=c HTTP/1.1" in said and gateway.token not in said
        assert "Proxy-Authorization" not in said and "Connection: close" in said
        said = await say(gateway, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")
        assert said == "HTTP/1.1 200 OK\r\n\r\nhello\r\n\r\n"
        assert gateway.environment()["HTTPS_PROXY"].startswith("http://try:try-")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("CONNECT 127.0.0.1:{other} HTTP/1.1\r\n", "403"),
        ("CONNECT example.org:443 HTTP/1.1\r\n", "403"),
        ("GET http://127.0.0.1:{other}/ HTTP/1.1\r\n", "403"),
        ("CONNECT 127.0.0.1 HTTP/1.1\r\n", "403"),
        ("CONNECT :x HTTP/1.1\r\n", "400"),
        ("CONNECT 127.0.0.1:1 HTTP/1.1\r\n", "502"),
    ],
)
async def test_everything_else_is_refused_with_a_reason(request_line: str, status: str) -> None:
    async with (
        an_echo() as port,
        an_echo() as other,
        a_gateway(f"127.0.0.1:{port}", "127.0.0.1:1") as gateway,
    ):
        said = await say(gateway, request_line.format(other=other))
        assert said.startswith(f"HTTP/1.1 {status} ")
        if status == "403":
            assert "is not named; named: 127.0.0.1" in said


async def test_a_name_that_leads_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("10.0.0.7", 443))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    async with a_gateway("example.org") as gateway:
        said = await say(gateway, "CONNECT example.org:443 HTTP/1.1\r\n")
        assert said.startswith("HTTP/1.1 502") and "an address inside" in said


async def test_without_hosts_and_without_the_token_there_is_no_proxy() -> None:
    async with an_echo() as port, a_gateway() as gateway:
        assert "HTTP_PROXY" not in gateway.environment()
        assert " 403 " in await say(gateway, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")
        said = await say(gateway, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n", token="wrong")
        assert " 407 " in said


def test_hosts_are_names_ports_and_parents() -> None:
    assert is_allowed("pypi.org", 443, ["pypi.org"])
    assert is_allowed("files.pypi.org", 80, ["*.pypi.org"])
    assert not is_allowed("pypi.org", 443, ["*.pypi.org"])
    assert not is_allowed("evilpypi.org", 443, ["*.pypi.org", "pypi.org"])
    assert not is_allowed("pypi.org", 22, ["pypi.org"])
    assert is_allowed("pypi.org", 22, ["pypi.org:22"])
