"""A small program as the agent: it asks a model, and once more where no answer was given.

It knows nothing of the studio. The question comes on standard input, the model answers at the
address and with the key that every client of OpenAI's protocol reads from the environment, and the
last line of what is printed is the answer. The standard library is all that it needs.
"""

import json
import os
import sys
import urllib.request


def ask(messages):
    """The reply of the model to a conversation."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "default", "messages": messages}).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def main():
    """Ask, and ask again for the answer where the reply has none."""
    messages = [{"role": "user", "content": sys.stdin.read()}]
    reply = ask(messages)
    if "####" not in reply:
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": "End with a line `#### ANSWER`."},
        ]
        reply = ask(messages)
    print(reply)


if __name__ == "__main__":
    main()
