"""A client by SDK 1.x, run by an interpreter that has it: reads a server, and prints what it read.

    python older_mcp_client.py URL | COMMAND WORD …

It subscribes to the first resource, says "subscribed" on standard error, and waits for notices.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


async def main(words: list[str]) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamablehttp_client

    notices: list[str] = []
    enough = asyncio.Event()

    async def take(message: Any) -> None:
        method = getattr(getattr(message, "root", None), "method", "")
        if method.endswith(("changed", "updated")):
            notices.append(method)
            if len(notices) == 3:
                enough.set()

    if words[0].startswith("http"):
        transport: Any = streamablehttp_client(words[0])
    else:
        transport = stdio_client(StdioServerParameters(command=words[0], args=words[1:]))
    async with transport as streams, ClientSession(*streams[:2], message_handler=take) as session:
        started = await session.initialize()
        resources = (await session.list_resources()).resources
        texts = {
            str(r.uri): (await session.read_resource(r.uri)).contents[0].text for r in resources
        }
        prompt = (await session.list_prompts()).prompts[0]
        said = (await session.get_prompt(prompt.name)).messages[0]
        await session.subscribe_resource(resources[0].uri)
        print("subscribed", file=sys.stderr, flush=True)
        await enough.wait()
        after = (await session.read_resource(resources[0].uri)).contents[0].text
        found = {
            "version": started.protocolVersion,
            "texts": texts,
            "prompt": said.content.text,
            "notices": notices,
            "after": after,
        }
        print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
