"""An agent file of Youtu-Agent: experiences at the end of its instructions.

It is composed by Hydra, so `${` stands escaped. Its model is the one of the checkout.
"""

from pathlib import Path

from engines.record.formats.prompt import read_lines
from engines.record.formats.source import Card, ForeignLibrary, Source
from engines.record.yaml_text import dump_yaml, escape_interpolation, unescape_interpolation

PACKAGE = "# @package _global_\n"  # begins an agent file, whatever its name ends in
MOVE = "Give an agent file of Youtu-Agent, whose agent.instructions hold experiences."


def write(card: Card) -> bytes:
    """The instructions are the system message of the studio's agent, without a call to cite."""
    text = "\n\n".join(filter(None, (card.instructions.strip(), card.library.guidance())))
    agent = {"name": card.library.name, "instructions": escape_interpolation(text)}
    body = {"defaults": ["/model/base@model", "_self_"], "type": "simple", "agent": agent}
    comments = "".join(f"# {line}\n" for line in card.lines())
    return f"{PACKAGE}{comments}{dump_yaml(body)}".encode("utf-8", "replace")


def read(path: Path) -> ForeignLibrary:
    source, inside = Source(path, MOVE), ""
    agent = source.yaml()
    while "instructions" not in agent and inside != ": agent.agent":
        inside += ".agent" if inside else ": agent"  # a whole run file has it one level deeper
        agent = source.mapping(agent.get("agent"), inside)
    text = source.string(agent.get("instructions"), f"{inside}.instructions")
    found, losses = read_lines(unescape_interpolation(text))
    placed = [(f"{inside}.instructions", entry) for _, entry in found]
    card = source.first_line("# library ")
    return source.library("youtu", placed, losses, agent.get("name"), card)
