"""An agent that streams and loops over tool calls: the question in the file it is told."""

import json
import sys
from pathlib import Path

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]
client = OpenAI()
messages = [{"role": "user", "content": Path(sys.argv[1]).read_text(encoding="utf-8")}]
for _turn in range(10):
    with client.chat.completions.stream(model="any", messages=messages, tools=TOOLS) as stream:
        said = stream.get_final_completion().choices[0].message
    if not said.tool_calls:
        break
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in said.tool_calls
    ]
    messages.append({"role": "assistant", "content": said.content, "tool_calls": calls})
    for call in said.tool_calls:
        given = json.loads(call.function.arguments)
        total = {"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])}
        messages.append(total)
Path("answer.txt").write_text(said.content or "", encoding="utf-8")
Path("reward.json").write_text(json.dumps({"reward": 0.5, "turns": _turn + 1}), encoding="utf-8")
