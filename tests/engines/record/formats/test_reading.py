"""Files of other programs as they write them, and files that are none."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core.errors import DataError
from engines.record.formats import source
from engines.record.formats.source import ForeignEntry
from engines.record.formats.table import TABLE, read_foreign
from tests.support.builders import a_library

Write = Callable[[str, object], Path]

YOUTU = """\
# @package _global_
defaults:
  - _self_

type: simple
agent:
  name: sums_agent
  instructions: "Work it out.\\n\\nRead these experiences first:\\n[G0]. Units: keep them.\\n\\
    [G1]. Signs: check \\\\${them}."
"""
SKILL = """\
---
name: sums
description: Adds numbers.
metadata: {pinned: none}
---
# Sums

1. Carry the ten
   into the next column.
2. Check.

Ask when unsure.
"""
ACE = """\
## STRATEGIES & INSIGHTS
[str-00001] helpful=5 harmful=0 :: Check: a :: b
[str-00003] helpful=0 harmful=2 neutral=1 :: Carry.

## OTHERS
free words
"""
KAYBA = {
    "skills": {
        "math-00001": {
            **{"id": "math-00001", "section": "math", "content": "Carry.", "status": "active"},
            **{"justification": "It failed.", "evidence": None, "helpful": 3, "embedding": [0.5]},
        },
        "math-00002": {"id": "math-00002", "section": "math", "content": "x", "status": "invalid"},
        "context-00003": {"id": "context-00003", "issue": "Borrowing", "insight": "Borrow ten."},
    },
    "sections": {"math": ["math-00001", "math-00002"]},
    "next_id": 3,
    "similarity_decisions": {"a,b": {"decision": "KEEP"}},
}
DSPY = {
    "solve.predict": {
        "signature": {"instructions": "Solve it.\n- Carry.\n- Borrow.", "fields": []},
        **{"traces": [], "train": [], "demos": [{"q": 1}], "lm": {"model": "m"}},
    },
    "metadata": {"dependency_versions": {"dspy": "3.3.1"}},
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, "utf-8")
        return path

    return to_file


def test_an_agent_file_of_youtu_is_read_from_its_instructions(write: Write) -> None:
    found = read_foreign(write("x_agent.yaml", YOUTU))
    assert (found.format, found.name) == ("youtu", "sums_agent")
    assert [(e.id, e.text) for e in found.entries] == [
        ("G0", "Units: keep them."),
        ("G1", "Signs: check ${them}."),
    ]
    assert found.losses == ("2 lines of text that is no experience",)


def test_a_skill_of_somebody_else_is_read_from_its_list(write: Write) -> None:
    path = write("sums/SKILL.md", SKILL)
    for given in (path, path.parent):
        found = read_foreign(given)
        assert (found.format, found.name) == ("skill", "sums")
        assert [e.text for e in found.entries] == ["Carry the ten into the next column.", "Check."]
        assert found.losses == ("2 lines of text that is no experience",)


def test_a_playbook_keeps_sections_and_counts(write: Write) -> None:
    found = read_foreign(write("playbook.txt", ACE))
    section = "STRATEGIES & INSIGHTS"
    assert found.entries == (
        ForeignEntry("str-00001", "Check: a :: b", section, "helpful=5 harmful=0"),
        ForeignEntry("str-00003", "Carry.", section, "helpful=0 harmful=2 neutral=1"),
    )
    assert found.losses == ("1 line of text that is no entry",)


def test_a_skillbook_leaves_out_what_is_invalid_and_says_so(write: Write) -> None:
    found = read_foreign(write("book.json", KAYBA))
    assert found.format == "kayba"
    assert [(e.id, e.text, e.section) for e in found.entries] == [
        ("math-00001", "Carry.", "math"),
        ("context-00003", "Borrow ten.", ""),
    ]
    assert found.entries[0].note == "helpful=3; justification=It failed."
    assert found.losses == ("math-00002, which is marked invalid", "decisions about similar skills")


def test_a_program_of_dspy_gives_its_instructions_and_drops_its_model(write: Write) -> None:
    found = read_foreign(write("program.json", DSPY))
    assert (found.format, [e.text for e in found.entries]) == ("dspy", ["Carry.", "Borrow."])
    assert found.losses[-2:] == ("solve.predict: its demos", "solve.predict: its lm")


@pytest.mark.parametrize(
    "data",
    [
        {"best_candidate": {"a": "- Carry.", "b": "- Borrow."}},
        {"best_candidate": "- Carry.\n- Borrow."},
        {"candidates": [{"a": "x"}, {"a": "* Carry.\n* Borrow."}], "best_idx": 1},
        {"system_prompt": "Carry.\n\nBorrow."},
    ],
)
def test_gepa_is_read_in_each_of_its_shapes(data: object, write: Write) -> None:
    found = read_foreign(write("best.json", data))
    assert (found.format, [e.text for e in found.entries]) == ("gepa", ["Carry.", "Borrow."])


def test_a_list_without_markers_in_agents_md_is_read(write: Write) -> None:
    path = write("AGENTS.md", "# Rules\r\n\r\n- Run the tests.\r\n- [ ] Lint.\r\n")
    found = read_foreign(path, "agents")
    assert (found.format, [e.text for e in found.entries]) == (
        "agents",
        ["Run the tests.", "[ ] Lint."],
    )
    assert found.losses == ("1 line of text that is no experience",)


@pytest.mark.parametrize(("name", "kind"), [("AGENTS.md", "agents"), ("notes.txt", "prompt")])
def test_prose_is_no_library_unless_somebody_says_so(name: str, kind: str, write: Write) -> None:
    path = write(name, "Dear Ann,\n\n- the tests pass\n")
    with pytest.raises(DataError, match=f"no line of it carries an id. .* --format {kind}"):
        read_foreign(path)
    assert [e.text for e in read_foreign(path, kind).entries] == ["the tests pass"]
    assert read_foreign(write(name, "[G12] Carry.")).format == kind


def test_our_own_files_are_read_with_pins_and_worth(write: Write) -> None:
    rows = "- {id: E1, text: Carry., pinned: true, worth: '+0.1 helps'}\n- {id: E3, text: '42'}\n"
    found = read_foreign(write("v0007.yaml", f"library: sums\nversion: 7\nexperiences:\n{rows}"))
    assert (found.format, found.name) == ("studio", "sums")
    assert found.entries == (
        ForeignEntry("E1", "Carry.", note="+0.1 helps", pinned=True),
        ForeignEntry("E3", "42"),
    )


def a_row(**fields: object) -> dict[str, object]:
    return {"id": "E1", "text": "Carry."} | fields


def a_skill(**fields: object) -> dict[str, object]:
    return {"skills": {"m-1": {"id": "m-1", "content": "Carry."} | fields}}


def a_program(instructions: object) -> dict[str, object]:
    return {"predict": {"signature": {"instructions": instructions}}}


LONG = "x" * 100_001
OURS = a_library("x").guidance().removesuffix("[E1] x")
ALL = {"empty": "", "blank": " \n\n", "binary": b"\xff\xfe\x00", "utf-16": "- a".encode("utf-16")}
ALL_JSON = {
    **ALL,
    **{"cut": '{"skills": {', "a list": "[1]", "no JSON": "hello", "deep": "[" * 200_000},
    **{"the key twice": '{"skills": {}, "skills": {}}', "an empty object": "{}"},
}
ALL_YAML = {
    **ALL,
    **{"broken": "a: [", "a list": "- a", "a word": "hello", "deep": "[" * 20_000, "tag": "!x y"},
}
LISTS = {
    "an id twice": f"{OURS}[E1] a\n[E1] b",
    "a path for an id": f"{OURS}[../../etc] a",
    "a long id": f"{OURS}[{'E' * 101}] a",
    "a control character in an id": f"{OURS}[E\x1b1] a",
    "a long text": f"{OURS}[E1] {LONG}",
    "no entry": OURS,
    "only a heading": "# Heading\n",
}
WRONG: dict[str, dict[str, object]] = {
    "prompt": {**ALL, **LISTS},
    "agents": {
        **{**ALL, **LISTS},
        "an open section": "<!-- practice-studio:begin a -->\n- b\n",
        "sections within each other": "<!-- practice-studio:begin a -->\n" * 2,
    },
    "skill": {
        **ALL,
        **{name: f"---\nname: a\n---\n{text}" for name, text in LISTS.items()},
        "no head": "# Skill\n- a\n",
        "an open head": "---\nname: a\n- b\n",
        "no name": "---\ndescription: a\n---\n- b\n",
        "a broken head": "---\nname: [\n---\n- b\n",
        "a head that is a list": "---\n- a\n---\n- b\n",
    },
    "youtu": {
        **ALL_YAML,
        **{f"in it {n}": f"agent:\n  instructions: {json.dumps(t)}" for n, t in LISTS.items()},
        "no agent": "type: simple",
        "an agent that is text": "agent: x",
        "instructions that are a list": "agent: {instructions: [a]}",
        "no instructions": "agent: {name: a}",
    },
    "studio": {
        **ALL_YAML,
        "no list": "experiences: {E1: a}",
        "no experiences": "library: a",
        "a row that is text": "experiences: [a]",
        "no text": "experiences: [{id: E1}]",
        "no id": "experiences: [{text: a}]",
        "an empty text": "experiences: [{id: E1, text: ' '}]",
        "an id twice": "experiences: [{id: E1, text: a}, {id: E1, text: b}]",
        "a path for an id": "experiences: [{id: ../../etc, text: a}]",
        "a list for a text": "experiences: [{id: E1, text: [a]}]",
        "an empty id": "experiences: [{id: '', text: a}]",
        "a number for a text": "experiences: [{id: E1, text: 42}]",
        "aliases": "experiences: &a [*a]",
    },
    "json": {
        **ALL_JSON,
        "no list": {"experiences": {"E1": "a"}},
        "a row that is a number": {"experiences": [1]},
        "no text": {"experiences": [{"id": "E1"}]},
        "an id twice": {"experiences": [a_row(), a_row(text="b")]},
        "a path for an id": {"experiences": [a_row(id="../../etc")]},
        "a boolean for an id": {"experiences": [a_row(id=True)]},
        "a long text": {"experiences": [a_row(text=LONG)]},
        "no entry": {"experiences": []},
    },
    "kayba": {
        **ALL_JSON,
        "skills that are a list": {"skills": []},
        "a skill that is text": {"skills": {"m-1": "Carry."}},
        "another id than its key": a_skill(id="m-2"),
        "no content": a_skill(content=None),
        "content that is a list": a_skill(content=["a"]),
        "a long text": a_skill(content=LONG),
        "a path for an id": {"skills": {"../etc": {"content": "a"}}},
        "an id twice": '{"skills": {"m-1": {"content": "a"}, "m-1": {"content": "b"}}}',
        "all invalid": a_skill(status="invalid"),
    },
    "dspy": {
        **ALL_JSON,
        **{f"in it {name}": a_program(text) for name, text in LISTS.items()},
        "instructions that are a list": a_program(["a"]),
        "no instructions": {"predict": {"signature": {}}},
        "a signature that is text": {"predict": {"signature": "q -> a"}},
        "no predictor": {"metadata": {}},
        "empty instructions": a_program(""),
    },
    "gepa": {
        **ALL_JSON,
        **{f"in it {name}": {"best_candidate": {"a": text}} for name, text in LISTS.items()},
        "a candidate that is a list": {"best_candidate": ["a"]},
        "a component that is a number": {"best_candidate": {"a": 1}},
        "no best one": {"candidates": [{"a": "b"}]},
        "a best one that is not there": {"candidates": [{"a": "b"}], "best_idx": 4},
        "one id in two components": {"best_candidate": dict.fromkeys("ab", f"{OURS}[E1] x")},
    },
    "ace": {
        **ALL,
        "no line of a playbook": "hello",
        "an empty id": "[] helpful=1 harmful=0 :: a",
        "a word for a count": "[s-1] helpful=one harmful=0 :: a",
        "no counts": "[s-1] Carry.",
        "no text": "[s-1] helpful=1 harmful=0 ::",
        "an id twice": "[s-1] helpful=1 harmful=0 :: a\n[s-1] helpful=1 harmful=0 :: b",
        "one id in two spellings": "[E-1] helpful=1 harmful=0 :: a\n[E1] helpful=1 harmful=0 :: b",
        "a path for an id": "[../etc] helpful=1 harmful=0 :: a",
        "a long text": f"[s-1] helpful=1 harmful=0 :: {LONG}",
    },
}
CASES = [(kind, name) for kind, files in WRONG.items() for name in files]


def test_ten_wrong_files_of_each_format_are_tried() -> None:
    assert WRONG.keys() == TABLE.keys()
    assert all(len(files) >= 10 for files in WRONG.values())


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_wrong_file_is_refused_with_place_cause_and_move(
    kind: str, name: str, write: Write, tmp_path: Path
) -> None:
    path = write("folder/SKILL.md" if kind == "skill" else "file", WRONG[kind][name])
    with pytest.raises(DataError) as caught:
        read_foreign(path, kind)
    error = caught.value
    assert error.place.startswith(str(path))
    assert (
        error.cause.endswith(".") and error.move.endswith((".", '"}}.')) and len(str(error)) < 700
    )
    assert str(error).isprintable()


def test_a_place_names_the_line_or_the_value(write: Write) -> None:
    places = {
        ("ace", "## A\n\n[s-1] helpful=1 harmful=0 :: a\n[s-1] helpful=1 harmful=0 :: b"): ":4",
        ("prompt", f"Hello.\n\n{OURS}[E1] a\n[E1] b"): ":7",
        ("skill", f"---\nname: a\n---\n\n{OURS}[E1] a\n[E1] b"): ":9",
        ("studio", "experiences: [{id: E1, text: a}, {id: E1, text: b}]"): ": experiences[1]",
    }
    for (kind, text), place in places.items():
        path = write("file", text)
        with pytest.raises(DataError, match="stands there twice, first at") as caught:
            read_foreign(path, kind)
        assert caught.value.place == f"{path}{place}"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("library.json", {"experiences": [{"id": "E1", "text": "a \ud800 c"}]}),
        ("program.json", a_program("a \ud800 c")),
        ("best.json", {"best_candidate": {"system_prompt": "a \ud800 c"}}),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(name: str, data: object, write: Write) -> None:
    with pytest.raises(DataError, match="half of a surrogate pair"):
        read_foreign(write(name, json.dumps(data)))


def test_too_much_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("prompt.txt", "- a\n- b\n- c\n")
    monkeypatch.setattr(source, "MOST_BYTES", 4)
    with pytest.raises(DataError, match="larger than"):
        read_foreign(path)


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("x.json", {"a": 1}, "JSON of no format"),
        ("x.yaml", "a: b", "agent"),
        ("missing.md", None, "cannot be read"),
        ("folder/x.md", "a", "cannot be read"),
    ],
)
def test_what_is_of_no_format_is_refused(
    name: str, content: object, cause: str, write: Write
) -> None:
    path = write(name, content) if content is not None else Path("/nowhere") / name
    with pytest.raises(DataError, match=cause):
        read_foreign(path.parent if path.parent.name == "folder" else path)


def test_an_unknown_format_is_refused_with_the_nearest_name(write: Write) -> None:
    with pytest.raises(DataError, match='Did you mean "kayba"'):
        read_foreign(write("x.json", {}), "kaiba")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(DataError, match="it is no file"):
        read_foreign(tmp_path / "pipe.md")


def test_a_bomb_of_aliases_is_never_unfolded(write: Write) -> None:
    lines = [
        "a0: &a0 [x]",
        *(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(40)),
    ]
    bomb = "\n".join(lines)
    rows = "experiences: [{id: E1, text: Carry., worth: *a40, pinned: *a40}]"
    found = read_foreign(write("v1.yaml", f"{bomb}\nlibrary: *a40\n{rows}\n"))
    assert (found.name, found.entries) == ("v1", (ForeignEntry("E1", "Carry."),))
    head = f"{bomb}\nname: a\nmetadata: {{pinned: *a40}}"
    assert read_foreign(write("a/SKILL.md", f"---\n{head}\n---\n- Carry.\n")).name == "a"
    for text in ("[{id: *a40, text: a}]", "[{id: E1, text: *a40}]", "[*a40]", "*a40"):
        with pytest.raises(DataError):
            read_foreign(write("v2.yaml", f"{bomb}\nexperiences: {text}\n"))


def test_megabytes_that_nearly_match_are_read_at_once(write: Write) -> None:
    most = 900_000
    for text in ("x" + "\n" * most, "[" * most, f"[{'1' * most}", f"- {' ' * most}x", "-" * most):
        read_or_refuse(write("big.md", text))
    for text in (f"[a] helpful=1{' ' * most}x", f"[a] helpful=1 harmful=0{' a=b' * (most // 4)}"):
        read_or_refuse(write("big.txt", text))
    read_or_refuse(write("big.json", '{"a":' * (most // 5)))


def read_or_refuse(path: Path) -> None:
    with contextlib.suppress(DataError):
        read_foreign(path)
