"""A library as a skill that agents read by MCP, and the ways in which a server of ours is reached.

Owns what is served of a library, and that subscribers are told once another version is meant.
Imports the SDK, which is an extra: commands import this module when they are called.
"""

import asyncio
import hashlib
import hmac
import json
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.metadata import version as installed_version
from itertools import chain
from pathlib import Path
from typing import Any, cast

import anyio
from mcp import MCPError
from mcp import types as mt
from mcp.server import ServerRequestContext, subscriptions
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server

from engines.core import codec, errors
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.policies.rehearsal.server import background_server
from engines.record.formats.texts import FRONT, slug, write_skill
from engines.record.run_dir import Workspace
from engines.record.yaml_text import load_yaml
from studio.library.card import evaluation_card
from studio.library.references import find_version, follow_version
from studio.secrets.output import mask_text
from studio.serving.enhanced_agent import is_loopback

WATCH_S = 0.2
"""Between two looks whether the library's journal has grown."""
SKILLS = "io.modelcontextprotocol/skills"
INDEX = "skill://index.json"
_SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
Context = ServerRequestContext[Any, Any]


class _SkillParams(mt.RequestParams):
    uri: str | None = None
    name: str | None = None


@frozen
class ServedVersion:
    """A version with all that is served of it: texts by URI, and its entry as a skill."""

    library: Library
    name: str
    uri: str
    about: str
    entry: Mapping[str, Any]
    texts: Mapping[str, str]


def render(library: Library, workspace: Workspace) -> ServedVersion:
    """What `studio library export` makes of it, with an index and a prompt."""
    card = evaluation_card(find_version(f"{library.name}@{library.version}", workspace), workspace)
    name = slug(card)
    files = write_skill(card, Path(name))
    uri, texts, resources = f"skill://{name}/SKILL.md", dict[str, str](), []
    for path, data in files.items():
        text = texts[f"skill://{name}/{path}"] = mask_text(data.decode("utf-8", "replace"))
        content = text.encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        resources.append({"uri": f"skill://{name}/{path}", "digest": digest, "size": len(content)})
    head = FRONT.match(texts[uri])
    front = load_yaml(head[1]) if head else {}
    about = str(front["description"])
    entry = {"uri": uri, "frontmatter": front, "resources": resources}
    indexed = {"name": name, "type": "skill-md", "description": about, "url": uri}
    texts[INDEX] = json.dumps({"$schema": _SCHEMA, "skills": [indexed]})
    guidance = mask_text(library.guidance()) or "Nothing has been learned yet."
    texts[f"library://{name}/prompt.txt"] = guidance
    return ServedVersion(library, name, uri, about, entry, texts)


async def tell_failure(ctx: Context, call_next: CallNext) -> HandlerResult:
    """A library that is gone is told to the client; the server stays for when it is back."""
    try:
        return await call_next(ctx)
    except errors.StudioError as error:
        raise MCPError(mt.INTERNAL_ERROR, mask_text(str(error))) from error


