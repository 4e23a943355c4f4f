"""A library written in any format and read back: the same, or what is lost is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate

from engines.core.codec import to_dict
from engines.core.library import Experience, Library
from engines.core.types import Problem
from engines.record.formats import table as writing
from engines.record.formats.source import Card, Result
from engines.record.formats.table import FORMATS, read_foreign
from engines.record.run_dir import Workspace
from tests.support.builders import a_library
from tests.support.random_libraries import a_random_library

FILES = {
    **{"youtu": "agent.yaml", "skill": "a-skill", "agents": "AGENTS.md", "prompt": "prompt.txt"},
    **{"ace": "playbook.txt", "kayba": "book.json", "dspy": "program.json", "gepa": "best.json"},
    **{"json": "library.json"},
}
PINS_HELD = ("skill", "json")
RESULT = Result(
    "held-out --- set: mean reward 0.900 [0.84, 0.96] (n=100), a: model, 2026-09-29; helps",
    {"data": "held-out", "mean": 0.9},
    {"run_summary": {"delta": {"pass_rate": 0.59}}},
)


def a_card(library: Library, instructions: str = "") -> Card:
    return Card(library, (RESULT,), instructions)


def body_of(kind: str, path: Path) -> str:
    """The text that another program puts in front of a model, by its own way to read it."""
    if kind == "skill":
        return parse_frontmatter((path / "SKILL.md").read_text("utf-8"))[1]
    if kind == "youtu":
        composed = OmegaConf.create(yaml.safe_load(path.read_text("utf-8")))
        return str(OmegaConf.to_container(composed, resolve=True)["agent"]["instructions"])
    text = path.read_bytes().decode("utf-8")
    if kind == "dspy":
        return str(json.loads(text)["predict"]["signature"]["instructions"])
    return str(json.loads(text)["best_candidate"]["system_prompt"]) if kind == "gepa" else text


def write_foreign(card: Card, kind: str, path: Path) -> tuple[list[Path], list[str]]:
    return writing.write_foreign(card, kind, path, Workspace(path.parent / "practice"))


def test_every_format_has_a_file_here() -> None:
    assert set(FORMATS) == set(FILES)


@pytest.mark.parametrize("kind", FORMATS)
def test_random_libraries_come_back_the_same_or_their_loss_is_named(
    kind: str, tmp_path: Path
) -> None:
    named = 0
    for seed in range(50):
        library = a_random_library(seed)
        path = tmp_path / f"{seed}" / FILES[kind]
        files, losses = write_foreign(a_card(library, "Solve it."), kind, path)
        assert all(file.is_file() for file in files)
        if any(loss.startswith("reading it back") for loss in losses):
            assert kind == "ace" and {"E7", "E-00007"} <= {e.id for e in library.experiences}
            continue
        found = read_foreign(path)
        assert found.format == kind
        lost = " ".join(
            loss for loss in losses if loss.startswith(("the id", "the wording", "the pin"))
        )
        assert len(found.entries) == len(library.experiences)
        for one, entry in zip(library.experiences, found.entries, strict=True):
            assert entry.text == one.text
            assert entry.id == one.id or one.id in lost
            assert entry.pinned == one.pinned or "the pin of" in lost
        if kind in PINS_HELD:
            assert "the pin of" not in lost
        named += "the id of" in lost
    assert named == 0 or kind == "ace"  # which has `[slug-00001]` for ids


@pytest.mark.parametrize("kind", ["youtu", "skill", "agents", "prompt", "dspy", "gepa"])
def test_the_prompt_of_an_export_is_the_studios_byte_for_byte(kind: str, tmp_path: Path) -> None:
    for seed in (*range(1, 40), 45, 50):
        library, path = a_random_library(seed), tmp_path / f"{seed}" / FILES[kind]
        write_foreign(a_card(library), kind, path)
        body, guidance = body_of(kind, path), library.guidance()
        if kind == "agents":
            begin = f"<!-- practice-studio:begin {library.name} -->\n"
            assert body.startswith(begin + guidance + "\n\n<!-- library ")
        else:
            assert body.encode() == guidance.encode()


def test_instructions_of_youtu_are_the_system_message_of_the_studios_agent(tmp_path: Path) -> None:
    library, path = a_library("Cost ${price} \\${x}."), tmp_path / "agent.yaml"
    write_foreign(a_card(library, "Solve it.\nEnd with #### ${answer}\n"), "youtu", path)
    composed = body_of("youtu", path)
    assert composed == f"Solve it.\nEnd with #### ${{answer}}\n\n{library.guidance()}"


def test_a_skill_passes_its_owners_check_whatever_it_holds(tmp_path: Path) -> None:
    for seed in range(0, 200, 5):
        path = tmp_path / f"skill-{seed}"
        write_foreign(a_card(a_random_library(seed)), "skill", path)
        assert validate(path) == []
        assert (path / "SKILL.md").read_text("utf-8").split("---\n", 2)[2].count("\n") < 500


def test_a_large_skill_holds_the_rest_in_a_reference(tmp_path: Path) -> None:
    library = a_library(*(f"Rule {number}." for number in range(700)))
    write_foreign(a_card(library), "skill", tmp_path / "many")
    rest = (tmp_path / "many/references/experiences.md").read_text("utf-8")
    assert "[E481] Rule 480." in rest and "[E480]" not in rest
    assert "There are 220 more: read references/experiences.md." in body_of(
        "skill", tmp_path / "many"
    )


def test_a_skill_takes_evals_and_a_benchmark_along(tmp_path: Path) -> None:
    card = replace(
        a_card(a_library("Carry.")), evals=(Problem("p1", "1+1?", "2"), Problem("p2", "Why?"))
    )
    write_foreign(card, "skill", tmp_path / "sums")
    evals = json.loads((tmp_path / "sums/evals/evals.json").read_text())
    assert evals["skill_name"] == "sums"
    assert evals["evals"] == [
        {"id": "p1", "prompt": "1+1?", "expected_output": "2", "files": [], "assertions": []},
        {"id": "p2", "prompt": "Why?", "expected_output": "", "files": [], "assertions": []},
    ]
    assert json.loads((tmp_path / "sums/benchmark.json").read_text()) == RESULT.benchmark


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "prompt"])
def test_the_card_travels_with_worth_and_uses(kind: str, tmp_path: Path) -> None:
    library = next(
        lib for lib in map(a_random_library, range(1, 99)) if lib.notes.effects and lib.notes.uses
    )
    path = tmp_path / FILES[kind]
    files, _ = write_foreign(a_card(library), kind, path)
    written = "\n".join(file.read_text("utf-8") for file in files)
    if kind in ("dspy", "gepa", "json"):
        card = json.loads(written)
        card = card["metadata"] if kind == "dspy" else card
        assert card["evaluation"]["results"] == [{"data": "held-out", "mean": 0.9}]
    else:
        assert "mean reward 0.900 [0.84, 0.96] (n=100), a: model, 2026-09-29; helps" in written
    for effect in library.notes.effects.values():
        assert effect.worth in written
    for uses in library.notes.uses.values():
        assert uses.text in written


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_says_of_which_version_it_is_and_nothing_of_it_is_no_experience(
    kind: str, tmp_path: Path
) -> None:
    library, path = replace(a_library("Carry."), name="my--sums", version=7), tmp_path / FILES[kind]
    _, losses = write_foreign(a_card(library, "Solve it.\n\nThink."), kind, path)
    found = read_foreign(path)
    assert found.exported == (None if kind == "prompt" else ("my--sums", 7))
    assert kind == "prompt" or found.name == "my--sums"
    assert ("its card: results, worth and uses" in losses) == (kind == "prompt")
    assert found.losses == ()
    if kind == "youtu":
        assert read_foreign(path.rename(tmp_path / "lib.txt")).exported == ("my--sums", 7)


def test_our_json_holds_all_of_a_version(tmp_path: Path) -> None:
    library = a_random_library(7)
    write_foreign(Card(library), "json", tmp_path / "all.json")
    data = json.loads((tmp_path / "all.json").read_text("utf-8"))
    assert data["experiences"] == json.loads(json.dumps([to_dict(e) for e in library.experiences]))
    assert (data["library"], data["version"]) == (library.name, library.version)


def test_an_id_that_reads_as_another_is_named_as_lost(tmp_path: Path) -> None:
    entries = (Experience("E-00007", "One."), Experience("E9", "Two.", pinned=True))
    card = Card(Library("lib", 1, entries, 10))
    _, losses = write_foreign(card, "ace", tmp_path / "playbook.txt")
    assert losses == ["the id of E-00007", "the pin of E9"]
    clash = Card(Library("lib", 1, (*entries, Experience("E7", "Three.")), 10))
    _, (loss,) = write_foreign(clash, "ace", tmp_path / "clash.txt")
    assert "the id E7 stands there twice" in loss
