"""The ways to write `verifier:` in a run file."""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.config.run_yaml import dump_run_yaml
from tests.studio.config.run_files import SMALL, loaded, write

FUNCTION = "def verify_func(sample, timeout_score=0, **kwargs):\n    return {'reward': 1.0}\n"

VERIFIERS: dict[str, tuple[str, dict[str, object]]] = {
    "a name": ("judge", {"name": "judge"}),
    "a mapping": ("{name: text, mode: choice}", {"name": "text", "mode": "choice"}),
    "settings of the usual one": ("{deadline_s: 1}", {"name": "math", "deadline_s": 1}),
    "a file": (
        "{file: exact.py, function: f}",
        {"name": "function", "file": "exact.py", "function": "f"},
    ),
    "Youtu's names": (
        "{verify_filename: exact.py, verify_func_name: f}",
        {"name": "function", "file": "exact.py", "function": "f"},
    ),
    "a list": (
        "[math, {name: judge, weight: 2, as: style}, {file: exact.py}]",
        {
            "name": "weighted",
            "of": [
                {"name": "math"},
                {"name": "judge", "weight": 2, "as": "style"},
                {"name": "function", "file": "exact.py"},
            ],
        },
    ),
    "a shape of a name": ("{name: step, of: judge}", {"name": "step", "of": "judge"}),
    "a shape of a file": (
        "{name: length_penalty, of: {file: exact.py}, max_length: 9}",
        {
            "name": "length_penalty",
            "of": {"name": "function", "file": "exact.py"},
            "max_length": 9,
        },
    ),
}


@pytest.mark.parametrize("case", VERIFIERS)
def test_every_way_to_write_a_verifier_means_one_and_survives_being_written(
    tmp_path: Path, case: str
) -> None:
    text, spec = VERIFIERS[case]
    run = loaded(tmp_path, f"{SMALL}verifier: {text}\n")
    assert run.config.verifier.spec == spec
    again = loaded(tmp_path, dump_run_yaml(run.config))
    assert again.config == run.config
    override = text.replace(": ", ":")
    if "{" not in text or text[0] == "{":
        assert loaded(tmp_path, SMALL, f"verifier={override}").config.verifier.spec == spec


FILED = "{file: exact.py, function: f, timeout_score: 0}"
MATH = {"name": "math"}

REPLACED: dict[str, tuple[str, list[str], dict[str, object]]] = {
    "a mapping for a file": (
        FILED,
        ["verifier={name:text,mode:choice}"],
        {"name": "text", "mode": "choice"},
    ),
    "a list for a mapping": (
        "{name: text, mode: choice}",
        ["verifier=[{name:math,weight:3}]"],
        {"name": "weighted", "of": [{"name": "math", "weight": 3}]},
    ),
    "a mapping for a list": (
        "[math, text]",
        ["verifier={deadline_s:1}"],
        {**MATH, "deadline_s": 1},
    ),
    "a name for a mapping": ("{name: text, mode: choice}", ["verifier=math"], MATH),
    "a file for a file": (
        FILED,
        ["+verifier={file:mine.py}"],
        {"name": "function", "file": "mine.py"},
    ),
    "a key after the whole": (
        FILED,
        ["verifier=text", "verifier.mode=choice"],
        {"name": "text", "mode": "choice"},
    ),
    "a key before the whole": (
        "math",
        ["verifier.mode=choice", "verifier={name:text}"],
        {"name": "text", "mode": "choice"},
    ),
    "the whole twice": (FILED, ["verifier={name:text,mode:choice}", "verifier={name:math}"], MATH),
}


@pytest.mark.parametrize("case", REPLACED)
def test_an_override_of_the_whole_verifier_leaves_nothing_of_the_file_s(
    tmp_path: Path, case: str
) -> None:
    text, overrides, spec = REPLACED[case]
    run = loaded(tmp_path, f"{SMALL}verifier: {text}\n", *overrides)
    assert run.config.verifier.spec == spec
    assert run.place("verifier").startswith("override '")


