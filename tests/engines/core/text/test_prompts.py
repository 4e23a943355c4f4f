"""Prompt files are rendered strictly, and foreign text stays inside its quotes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.library import guidance_text
from engines.core.text.prompts import PACKAGES, load_prompt, parse_prompt, prompt_hashes, quote
from engines.verifiers.judge import DEFAULT_RUBRIC
from studio.config.settings.agent import DEFAULT_INSTRUCTIONS
from studio.config.settings.run import PracticeConfig

FILE = "---\nvariables: [who, what]\nreturns: text\n---\n\nTell {{who}} about {{what}}, {{who}}.\n"


def test_a_prompt_is_filled_in_wherever_its_variables_stand() -> None:
    prompt = parse_prompt("p", FILE)
    assert prompt.render(who="Ann", what="it") == "Tell Ann about it, Ann."
    assert prompt.returns == "text"


def test_values_are_not_rendered_again() -> None:
    rendered = parse_prompt("p", FILE).render(who="{{what}}", what=r"\1 {{who}}")
    assert rendered == r"Tell {{what}} about \1 {{who}}, {{what}}."


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"who": "x"}, r"missing \['what'\]"),
        ({"who": "x", "what": "y", "why": "z"}, r"unused \['why'\]"),
    ],
)
def test_a_missing_or_unused_variable_is_refused(values: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_prompt("p", FILE).render(**values)


def test_a_prompt_must_declare_exactly_what_its_body_uses() -> None:
    for changed in (FILE.replace("who, what", "who"), FILE.replace("{{what}}", "it")):
        with pytest.raises(ValueError, match="declares"):
            parse_prompt("p", changed)


def test_a_prompt_without_variables_needs_none() -> None:
    prompt = parse_prompt("p", "---\nvariables: []\nreturns: text\n---\nHello.\n")
    assert prompt.render() == "Hello."


def test_the_hash_covers_front_matter_and_body() -> None:
    made = {
        parse_prompt("p", text).hash
        for text in (FILE, FILE.replace("Tell", "Told"), FILE.replace("text", "words"))
    }
    assert len(made) == 3


@pytest.mark.parametrize(
    "name",
    ["summarise", "extract", "contrast", "critique", "credit", "reviewed", "consolidate", "repair"],
)
def test_every_shipped_prompt_loads_and_renders(name: str) -> None:
    prompt = load_prompt("engines.training_free", name)
    rendered = prompt.render(**{variable: f"<{variable}>" for variable in prompt.variables})
    assert all(f"<{variable}>" in rendered for variable in prompt.variables)
    assert "{{" not in rendered


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["# Task", "\n", "\r", "\v", "\x85", "\u2028", "x"])).map("".join))
def test_no_line_of_quoted_text_can_pass_for_a_heading(text: str) -> None:
    for line in re.split(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", quote(text)):
        assert line.startswith("|")


def test_a_quotation_shows_what_hides_or_reorders_and_keeps_what_a_script_needs() -> None:
    hidden = "ignore\u200b this\U000e0041\u202e\x1b[8m and \x00"
    assert quote(hidden) == "| ignore\\u200b this\\U000e0041\\u202e\\u001b[8m and \\u0000"
    assert quote("می\u200cخواهم\r# Heading\u2028* item") == "| می\u200cخواهم\n| # Heading\n| * item"


def test_every_prompt_file_of_a_package_is_named_with_its_hash() -> None:
    hashes = prompt_hashes()
    rooms = ("room_left", "room_open")
    own = ("core/cite", "core/guidance")
    names = ("consolidate", "contrast", "credit", "critique", "extract", "pinned")
    names = (*names, "repair", "reviewed", *rooms, "summarise")
    listed = [name for name in hashes if name.startswith(("core/", "training_free/"))]
    assert listed == [*own, *(f"training_free/{name}" for name in names)]
    assert hashes["training_free/extract"] == load_prompt("engines.training_free", "extract").hash


def test_what_stood_in_code_before_is_sent_letter_by_letter() -> None:
    # The records of older runs are found by the hash of the whole request.
    assert guidance_text([("E1", "Carry: {{experiences}}"), ("E2", "")]) == (
        "## Experiences from earlier practice\n"
        "Use each one where its condition holds, and leave it aside where it does not.\n"
        "\n"
        "[E1] Carry: {{experiences}}\n"
        "[E2] "
    )
    assert guidance_text([]) == ""
    assert DEFAULT_INSTRUCTIONS == (
        "You solve one problem at a time.\n"
        "Work it out step by step and write every step down.\n"
        "Finish with a line of its own that holds nothing but the answer: #### answer"
    )
    assert DEFAULT_RUBRIC == (
        "The response is right when the final answer it states means the same as an expected "
        "answer.\n"
        "Units, notation, wording and the way to the answer do not matter. An answer that is left\n"
        "open, that hedges between several, or that only contains the expected one among others\n"
        "is wrong. Where no answer is expected, work the problem out yourself first."
    )
    practice = PracticeConfig()
    assert practice.agent_objective == (
        "input: a problem; output: its solution step by step, the answer on the last line"
    )
    assert practice.learning_objective == (
        "Find short, general rules that prevent the mistakes seen in these tries."
    )
    open_, left = (load_prompt("engines.training_free", f"room_{n}") for n in ("open", "left"))
    assert open_.render() == (
        "The library may grow, but every experience costs room in every prompt."
    )
    assert left.render(held="3", limit="50", left="47") == (
        "The library holds 3 of at most 50: 47 may be added."
    )


def test_a_run_names_the_hash_of_every_prompt_file_there_is() -> None:
    root = Path(__file__).parents[4]
    files = [p for top in ("engines", "studio") for p in (root / top).rglob("prompts/*.md")]
    packages = {".".join(p.parent.parent.relative_to(root).parts) for p in files}
    assert packages == set(PACKAGES)
    assert len(prompt_hashes()) == len(files)  # no two of one name


SHARED = {"agent_objective", "learning_objective", "library", "tools", "rubric", "form"}
"""What all questions of a step have in common, with what is fixed."""
ASKED_MANY_TIMES = [
    *(("engines.policies", n) for n in ("analyse", "plan", "command", "check", "answer")),
    ("engines.verifiers", "judge"),
    ("engines.training_free", "summarise"),
]


@pytest.mark.parametrize(("package", "name"), ASKED_MANY_TIMES)
def test_what_questions_of_a_kind_share_stands_first_so_that_caches_hit(
    package: str, name: str
) -> None:
    prompt = load_prompt(package, name)
    places = {variable: prompt.body.find("{{" + variable + "}}") for variable in prompt.variables}
    own = min(place for variable, place in places.items() if variable not in SHARED)
    rules = [match.start() for match in re.finditer(r"^## Reply$", prompt.body, re.MULTILINE)]
    assert (
        max([place for variable, place in places.items() if variable in SHARED] + rules, default=-1)
        < own
    )
