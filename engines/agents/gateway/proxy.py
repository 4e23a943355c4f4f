"""A proxy to named hosts: CONNECT, and plain requests. Everything else is refused with a reason.

It looks at names and addresses, never at what passes through a tunnel.
"""

import asyncio
import base64
import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

CONNECT_S = 20.0
_USUAL_PORTS = (80, 443)


def is_allowed(host: str, port: int, hosts: Sequence[str]) -> bool:
    """Whether `host`, `host:port` or a parent written `*.host` is named."""
    for entry in hosts:
        name, _, named_port = entry.lower().partition(":")
        fits = host.endswith(name[1:]) if name.startswith("*.") else host == name
        if fits and (port == int(named_port) if named_port else port in _USUAL_PORTS):
            return True
    return False


async def forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    hosts: Sequence[str],
    is_known: Callable[[bytes], bool],
) -> None:
    """Serve one connection, of which nothing is read yet."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, *_ = first.split(" ")
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = (url.hostname or "").lower(), url.port or 80
        fields = [line for line in lines if line]
        own = [f.split()[-1] for f in fields if f.lower().startswith("proxy-authorization:")]
        credentials = base64.b64decode(own[0]) if own else b""
        if not is_known(credentials.partition(b":")[2]):
            await _refuse(writer, "407 Proxy Authentication Required", "this token opens no try")
        elif not is_allowed(host, port, hosts):
            known = ", ".join(hosts) or "none"
            await _refuse(writer, "403 Forbidden", f"{host}:{port} is not named; named: {known}")
        else:
            there = await _connect(host, port, hosts)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = (url.path or "/") + (f"?{url.query}" if url.query else "")
                kept = [f for f in fields if not f.lower().startswith(("proxy-", "connection:"))]
                said = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
                there[1].write("\r\n".join(said).encode("latin-1"))
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
    except (OSError, TimeoutError) as error:
        await _refuse(writer, "502 Bad Gateway", f"it cannot be reached: {error}")
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await _refuse(writer, "400 Bad Request", "this is no request to a proxy")
    finally:
        writer.close()


async def _connect(
    host: str, port: int, hosts: Sequence[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A name may lead to this machine or its network only where the address itself is named."""
    async with asyncio.timeout(CONNECT_S):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        if address != host and host != "localhost" and not ipaddress.ip_address(address).is_global:
            raise OSError(f"{host} is {address}, an address inside; name the address to allow it")
        return await asyncio.open_connection(address, port)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side has left
    finally:
        writer.close()


async def _refuse(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    body = f"{reason}\n".encode()
    length = len(body)
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n".encode())
    writer.write(b"Connection: close\r\n\r\n" + body)