@pytest.mark.parametrize("above", ["", "evaluation:\n  "])
def test_youtus_verifier_names_stand_at_the_top_or_below_evaluation(
    tmp_path: Path, above: str
) -> None:
    indent = "  " if above else ""
    text = f"{SMALL}{above}verify_filename: a.py\n{indent}verify_func_name: f\n"
    run = loaded(tmp_path, text)
    assert run.config.verifier.spec == {"name": "function", "file": "a.py", "function": "f"}
    assert run.place("verifier.file").endswith(f"mine.yaml:{4 if above else 3}")


def test_entries_of_a_list_keep_their_lines(tmp_path: Path) -> None:
    text = "verifier:\n  - math\n  - name: text\n    mode: exact\n  - file: x.py\n"
    run = loaded(tmp_path, SMALL + text)
    assert run.place("verifier.of.0").endswith("mine.yaml:4")
    assert run.place("verifier.of.1.mode").endswith("mine.yaml:6")
    assert run.place("verifier.of.2.file").endswith("mine.yaml:7")
    run = loaded(tmp_path, SMALL, "verifier=[math,judge]")
    assert run.place("verifier.of.1") == "override 'verifier=[math,judge]'"


def test_a_verifier_file_beside_the_run_file_is_pinned_and_a_workspaces_stays_a_name(
    tmp_path: Path,
) -> None:
    beside = write(tmp_path, FUNCTION, "beside.py")
    write(tmp_path, FUNCTION, "both.py")
    write(tmp_path, FUNCTION, "workspace/verifiers/both.py")
    write(tmp_path, FUNCTION, "workspace/verifiers/own.py")

    def pinned(name: str) -> object:
        config = loaded(tmp_path, f"{SMALL}verifier: {{file: {name}}}\n").config
        return config.verifier.spec["file"]

    assert pinned("beside.py") == pinned("beside") == str(beside.resolve())
    assert pinned("both.py") == str((tmp_path / "both.py").resolve())
    assert pinned("own.py") == "own.py"
    assert pinned("nowhere.py") == "nowhere.py"  # refused when it is opened
    listed = loaded(tmp_path, f"{SMALL}verifier: [math, {{file: beside}}]\n").config
    assert listed.verifier.spec["of"][1]["file"] == str(beside.resolve())


def test_a_verifier_file_of_an_override_beats_a_name_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, FUNCTION, "mine.py")
    run = loaded(tmp_path, SMALL + "verifier: math\n", "verifier.file=mine.py")
    assert run.config.verifier.spec == {"name": "function", "file": str(tmp_path / "mine.py")}


def test_a_roles_own_concurrency_is_not_handed_on_to_other_roles(tmp_path: Path) -> None:
    text = "policy: {model: rehearsal, concurrency: 4}\njudge: {temperature: 0.5}\n"
    config = loaded(tmp_path, text + "data: {practice: sums}\n").config
    assert config.judge is not None
    assert (config.policy.concurrency, config.judge.concurrency) == (4, None)


@pytest.mark.parametrize(
    "written",
    ["[math, {file: mine.py, workers: 2}]", "{name: step, of: {file: mine.py}}"],
)
def test_what_a_verifier_file_holds_belongs_to_the_fingerprint_and_its_folder_does_not(
    tmp_path: Path, written: str
) -> None:
    from engines.record.run_dir import Workspace
    from studio.run.models import fingerprint_of

    def verifier(folder: Path, text: str) -> object:
        write(folder, text, "mine.py")
        run = loaded(folder, f"{SMALL}verifier: {written}\n")
        return fingerprint_of(run, Workspace(folder / "workspace"), "d")["verifier"]

    first = verifier(tmp_path / "a", FUNCTION)
    assert first == verifier(tmp_path / "b", FUNCTION)
    assert first != verifier(tmp_path / "a", FUNCTION + "# changed\n")
    assert "'file': 'mine'" in str(first) and "'digest': " in str(first)
    assert str(tmp_path) not in str(first)
