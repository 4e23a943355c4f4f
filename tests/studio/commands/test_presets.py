"""`studio init`."""

from __future__ import annotations

from pathlib import Path

import pytest

from studio.presets import list_presets
from tests.support.processes import SMALL
from tests.support.run_studio import studio


def test_init_writes_a_commented_run_file_that_can_be_practised(workspace: Path) -> None:
    written = studio("init", "rehearsal", workspace=workspace)
    file = workspace.parent / "rehearsal.yaml"
    assert (written.code, written.stdout) == (0, "")
    trying, practising = written.stderr.splitlines()[1:]
    assert trying.split() == ["studio", "try", "rehearsal.yaml", "one", "problem"]
    assert practising.split() == ["studio", "headless", "rehearsal.yaml", "the", "practice"]
    assert trying.index("one problem") == practising.index("the practice")
    assert file.read_text().startswith("# ")
    done = studio("headless", "rehearsal.yaml", *SMALL, workspace=workspace)
    assert done.code == 0, done.stderr


def test_a_run_file_of_another_name_makes_runs_of_that_name(practised: Path) -> None:
    assert studio("init", "rehearsal", "--to", "mine.yaml", workspace=practised).code == 0
    done = studio("headless", "mine.yaml", *SMALL, workspace=practised)
    assert done.code == 0, done.stderr
    assert sorted(run.name for run in (practised / "runs").iterdir()) == ["mine", "rehearsal"]


@pytest.mark.parametrize(("stem", "named"), [("2024", "2024"), ("on", "on"), ("a b", "a-b")])
def test_a_file_name_that_yaml_reads_otherwise_still_names_the_run(
    stem: str, named: str, workspace: Path
) -> None:
    assert studio("init", "--to", f"{stem}.yaml", workspace=workspace).code == 0
    done = studio("headless", f"{stem}.yaml", *SMALL, workspace=workspace)
    assert done.code == 0, done.stderr
    assert [run.name for run in (workspace / "runs").iterdir()] == [named]


@pytest.mark.parametrize("preset", [name for name, _ in list_presets()])
def test_every_preset_can_be_written_and_read_back(
    preset: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    assert studio("init", preset, workspace=workspace).code == 0
    from studio.config.loading import load_run

    loaded = load_run(str(workspace.parent / f"{preset}.yaml"), [], workspace)
    assert loaded.config == load_run(preset, [], workspace).config


def test_init_alone_lists_the_presets_and_writes_nothing(workspace: Path) -> None:
    asked = studio("init", workspace=workspace)
    assert (asked.code, asked.stdout) == (2, "")
    assert "grpo-tiny" in asked.stderr and "studio init rehearsal" in asked.stderr
    assert not list(workspace.parent.iterdir())


def test_init_never_overwrites(workspace: Path) -> None:
    file = workspace.parent / "rehearsal.yaml"
    file.write_text("mine")
    refused = studio("init", "rehearsal", workspace=workspace)
    assert refused.code == 2 and "--to" in refused.stderr
    assert file.read_text() == "mine"


def test_init_refuses_an_unknown_preset_and_a_missing_folder(workspace: Path) -> None:
    unknown = studio("init", "rehersal", workspace=workspace)
    assert unknown.code == 2 and 'Did you mean "rehearsal"' in unknown.stderr
    nowhere = studio("init", "--to", "no/such/x.yaml", workspace=workspace)
    assert nowhere.code == 2 and "--to" in nowhere.stderr
