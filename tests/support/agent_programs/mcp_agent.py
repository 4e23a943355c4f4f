"""An agent that lends the model the tools of an MCP server, which it starts itself.

`mcp_agent.py --server` is that server.
"""

import asyncio
import json
import sys

SERVER = "--server" in sys.argv


def serve() -> None:
    from mcp.server import MCPServer

    server = MCPServer("sums")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two whole numbers."""
        return a + b

    server.run("stdio")


async def main() -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    server = StdioServerParameters(command=sys.executable, args=[__file__, "--server"])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": False,
            }
            for tool in (await session.list_tools()).tools
        ]
        items = [{"role": "user", "content": sys.stdin.read()}]
        while True:
            reply = await client.responses.create(model="any", input=items, tools=tools)
            calls = [item for item in reply.output if item.type == "function_call"]
            items += [item.model_dump() for item in reply.output]
            if not calls:
                break
            for call in calls:
                result = await session.call_tool(call.name, json.loads(call.arguments))
                output = {"type": "function_call_output", "call_id": call.call_id}
                items.append({**output, "output": result.content[0].text})
        print(reply.output_text)


serve() if SERVER else asyncio.run(main())
