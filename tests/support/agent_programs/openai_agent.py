"""An agent on the openai SDK: the question as its argument, one call."""

import sys

from openai import OpenAI

client = OpenAI()
reply = client.chat.completions.create(
    model="gpt-4o-mini",
    temperature=0.1,
    messages=[{"role": "user", "content": sys.argv[1]}],
)
print(reply.choices[0].message.content)
