"""An agent of the standard library alone: the question on standard input, one call."""

import json
import os
import sys
import urllib.request

question = sys.stdin.read()
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "any", "messages": [{"role": "user", "content": question}]}).encode(),
    {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    },
)
with urllib.request.urlopen(request) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
