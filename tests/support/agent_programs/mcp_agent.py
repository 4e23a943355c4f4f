"""An agent that lends the model the tools of an MCP server, which it starts itself.

`mcp_agent.py --server` is that server. It does without the SDK, whose import takes a second of
every try.
"""

import asyncio
import json
import sys
from typing import Any

SERVER = "--server" in sys.argv


ADD = {
    "name": "add",
    "description": "Add two whole numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            answer = {"jsonrpc": "2.0", "id": asked["id"], **answer_request(asked)}
            print(json.dumps(answer), flush=True)


def answer_request(asked: dict[str, Any]) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            served = {"serverInfo": {"name": "sums", "version": "1"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": version, **served}}
        case "tools/list":
            return {"result": {"tools": [ADD]}}
        case "tools/call":
            given = asked["params"]["arguments"]
            return {"result": {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}}
        case other:
            return {"error": {"code": -32601, "message": f"{other} is not known here"}}


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
