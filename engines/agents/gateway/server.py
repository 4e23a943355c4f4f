"""The gateway of one try, or of `studio serve`: an HTTP server on listeners.

Owns who may ask (a token), where a request goes, and which hosts a program reaches through it (a
proxy that looks at names and addresses, never at what passes through). What may be asked is the
`Answerer`'s. No key of an endpoint is anywhere here: the policy has it.
"""

import asyncio
import base64
import contextvars
import hmac
import ipaddress
import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit
from weakref import WeakSet

import orjson

from engines.agents.gateway import messages, responses
from engines.core import chat_protocol as chat
from engines.core.chat_protocol import Asked, BadRequest
from engines.core.codec import dumps
from engines.core.errors import CallFailed
from engines.core.protocols import OnText, Policy
from engines.core.types import Completion, meaning_of

MOST_BYTES = 32_000_000
"""Of one request."""
MOST_CONNECTIONS = 512
"""At a time; of a try all their calls but one wait."""
_APIS = {"/v1/chat/completions": chat, "/v1/responses": responses, "/v1/messages": messages}
_SILENT = logging.getLogger("practice_studio.gateway")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False  # what a program sends must not write on the terminal

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Refuse = Callable[[int, str], Awaitable[None]]


class Answerer(Protocol):
    """Answers the calls of a gateway, as `GuidedTry` does."""

    @property
    def policy(self) -> Policy: ...
    async def answer(self, asked: Asked, on_text: OnText | None) -> Completion: ...
    def end(self, reason: str) -> None: ...


