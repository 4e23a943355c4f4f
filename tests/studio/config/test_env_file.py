"""`.env` in the working folder: keys without exporting them, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from studio.config.loading import load_run
from studio.config.source import read_env_file
from tests.support.run_studio import studio

KEY = "sk-0123456789abcdefghij"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "PORTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f'# keys\nexport OPENAI_API_KEY="{KEY}"  # mine\nPORTION=3\n')
    (tmp_path / "mine.yaml").write_text(
        "defaults: [api, _self_]\ndata: {truncate: '${oc.env:PORTION}'}\n"
    )
    return tmp_path


def test_it_gives_what_the_environment_does_not_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_run("mine.yaml", [], folder / "practice")
    assert loaded.config.policy.api_key is not None
    assert loaded.config.policy.api_key.get_secret_value() == KEY
    assert loaded.config.data.truncate == 3
    note = next(text for text in loaded.warnings if ".env" in text)
    assert "OPENAI_API_KEY, PORTION" in note and KEY not in note
    monkeypatch.setenv("PORTION", "5")
    again = load_run("mine.yaml", [], folder / "practice")
    assert again.config.data.truncate == 5
    assert not any("PORTION" in text for text in again.warnings)


def test_its_keys_are_masked_and_json_stays_data(folder: Path) -> None:
    words = ("headless", "mine.yaml", "--dry-run", "--json", f"exp_id={KEY}")
    done = studio(*words, workspace=folder / "practice")
    assert KEY not in done.stdout + done.stderr
    done = studio(*words[:-1], workspace=folder / "practice")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)
    assert ".env gives OPENAI_API_KEY" in done.stderr


@pytest.mark.parametrize("line", ["OPENAI_API_KEY sk-x", "A='open", "1A=2", "=x"])
def test_a_malformed_line_is_named_and_not_quoted(folder: Path, line: str) -> None:
    (folder / ".env").write_text(f"\n# first\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        load_run("rehearsal", [], folder / "practice")
    assert refused.value.place == f"{folder / '.env'}:3" and line not in str(refused.value)
    read_env_file(folder / ".env", foreign=True)  # another project's may hold anything
