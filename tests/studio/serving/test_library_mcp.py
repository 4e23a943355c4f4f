"""A library served by MCP: what clients of either era read, and of what they are told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from engines.record.run_dir import Workspace
from studio.library.curation import commit_changes
from studio.library.labels import set_label
from tests.support import older_mcp_client
from tests.support.forked_studio import STUDIO, ForkedStudio
from tests.support.run_studio import studio

if TYPE_CHECKING:
    from mcp import Client

    from studio.serving.library_mcp import LibraryService

OLDER = "STUDIO_MCP_1X_PYTHON"
"""Names an interpreter that has the SDK 1.x."""
SKILL = "skill://rehearsal/SKILL.md"
PROMPT = "library://rehearsal/prompt.txt"
TOKEN = "0123456789-abcdef"


def a_service(folder: Path, reference: str = "rehearsal") -> LibraryService:
    from studio.serving.library_mcp import LibraryService

    return LibraryService(reference, Workspace(folder))


@asynccontextmanager
async def connected(service: LibraryService, mode: str, **more: Any) -> AsyncIterator[Client]:
    from mcp import Client

    async with asyncio.timeout(60), Client(service.server, mode=mode, **more) as client:
        yield client


def move(folder: Path, reference: str, label: str = "production") -> None:
    set_label(Workspace(folder), reference, label, person="ann", reason="", remove=False)


def learn(folder: Path, text: str) -> None:
    change = ("add", None, text)
    commit_changes(
        Workspace(folder), "rehearsal", lambda _: [change], person="ann", reason=""  # type: ignore[list-item]
    )  # fmt: skip


async def read(client: Client, uri: str) -> str:
    return str((await client.read_resource(uri)).contents[0].text)  # type: ignore[union-attr]


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """A method of an extension."""
    from mcp import types as mt
    from pydantic import TypeAdapter

    request = mt.Request[Any, Any](method=method, params=params)
    return await client.session.send_request(request, TypeAdapter(dict[str, Any]))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_of_either_era_reads_the_skill_the_index_and_the_prompt(
    practised: Path, mode: str
) -> None:
    library = Workspace(practised).library("rehearsal").head()
    async with connected(a_service(practised), mode) as client:
        listed = {r.uri: r for r in (await client.list_resources()).resources}
        assert {SKILL, "skill://index.json", PROMPT} <= listed.keys()
        assert listed[SKILL].mime_type == "text/markdown" and listed[SKILL].name == "rehearsal"
        for uri, resource in listed.items():
            assert resource.size == len((await read(client, uri)).encode())
        text = await read(client, SKILL)
        front = yaml.safe_load(text.split("---\n")[1])
        assert front["name"] == "rehearsal" and 0 < len(front["description"]) <= 1024
        assert listed[SKILL].description == front["description"]
        assert library.guidance() in text
        assert await read(client, PROMPT) == library.guidance()
        (prompt,) = (await client.list_prompts()).prompts
        said = (await client.get_prompt(prompt.name)).messages
        assert [(m.role, m.content.text) for m in said] == [("user", library.guidance())]  # type: ignore[union-attr]
        index = json.loads(await read(client, "skill://index.json"))
        (skill,) = index["skills"]
        assert skill == {
            "name": "rehearsal",
            "type": "skill-md",
            "description": front["description"],
            "url": SKILL,
        }


async def test_the_skill_is_byte_for_byte_what_export_writes(practised: Path) -> None:
    folder = practised.parent / "rehearsal"
    words = ("export", "rehearsal", "--format", "skill", "--to", str(folder))
    assert studio("library", *words, workspace=practised).code == 0
    files = {path for path in folder.rglob("*") if path.is_file()}
    async with connected(a_service(practised), "auto") as client:
        (entry,) = (await ask(client, "skills/list"))["skills"]
        assert len(entry["resources"]) == len(files) >= 2
        for file in files:
            uri = f"skill://rehearsal/{file.relative_to(folder).as_posix()}"
            assert (await read(client, uri)).encode() == file.read_bytes()


async def test_the_skills_extension_gives_digests_and_sizes_of_all_files(practised: Path) -> None:
    async with connected(a_service(practised), "auto") as client:
        assert client.server_capabilities.extensions == {"io.modelcontextprotocol/skills": {}}
        listed = await ask(client, "skills/list")
        assert (listed["resultType"], listed["cacheScope"]) == ("complete", "private")
        (entry,) = listed["skills"]
        assert (await ask(client, "skills/get", uri=SKILL))["skill"] == entry
        own = {r.uri for r in (await client.list_resources()).resources if "/rehearsal/" in r.uri}
        assert {row["uri"] for row in entry["resources"]} == own - {PROMPT}
        for row in entry["resources"]:
            content = (await read(client, row["uri"])).encode()
            assert row["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
            assert row["size"] == len(content)
        assert entry["frontmatter"] == yaml.safe_load((await read(client, SKILL)).split("---\n")[1])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_is_not_there_is_refused_and_those_there_are_named(
    practised: Path, mode: str
) -> None:
    from mcp import MCPError

    async with connected(a_service(practised), mode) as client:
        for asked in (
            client.read_resource("skill://rehearsal/../../etc/passwd"),
            client.get_prompt("other"),
            ask(client, "skills/get", uri="skill://other/SKILL.md"),
            ask(client, "skills/get", name="other"),
        ):
            with pytest.raises(MCPError, match="rehearsal") as refused:
                await asked
            assert refused.value.code == -32602


async def until(heard: list[Any], count: int) -> None:
    async with asyncio.timeout(20):
        while len(heard) < count:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def noticing(
    service: LibraryService, mode: str, uri: str
) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client and what it is told, in words that both eras share."""
    heard: list[str] = []

    async def take(message: Any) -> None:
        method = getattr(message, "method", "")
        heard.append(
            f"{method.removeprefix('notifications/')} {getattr(message.params, 'uri', '')}"
        )

    if mode == "legacy":
        async with connected(service, mode, message_handler=take) as client:
            with pytest.warns(UserWarning, match="listen"):
                await client.subscribe_resource(uri)
            yield client, heard
        return
    names = {
        "ResourcesListChanged": "resources/list_changed",
        "PromptsListChanged": "prompts/list_changed",
        "ResourceUpdated": "resources/updated",
    }
    async with (
        connected(service, mode) as client,
        client.listen(
            resource_subscriptions=[uri], resources_list_changed=True, prompts_list_changed=True
        ) as subscription,
    ):

        async def listen() -> None:
            async for event in subscription:
                heard.append(f"{names[type(event).__name__]} {getattr(event, 'uri', '')}")

        listening = asyncio.create_task(listen())
        yield client, heard
        listening.cancel()


