"""Real MCP servers, made with the SDK, and some that answer what no server should.

Run as a program over stdio with the name of one; `serve_http` has the honest one on a port.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:  # each worker of a test run reads this file, and the SDK takes a second to import
    from mcp.server import MCPServer

ODD: dict[str, Any] = {
    "array": [{"name": "odd", "inputSchema": {"type": "array"}}],
    "required": [{"name": "odd", "inputSchema": {"type": "object", "required": ["x"]}}],
    "large": [{"name": "odd", "inputSchema": {"type": "object", "$comment": "y" * 30_000}}],
    "nameless": [{"inputSchema": {"type": "object"}}],
    "no-list": "tools",
    "hidden": [
        {
            "name": "odd name",
            "description": "Adds.\u202e" + "x" * 5_000,
            "inputSchema": {"type": "object", "properties": {"x": {"description": "\x1b[2J"}}},
        }
    ],
}


def honest_server() -> MCPServer:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Image
    from mcp.types import ToolAnnotations

    server = MCPServer("honest")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def environment() -> str:
        """Name the environment variables of the server."""
        return " ".join(sorted(os.environ))

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        """Draw."""
        return ["Here:", Image(data=b"x" * 300, format="png")]

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ValueError("the disk is full")

    @server.tool()
    async def hang() -> str:
        """Answer never."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    def die() -> str:
        """End the server."""
        print("out of paper", file=sys.stderr, flush=True)
        os._exit(3)

    return server


@asynccontextmanager
async def serve_http(
    port: int = 0,
    server: MCPServer | None = None,
) -> AsyncIterator[int]:
    """A server on a port of the loopback interface."""
    app = (server or honest_server()).streamable_http_app()

    config = uvicorn.Config(app, "127.0.0.1", port, log_level="error", timeout_graceful_shutdown=1)
    served = uvicorn.Server(config)
    served.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(served.serve())
    while not served.started:
        await asyncio.sleep(0)
    try:
        yield served.servers[0].sockets[0].getsockname()[1]
    finally:
        served.should_exit = True
        await task


def answer_oddly(tools: Any) -> None:
    """Speak the protocol of 2025 by hand, and list these tools."""
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                result: Any = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "odd", "version": "1"},
                }
            case "tools/list":
                result = {"tools": tools}
            case "tools/call":
                result = {"content": "no list"}
            case _ if "id" in message:
                error = {"code": -32601, "message": "no such method"}
                print(
                    json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True
                )
                continue
            case _:
                continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    match sys.argv[1]:
        case "honest":
            honest_server().run("stdio")
        case "silent":
            sys.stdin.read()
        case "broken":
            sys.exit("no licence")
        case name:
            answer_oddly(ODD[name])
