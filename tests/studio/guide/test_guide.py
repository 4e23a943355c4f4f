"""The manual says what is so: its commands, settings, keys and links exist.

That its blocks run is shown by tests/test_readme.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studio.cli import build_parser
from studio.commands.reference.guide import format_page
from studio.config.settings.run import section_of
from studio.guide import TOPICS, find_pages, title_of
from tests.studio.guide.key_tables import PAGE, with_key_tables
from tests.support.run_studio import studio

GUIDE = PAGE.parent
README = Path(__file__).parents[3] / "README.md"
PAGES = {path.name: path.read_text("utf-8") for path in (README, *sorted(GUIDE.glob("*.md")))}
SECTIONS = "agent|budget|data|evaluation|grpo|library|lint|policy|practice|review|sft"


def test_every_page_is_a_topic_and_every_topic_a_page() -> None:
    assert {path.stem for path in GUIDE.glob("*.md")} == set(TOPICS)


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    text = PAGES["README.md"]
    assert len(text.splitlines()) <= 150
    assert [topic for topic in TOPICS if f"(studio/guide/{topic}.md)" not in text] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    folder = README.parent if name == "README.md" else GUIDE
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[name])
    assert [link for link in links if not (folder / link).exists()] == []


def commands(text: str) -> Iterator[str]:
    """Command lines of the studio, in blocks and in running text."""
    for block in re.findall(r"^```(?:bash run)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from (line for line in block.splitlines() if line.startswith("studio "))
    yield from re.findall(r"`(studio [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_options_that_a_page_names_exist(name: str) -> None:
    wrong = []
    for line in commands(PAGES[name]):
        command: Any = build_parser()
        for word in shlex.split(line.replace("…", ""), comments=True)[1:]:
            word = word.rstrip(",")
            inner = getattr(command, "commands", {})
            if word.startswith("-") and len(word) > 1:
                if not any(word.partition("=")[0] in p.opts for p in command.params):
                    wrong.append(line)
            elif word in inner:
                command = inner[word]
            elif inner and not word.startswith("-") and not command.invoke_without_command:
                wrong.append(line)
    assert wrong == []


@pytest.mark.parametrize("name", PAGES)
def test_settings_that_a_page_names_exist(name: str) -> None:
    found = set(re.findall(rf"\b((?:{SECTIONS})(?:\.[a-z_]+)+)(?==|`|:| )", PAGES[name]))
    wrong = []
    files = {"agent.yaml", "agent.py", "evaluation.md"}
    # The id of a key, and a field of Youtu-Agent.
    for key in found - files - {"review.approve", "agent.toolkits"}:
        *parents, last = key.split(".")
        kinds = getattr(section_of(tuple(parents)), "__mro__", ())
        if not any(last in vars(kind).get("__annotations__", {}) for kind in kinds):
            wrong.append(key)
    assert wrong == []


def test_the_tables_of_keys_are_those_of_the_screen() -> None:
    """`python -m tests.studio.guide.key_tables` writes them."""
    assert PAGES["screen.md"] == with_key_tables(PAGES["screen.md"])


def test_guide_alone_lists_the_pages(tmp_path: Path) -> None:
    done = studio("guide", workspace=tmp_path)
    assert done.code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(TOPICS)
    listed = json.loads(studio("guide", "--json", workspace=tmp_path).stdout)
    assert listed[0] == {"topic": "first-session", "title": "A first session"}


def test_a_pipe_gets_markdown_whose_links_are_commands(tmp_path: Path) -> None:
    done = studio("guide", "first-session", workspace=tmp_path)
    assert done.stdout.startswith("# A first session\n")
    assert "the screen (`studio guide screen`)" in done.stdout
    assert "](" not in done.stdout


def test_a_terminal_gets_it_formatted() -> None:
    shown = format_page("# Title\n\n* one\n\n| a | b |\n|---|---|\n| c | d |\n")
    assert "\x1b[1m" in shown
    assert "# Title" not in shown
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines())) <= 100


def test_a_page_that_is_not_there_is_refused_with_those_that_hold_the_word(tmp_path: Path) -> None:
    done = studio("guide", "lora", workspace=tmp_path)
    assert done.code == 2
    assert "Did you mean weights or python or glossary?" in done.stderr
    done = studio("guide", "wieghts", workspace=tmp_path)
    assert "Did you mean weights?" in done.stderr
    assert "There are: first-session" in studio("guide", "qqqq", workspace=tmp_path).stderr


def test_pages_are_found_by_their_headings_first() -> None:
    assert find_pages("pinned experiences")[0] == "review"
    assert find_pages(" ") == []
    assert title_of("costs") == "Costs"