class LibraryService:
    """Answers with the version that a reference names as of now."""

    def __init__(self, reference: str, workspace: Workspace) -> None:
        self._workspace, self._reading = workspace, asyncio.Lock()
        self._folder, self._read_version = follow_version(reference, workspace)
        self.served = render(self._read_version(), workspace)
        self._announced = self.served.texts
        self._bus = subscriptions.InMemorySubscriptionBus()
        # Of clients that shook hands, as older ones do, by what is one object a connection.
        self._older: dict[int, tuple[ServerSession, set[str]]] = {}
        self.server = Server[Any](
            "practice-studio",
            version=installed_version("practice-studio"),
            instructions=f"What was learned by practice: read {self.served.uri} before tasks "
            "that its description fits.",
            lifespan=self._watching,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_subscribe_resource=self._note_older,
            on_unsubscribe_resource=self._note_older,
            on_subscriptions_listen=subscriptions.ListenHandler(self._bus),
        )
        self.server.middleware.append(tell_failure)
        self.server.extensions[SKILLS] = {}
        self.server.add_request_handler("skills/list", mt.PaginatedRequestParams, self._list_skills)
        self.server.add_request_handler("skills/get", _SkillParams, self._get_skill)
        self.server.add_notification_handler(
            "notifications/initialized", mt.NotificationParams, self._note_older
        )

    async def read(self) -> ServedVersion:
        """Raises StudioError: the library or the label is gone."""
        async with self._reading:
            library = await asyncio.to_thread(self._read_version)
            known = self.served.library
            # What attempts show of it comes with each step of practice, and is no news.
            if _content(library) != _content(known):
                self.served = await asyncio.to_thread(render, library, self._workspace)
            return self.served

    async def _list_resources(self, context: Context, params: Any) -> mt.ListResourcesResult:
        served, found = await self.read(), list[mt.Resource]()
        for uri, text in served.texts.items():
            name, about = uri.partition("://")[2], None
            if uri == served.uri:
                name, about = served.name, served.about
            size, kind = len(text.encode()), _mime_type(uri)
            one = mt.Resource(uri=uri, name=name, description=about, mime_type=kind, size=size)
            found.append(one)
        return mt.ListResourcesResult(resources=found)

    async def _read_resource(self, context: Context, params: Any) -> mt.ReadResourceResult:
        uri, texts = str(params.uri), (await self.read()).texts
        if uri not in texts:
            raise _unknown(uri, texts)
        text = mt.TextResourceContents(uri=uri, mime_type=_mime_type(uri), text=texts[uri])
        return mt.ReadResourceResult(contents=[text])

    async def _list_skills(self, context: Context, params: Any) -> codec.JsonObject:
        return {"skills": [(await self.read()).entry], **_FRESH}

    async def _get_skill(self, context: Context, params: Any) -> codec.JsonObject:
        served = await self.read()
        asked = params.uri or params.name or served.uri  # there is one alone
        if asked not in (served.uri, served.name):
            raise _unknown(asked, [served.uri])
        return {"skill": served.entry, **_FRESH}

    async def _list_prompts(self, context: Context, params: Any) -> mt.ListPromptsResult:
        served = await self.read()
        about = f"What practice taught: library {served.library.name}@{served.library.version}"
        return mt.ListPromptsResult(prompts=[mt.Prompt(name=served.name, description=about)])

    async def _get_prompt(self, context: Context, params: Any) -> mt.GetPromptResult:
        served = await self.read()
        if params.name != served.name:
            raise _unknown(params.name, [served.name])
        guidance = served.texts[f"library://{served.name}/prompt.txt"]
        text = mt.TextContent(type="text", text=guidance)
        return mt.GetPromptResult(messages=[mt.PromptMessage(role="user", content=text)])

    async def _note_older(self, context: Context, params: Any) -> Any:
        """Note a client that shook hands, and what it is to be told of."""
        older = self._older.setdefault(id(context.session.client_params), (context.session, set()))
        if uri := getattr(params, "uri", None):
            (older[1].discard if "unsubscribe" in context.method else older[1].add)(str(uri))
        return mt.EmptyResult()

    @asynccontextmanager
    async def _watching(self, server: object) -> AsyncIterator[codec.JsonObject]:
        watching = asyncio.create_task(self._watch())
        try:
            yield {}
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        seen: object = None
        while True:
            try:
                found = os.stat(self._folder.journal_path)
                mark = (found.st_ino, found.st_size, found.st_mtime_ns)
                if mark != seen:
                    await self._announce((await self.read()).texts)
                    seen = mark
            except (OSError, errors.StudioError):  # gone; who asks for it is told so
                seen = None
                await self._announce({})
            await asyncio.sleep(WATCH_S)

    async def _announce(self, now: Mapping[str, str]) -> None:
        before = self._announced
        changed = [uri for uri in {**before, **now} if before.get(uri) != now.get(uri)]
        self._announced = now
        if not changed:
            return
        await self._bus.publish(subscriptions.ResourcesListChanged())
        await self._bus.publish(subscriptions.PromptsListChanged())
        for uri in changed:
            await self._bus.publish(subscriptions.ResourceUpdated(uri))
        for key, (session, uris) in list(self._older.items()):
            try:
                await session.send_resource_list_changed()
                await session.send_prompt_list_changed()
                for uri in uris.intersection(changed):
                    await session.send_resource_updated(uri)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has left
                self._older.pop(key, None)


def _content(library: Library) -> tuple[object, ...]:
    return library.version, library.content_hash, library.notes.effects


_FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def _mime_type(uri: str) -> str:
    endings = {".json": "application/json", ".md": "text/markdown"}
    return endings.get(Path(uri).suffix, "text/plain")


def _unknown(name: str, known: Any) -> MCPError:
    return MCPError(mt.INVALID_PARAMS, f"there is no {name!r}; there are: {', '.join(known)}")


async def serve_stdio(server: Server[Any]) -> None:
    """Answer the client that started this process until it closes its end, or a signal comes."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    try:
        # What anything else prints goes to standard error meanwhile.
        lines = cast("anyio.AsyncFile[str]", _lines())
        async with stdio_server(stdin=lines) as (received, sent):
            changes = NotificationOptions(prompts_changed=True, resources_changed=True)
            await server.run(received, sent, server.create_initialization_options(changes))
    except* BrokenPipeError:
        pass  # the client has left
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _lines() -> AsyncIterator[str]:
    """Standard input. A thread of its own reads it: none that waits there could be called off."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        with suppress(RuntimeError), os.fdopen(os.dup(0), "rb") as file:  # the loop has ended
            for line in chain(file, [b""]):
                loop.call_soon_threadsafe(queue.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    while line := await queue.get():
        yield read_line(line)


def read_line(line: bytes) -> str:
    """A message as the SDK can parse it: it answers none with half of a surrogate pair."""
    if re.search(rb"\\u[dD][89a-fA-F]", line):
        with suppress(ValueError):
            line = codec.dumps(json.loads(line))  # it writes U+FFFD instead
    return line.decode("utf-8", "replace")


def serve_http(
    server: Server[Any], host: str, port: int, token: str, option: str = ""
) -> AbstractAsyncContextManager[str]:
    """Serve inside the `with`, which yields the URL; a `token` is asked for where there is one.

    Where only this machine can ask, pages of a browser are kept out by their Host and Origin.
    """
    # It checks both headers of its own accord where it is told that it listens there.
    served = server.streamable_http_app(host="localhost" if is_loopback(host) else host)
    wanted = f"Bearer {token}".encode()

    async def require_token(scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or not token or hmac.compare_digest(given, wanted):
            await served(scope, receive, send)
            return
        head = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": head})
        await send({"type": "http.response.body", "body": b""})

    own: codec.JsonObject = {"application": require_token, "option": option}
    return background_server(port, host, **own, path="/mcp", lifespan="on")