class Gateway:
    """Serves one `Answerer` inside `async with`.

    Calls run in the context in which it was opened, so that deadlines stand still in them as in
    any other call of a try. With `hosts` it is a proxy to those, too, and to nothing else.
    Without a `listener` it opens one on loopback; without a `token` it makes one, and "" asks for
    none. A call that failed is answered with the status that `status_of` gives it.
    """

    def __init__(
        self,
        guided: Answerer,
        hosts: Sequence[str] = (),
        *,
        listener: socket.socket | None = None,
        token: str | None = None,
        status_of: Callable[[BaseException | None], int] = lambda _: 400,
    ) -> None:
        # Loaded with the first try of a program: no other run needs them.
        from uvicorn.config import Config
        from uvicorn.protocols.http.h11_impl import H11Protocol
        from uvicorn.server import ServerState

        self.guided, self.hosts = guided, tuple(hosts)
        self.token = f"try-{secrets.token_urlsafe(24)}" if token is None else token
        self._listener, self._status_of = listener, status_of
        self.replaced: Counter[str] = Counter()  # fields of requests whose place ours took
        self._context = contextvars.copy_context()
        self._calls: set[asyncio.Task[Completion]] = set()
        self.transports: WeakSet[Any] = WeakSet()  # also of connections that a proxy has
        self._servers: list[asyncio.Server] = []
        self._state = ServerState()
        config = Config(
            self._answer,
            interface="asgi3",
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            timeout_keep_alive=3600,  # it ends with the try
            limit_concurrency=MOST_CONNECTIONS,
        )
        config.load()
        self.new_protocol = partial(H11Protocol, config, self._state, {})

    @property
    def port(self) -> int:
        return int(self._servers[0].sockets[0].getsockname()[1])

    def environment(self) -> dict[str, str]:
        """What tells a program where to ask, the same on loopback and on a handed listener."""
        root = f"http://127.0.0.1:{self.port}"
        env = {"OPENAI_BASE_URL": f"{root}/v1", "OPENAI_API_KEY": self.token}
        env |= {"ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": self.token}
        if self.hosts:
            proxy = f"http://try:{self.token}@127.0.0.1:{self.port}"
            env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
            env |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        return env

    async def __aenter__(self) -> "Gateway":
        with self._listener or socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            await self.listen(listener)
        return self

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a listener, too, until the end, also where its owner closes it before."""
        own, loop = listener.dup(), asyncio.get_running_loop()
        own.setblocking(False)
        self._servers.append(await loop.create_server(lambda: _Connection(self), sock=own))

    async def __aexit__(self, *_: object) -> None:
        self.guided.end("the try has ended")
        for server in self._servers:
            server.close()
        for transport in tuple(self.transports):
            transport.abort()
        calls = [*self._calls, *self._state.tasks]
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def knows(self, token: bytes) -> bool:
        return not self.token or hmac.compare_digest(token, self.token.encode())

    def _ask(self, asked: Asked, on_text: OnText | None) -> asyncio.Task[Completion]:
        self.replaced.update(asked.given.keys())
        coming = self.guided.answer(asked, on_text)
        call = asyncio.get_running_loop().create_task(coming, context=self._context.copy())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    async def _answer(self, scope: Event, receive: Receive, send: Send) -> None:
        path, method = scope["path"].rstrip("/"), scope["method"]
        if "://" in path:  # a client that takes us for its proxy writes the whole address
            path = "/" + path.partition("://")[2].partition("/")[2]
        api: Any = _APIS.get(path)

        async def refuse(status: int, reason: str) -> None:
            await _send_json(send, status, (api or chat).error_body(status, reason))

        headers = dict(scope["headers"])
        bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if (method, path) == ("GET", "/health"):
            await _send_json(send, 200, {"status": "ok"})
        elif not self.knows(headers.get(b"x-api-key", bearer)):
            await refuse(401, "this token opens nothing here")
        elif not self.token and b"origin" in headers:  # any web page can make a browser ask
            await refuse(403, "web pages are answered only where a token is asked for")
        elif (method, path) == ("GET", "/v1/models"):
            row = {"id": self.guided.policy.name, "object": "model", "owned_by": "practice studio"}
            await _send_json(send, 200, {"object": "list", "data": [row], "has_more": False})
        elif method != "POST" or api is None:
            await refuse(404, f"there is nothing at {method} {scope['path']}")
        elif (body := await _read_body(receive)) is None:
            pass  # the program has left
        elif len(body) > MOST_BYTES:
            await refuse(413, f"a request has at most {MOST_BYTES:,} bytes")
        else:
            try:
                given = orjson.loads(body)
                asked = api.parse_request(given if isinstance(given, dict) else {})
            except (orjson.JSONDecodeError, BadRequest) as error:
                await refuse(400, str(error))
                return
            mark, now = secrets.token_hex(12), int(time.time())
            reply = api.Reply(asked, self.guided.policy.name, mark, now)
            await self._reply(asked, reply, receive, send, refuse)

    async def _reply(
        self, asked: Asked, reply: Any, receive: Receive, send: Send, refuse: Refuse
    ) -> None:
        """A stream's text goes out as it comes; its head waits for that, as a refusal has its own.

        A recorded reply is not streamed by the policy: it comes as one piece.
        """
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        call, said = self._ask(asked, pieces.put_nowait if asked.stream else None), ""
        call.add_done_callback(lambda _: pieces.put_nowait(None))
        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: call.cancel())
        while (piece := await pieces.get()) is not None:
            if piece:
                begin = b"" if said else await _begin_stream(send, reply, has_text=True)
                said += piece
                await _send_body(send, begin + reply.text(piece))
        gone.cancel()
        if call.cancelled():
            return
        failed, done = _failure(call), None if call.exception() else call.result()
        if said and done and not done.text.startswith(said):
            failed = "cut: the reply was begun anew, and its first part was passed on already"
        if failed or done is None:
            status = self._status_of(call.exception())
            await (_send_body(send, reply.broken(failed), True) if said else refuse(status, failed))
        elif not asked.stream:
            await _send_json(send, 200, reply.whole(done))
        else:
            has_text = bool(done.text or not done.tool_calls)
            begin = b"" if said else await _begin_stream(send, reply, has_text)
            rest = done.text.removeprefix(said)
            end = (reply.text(rest) if rest else b"") + reply.end(done)
            await _send_body(send, begin + end, last=True)


class _Connection(asyncio.Protocol):
    """Looks at the first bytes of a connection: a proxy is asked in words of its own."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._seen = gateway, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._gateway.transports.add(transport)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            # asyncio does so only where a listener names its protocol; else each reply waits 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        method, found, target = self._seen.partition(b" ")
        if not found and len(method) < 16:
            return
        gateway, own = self._gateway, f"http://127.0.0.1:{self._gateway.port}/".encode()
        is_foreign = target.startswith(b"http://") and not target.startswith(own)
        protocol: Any
        if method == b"CONNECT" or is_foreign:
            serve = partial(forward, hosts=gateway.hosts, is_known=gateway.knows)
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)
        else:
            protocol = gateway.new_protocol()
            protocol.logger = _SILENT
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._seen)


def _failure(call: asyncio.Task[Completion]) -> str:
    """What to say of a call without a usable reply; "" for one that has one."""
    if error := call.exception():
        shown = isinstance(error, CallFailed)  # of what ends the run a program is told no more
        return str(error) if shown else "the try has ended"
    finish = call.result().finish
    broken = meaning_of(finish) == "broken"
    return f"broken off: the endpoint ended the reply with {finish!r}" if broken else ""


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body, of one that is too long only so much; None where the client left."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        if len(body) <= MOST_BYTES:
            body += event.get("body", b"")
        if not event.get("more_body"):
            return bytes(body)


async def _send_json(send: Send, status: int, value: object) -> None:
    headers = [(b"content-type", b"application/json")]
    if status != 200:  # the policy has tried again as often as it makes sense
        headers.append((b"x-should-retry", b"false"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _send_body(send, dumps(value), last=True)


async def _begin_stream(send: Send, reply: Any, has_text: bool) -> bytes:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    return bytes(reply.begin(has_text))


async def _send_body(send: Send, data: bytes, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not last})


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
