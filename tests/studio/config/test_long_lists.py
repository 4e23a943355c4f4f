"""A long list of experiences is composed past OmegaConf, and nothing of it comes out otherwise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from engines.core.errors import StudioError
from engines.record.yaml_text import unescape_interpolation
from studio.config import long_lists
from studio.config.compose import compose_run, resolve
from studio.config.tree import REFERENCE

ROWS = [{"id": f"E{n}", "text": f"Größe {n}: wenn, dann “so” # kein Kommentar"} for n in range(250)]
RUN = "policy: rehearsal\n{}seed: 7\n"


def block(indent: str, rows: str) -> str:
    return "".join(f"{indent}{line}\n" for line in rows.splitlines())


def in_blocks(indent: str) -> str:
    return block(indent, BLOCK)


BLOCK = yaml.safe_dump(ROWS, allow_unicode=True, width=1000)
FLOW = yaml.safe_dump(ROWS, default_flow_style=True, allow_unicode=True, width=60).strip()
FORMS: dict[str, str] = {
    "a block": RUN.format(f"agent:\n  experiences:\n{in_blocks('    ')}  name: a\n"),
    "a block at the indent of its key": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}  name: a\n"
    ),
    "the end of the file": RUN.format("") + f"agent:\n  experiences:\n{in_blocks('  ')}",
    "comments": RUN.format(
        f"agent:\n  experiences: # all\n{in_blocks('    ')}  # end\n  name: a\n"
    ),
    "one line": RUN.format("agent: {name: a, experiences: " + FLOW + ", cite: false}\n"),
    "windows": RUN.format(f"agent:\n  experiences:\n{in_blocks('  ')}").replace("\n", "\r\n"),
    "a mark of the encoding": "\ufeff" + RUN.format(f"agent:\n  experiences:\n{in_blocks('  ')}"),
    "TeX": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}".replace("Größe", "$\\frac{1}{2}$ and \\${x}")
    ),
    "a name for a text that stands before": RUN.format("exp_id: &it abc\nagent:\n  experiences:\n")
    + in_blocks("  ")
    + "  - {id: E999, text: *it}\n",
    "a name for it that stands after": RUN.format(f"agent:\n  experiences: &all\n{in_blocks('  ')}")
    + "notes: *all\n",
    "a name for an entry that stands after": RUN.format(
        f"agent:\n  experiences:\n  - &first {{id: E0, text: a}}\n{in_blocks('  ')}"
    )
    + "notes: *first\n",
    "it stands where its name does": RUN.format(f"notes: &all\n{in_blocks('  ')}")
    + "agent: {name: a, experiences: *all}\n",
    "a key after a question mark": RUN.format(
        f"agent:\n  ? experiences\n  :\n{in_blocks('    ')}  ? name\n  : a\n"
    ),
    "a key twice in an entry": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}  - {{id: E999, text: a, text: b}}\n"
    ),
    "what is referred to": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}exp_id: ${{agent.experiences.3.id}}\n"
    )
    + "notes: {of: '${agent}', all: '${agent.experiences}'}\n",
    "a key twice after it": RUN.format(f"agent:\n  experiences:\n{in_blocks('  ')}") + "seed: 8\n",
    "what no constructor reads": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}  - {{id: E999, text: !!int abc}}\n"
    ),
    "what OmegaConf reads": RUN.format(
        f"agent:\n  experiences:\n{in_blocks('  ')}".replace("Größe 3:", "${seed}:")
    ),
}


def composed(file: Path) -> object:
    try:
        found = compose_run(file, ["practice.epochs=1"], ())
        place = found.place(("agent", "experiences", "9", "text")).text
        return found.tree, place, resolve(found, {})
    except StudioError as error:
        return str(error)


@pytest.mark.parametrize("form", FORMS)
def test_it_composes_to_what_it_would_without(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(FORMS[form].encode())
    now = composed(file)
    monkeypatch.setattr(long_lists, "LONG", 10**9)
    assert now == composed(file)


def test_what_is_escaped_reads_as_omegaconf_reads_it() -> None:
    chance = random.Random(3)
    parts = ["\\", "\\", "$", "{", "${", "}", "a", "\\${", " ", ":", "'"]
    texts = {"".join(chance.choices(parts, k=chance.randint(1, 9))) for _ in range(4_000)}
    escaped = [text for text in texts if "${" in text and not REFERENCE.search(text)]
    assert len(escaped) > 200
    for text in escaped:
        assert unescape_interpolation(text) == OmegaConf.create({"a": text})["a"], text


@pytest.mark.parametrize("mounted", [False, True])
def test_omegaconf_does_not_see_it(tmp_path: Path, mounted: bool) -> None:
    """Else each of 10,000 experiences cost two milliseconds."""
    file = tmp_path / "run.yaml"
    if mounted:
        (tmp_path / "agents").mkdir()
        (tmp_path / "agents" / "big.yaml").write_text(f"experiences:\n{in_blocks('')}")
        file.write_text("defaults: [agents/big@agent, _self_]\npolicy: rehearsal\n")
    else:
        file.write_text(FORMS["a block"])
    seen: list[int] = []
    load, create = OmegaConf.load, OmegaConf.create

    def create_seen(*what: Any, **more: Any) -> object:
        seen.append(len(repr(what)))
        return create(*what, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "create", create_seen)
        found = compose_run(file, [], ())
    assert seen and max(seen) < 1_000
    assert found.tree["agent"]["experiences"] == ROWS
    assert OmegaConf.load is load


def test_an_override_of_one_experience_still_counts(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FORMS["a block"])
    found = compose_run(file, ["agent.experiences=[]"], ())
    assert found.tree["agent"]["experiences"] == []


def test_what_is_read_is_given_back_where_composing_fails(tmp_path: Path) -> None:
    file, load = tmp_path / "run.yaml", OmegaConf.load
    file.write_text(FORMS["a block"] + "defaults: [nobody/here]\n")
    with pytest.raises(Exception, match="nobody"):
        compose_run(file, [], ())
    assert OmegaConf.load is load