NOTICES = ["resources/list_changed ", "prompts/list_changed ", f"resources/updated {SKILL}"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_subscriber_is_told_once_the_label_moves_and_of_no_commit_before(
    practised: Path, mode: str
) -> None:
    from studio.serving import library_mcp

    assert library_mcp.WATCH_S <= 0.25  # so a notice comes within a second
    move(practised, "rehearsal@1")
    service = a_service(practised, "rehearsal@production")
    async with noticing(service, mode, SKILL) as (client, heard):
        before = await read(client, SKILL)
        learn(practised, "Units: write them down.")
        move(practised, "rehearsal@0", "other")
        await asyncio.sleep(3 * library_mcp.WATCH_S)
        assert heard == [] and await read(client, SKILL) == before
        move(practised, "rehearsal")
        after = await read(client, SKILL)  # who asks first does not keep the notice from others
        await until(heard, 3)
        assert heard == NOTICES and "Units: write them down." in after


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_subscriber_is_told_once_that_the_label_is_gone_and_once_that_it_is_back(
    practised: Path, mode: str
) -> None:
    from mcp import MCPError

    from studio.serving import library_mcp

    move(practised, "rehearsal@1")
    async with noticing(a_service(practised, "rehearsal@production"), mode, SKILL) as (
        client,
        heard,
    ):
        gone = ("label", "rehearsal", "production", "--remove")
        assert studio("library", *gone, workspace=practised).code == 0
        await until(heard, 3)
        await asyncio.sleep(3 * library_mcp.WATCH_S)
        assert heard == NOTICES
        with pytest.raises(MCPError, match="no such label"):
            await client.list_resources()
        move(practised, "rehearsal@1")
        await until(heard, 6)
        assert heard == NOTICES * 2 and await read(client, SKILL)


async def test_a_skill_is_got_by_uri_by_name_and_by_a_request_without_either(
    practised: Path,
) -> None:
    from mcp import types as mt
    from pydantic import TypeAdapter

    async with connected(a_service(practised), "auto") as client:
        (entry,) = (await ask(client, "skills/list"))["skills"]
        for asked in ({"uri": SKILL}, {"name": "rehearsal"}):
            assert (await ask(client, "skills/get", **asked))["skill"] == entry
            # Of a request whose parameters have no type the client sends none.
            bare = mt.Request(method="skills/get", params=asked)  # type: ignore[arg-type, var-annotated]
            got = await client.session.send_request(bare, TypeAdapter(dict[str, Any]))
            assert got["skill"] == entry


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_without_a_label_a_subscriber_is_told_of_a_commit(practised: Path, mode: str) -> None:
    async with noticing(a_service(practised), mode, SKILL) as (client, heard):
        learn(practised, "Units: write them down.")
        await until(heard, 3)
        assert heard == NOTICES and "Units: " in await read(client, SKILL)
        if mode == "legacy":
            with pytest.warns(UserWarning, match="listen"):
                await client.unsubscribe_resource(SKILL)
            learn(practised, "Signs: mind them.")
            await until(heard, 5)
            assert heard[3:] == NOTICES[:2]


async def test_a_library_removed_under_it_is_an_error_until_it_is_back(practised: Path) -> None:
    from mcp import MCPError

    folder = practised / "libraries" / "rehearsal"
    async with connected(a_service(practised), "auto") as client:
        text = await read(client, SKILL)
        shutil.move(folder, practised / "gone")
        for asked in (client.list_resources(), ask(client, "skills/list"), client.list_prompts()):
            with pytest.raises(MCPError, match="there is no such library"):
                await asked
        shutil.move(practised / "gone", folder)
        assert await read(client, SKILL) == text


async def test_an_empty_library_and_one_with_an_odd_name_are_served(workspace: Path) -> None:
    for name in ("_.", "Größe 1".replace(" ", "_").replace("ö", "o").replace("ß", "ss"), "x" * 120):
        folder = Workspace(workspace).library(name if name[0].isalnum() else f"a{name}")
        folder.create(None)
        async with connected(a_service(workspace, folder.name), "auto") as client:
            (entry,) = (await ask(client, "skills/list"))["skills"]
            skill = entry["frontmatter"]["name"]
            assert entry["uri"] == f"skill://{skill}/SKILL.md" and len(skill) <= 64
            (prompt,) = (await client.list_prompts()).prompts
            assert (await client.get_prompt(prompt.name)).messages[0].content.text  # type: ignore[union-attr]


# -- by which way -----------------------------------------------------------------------------

RECORDED = b"""\
{"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"mcp","version":"0.1.0"}},"jsonrpc":"2.0","id":0}
{"method":"notifications/initialized","jsonrpc":"2.0"}
{"method":"resources/list","jsonrpc":"2.0","id":1}
{"method":"resources/read","params":{"uri":"skill://rehearsal/SKILL.md"},"jsonrpc":"2.0","id":2}
{"method":"prompts/get","params":{"name":"rehearsal"},"jsonrpc":"2.0","id":4}
"""
"""What a client by SDK 1.29 sends, byte for byte."""


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[Any, ForkedStudio]]:
    """What goes in, and the process."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [*STUDIO, "--workspace", str(folder), "library", "serve", *words]
    with ForkedStudio(command, **pipes) as server:
        yield server.stdin, server
        server.kill()


def test_the_handshake_of_an_older_client_is_answered_on_stdio_and_nothing_else_is_said_there(
    practised: Path,
) -> None:
    with served(practised, "rehearsal") as (given, server):
        given.write(RECORDED)
        given.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(4)]
        given.close()
        assert (server.stdout.read(), server.wait(60)) == (b"", 0)
        told = server.stderr.read().decode()
    assert "serving rehearsal as skill://rehearsal/SKILL.md: v2, experiences 4" in told
    assert "Traceback" not in told
    found = {answer["id"]: answer["result"] for answer in answers}
    assert found[0]["protocolVersion"] == "2025-11-25"
    assert found[0]["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    assert SKILL in [row["uri"] for row in found[1]["resources"]]
    library = Workspace(practised).library("rehearsal").head()
    assert library.guidance() in found[2]["contents"][0]["text"]
    assert found[4]["messages"][0]["content"]["text"] == library.guidance()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_its_client_says_nothing(
    practised: Path, number: signal.Signals
) -> None:
    with served(practised, "rehearsal") as (given, server):
        given.write(RECORDED.splitlines(keepends=True)[0])
        given.flush()
        assert b'"id":0' in server.stdout.readline()
        server.send_signal(number)
        assert (server.wait(60), server.stdout.read()) == (130, b"")


def test_a_client_that_closes_its_end_before_it_reads_ends_it(practised: Path) -> None:
    with served(practised, "rehearsal") as (given, server):
        server.stdout.close()
        given.write(RECORDED)
        given.close()
        assert server.wait(60) == 0 and b"Traceback" not in server.stderr.read()


async def test_by_http_pages_of_a_browser_are_kept_out_and_a_token_is_asked_for(
    practised: Path,
) -> None:
    import httpx2
    from mcp import Client

    from studio.serving.library_mcp import serve_http

    async with serve_http(a_service(practised).server, "127.0.0.1", 0, "") as url:
        async with Client(url) as client:
            assert "rehearsal" in await read(client, SKILL)
        async with httpx2.AsyncClient(trust_env=False) as http:
            for head, status in (({"Host": "evil.example"}, 421),
                                 ({"Origin": "http://evil.example"}, 403)):  # fmt: skip
                assert (await http.post(url, json={}, headers=head)).status_code == status
    async with serve_http(a_service(practised).server, "127.0.0.1", 0, TOKEN) as url:
        async with httpx2.AsyncClient(trust_env=False) as http:
            for given in ("", "Bearer", "Bearer 0123456789-abcdeg", f"Basic {TOKEN}"):
                refused = await http.post(url, json={}, headers={"Authorization": given})
                assert (refused.status_code, refused.text) == (401, "")
        own = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
        from mcp.client.streamable_http import streamable_http_client

        async with own, Client(streamable_http_client(url, http_client=own)) as client:
            assert "rehearsal" in await read(client, SKILL)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gone",), "there is no such library"),
        (("rehearsal@gone",), "it has no such label"),
        (("rehearsal@step:1",), "it is not NAME, NAME@V or NAME@LABEL"),
        (("rehearsal", "--http", "8313x"), "it is not HOST:PORT"),
        (("rehearsal", "--http", "0.0.0.0:0"), "--token-file FILE or --token-env NAME"),
        (("rehearsal", "--http", "127.0.0.1:99999"), "--http 127.0.0.1:99999: it is not HOST:PORT"),
        (("rehearsal", "--http", f"127.0.0.1:{'9' * 5000}"), "it is not HOST:PORT"),
        (("rehearsal", "--token-env", "NOT_SET"), "they are for --http"),
        (("rehearsal", "--json"), "they are for --http"),
        (("rehearsal", "--http", ":0", "--token-env", "NOT_SET"), "no token of 16 or more"),
    ],
)
def test_what_cannot_be_served_is_refused(
    practised: Path, words: tuple[str, ...], told: str
) -> None:
    done = studio("library", "serve", *words, workspace=practised)
    assert (done.code, done.stdout) == (2, "") and told in done.stderr
    assert "serving" not in done.stderr


def test_a_port_that_is_taken_is_told_by_its_own_option_before_anything_is_served(
    practised: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        done = studio("library", "serve", "rehearsal", "--http", at, workspace=practised)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"studio: --http {at}: another program listens there.")


def test_without_the_sdk_it_says_how_to_install_it(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words in (("library", "serve", "rehearsal"), ("review", "--mcp")):
        done = studio(*words, workspace=practised)
        assert done.code == 2 and "the package mcp: it is not installed. Run: " in done.stderr


@pytest.mark.live
@pytest.mark.skipif(OLDER not in os.environ, reason=f"{OLDER} names no interpreter with mcp 1.x")
@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_client_by_an_older_sdk_reads_it_and_is_told(practised: Path, way: str) -> None:
    from studio.serving.library_mcp import serve_http

    script, older = older_mcp_client.__file__, os.environ[OLDER]
    move(practised, "rehearsal@1")
    command = [sys.executable, "-m", "studio", "--workspace", str(practised), "library", "serve"]
    service = a_service(practised, "rehearsal@production")
    async with serve_http(service.server, "127.0.0.1", 0, "") as url:
        words = [url] if way == "http" else [*command, "rehearsal@production"]
        client = await asyncio.create_subprocess_exec(
            older, script, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert client.stdout is not None and client.stderr is not None
        while (line := await client.stderr.readline()) and line != b"subscribed\n":
            pass
        move(practised, "rehearsal")
        found = json.loads(await client.stdout.read())
    assert found["version"] == "2025-11-25" and len(found["notices"]) == 3
    library = Workspace(practised).library("rehearsal")
    assert found["texts"][PROMPT] == found["prompt"] == library.at(1).guidance()
    assert library.head().guidance() in found["after"]
