"""Messages that once named the wrong place, counted wrong, or were missing."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from engines.core import errors
from engines.core.errors import PolicyError
from engines.policies.chat.endpoint import EndpointClient, EndpointFailed, EndpointSettings
from studio.errors import plain_words
from tests.support.run_studio import studio

ROW = '{{"question": "{}", "answer": "{}"}}\n'


def test_contradictory_rows_are_told_as_data_is_added(workspace: Path) -> None:
    file = workspace.parent / "mine.jsonl"
    file.write_text(ROW.format("1+1?", 2) + ROW.format("1+2?", 3) + ROW.format("1+1?", 3))
    added = studio("data", "add", "mine.jsonl", workspace=workspace)
    assert added.code == 0
    assert "questions with different answers: 1 (lines 1, 3)" in added.stderr
    file.with_name("one.jsonl").write_text(ROW.format("1+1?", 2))
    one = studio("data", "add", "one.jsonl", workspace=workspace)
    assert "one: 1 problem added" in one.stdout and "different" not in one.stderr


def test_a_list_of_data_warns_of_ones_own_alone(workspace: Path) -> None:
    assert "note: " not in studio("data", "list", workspace=workspace).stderr
    (workspace / "datasets").mkdir(parents=True)
    (workspace / "datasets" / "bad.jsonl").write_text("no JSON\n")
    assert "bad.jsonl" in studio("data", "list", workspace=workspace).stderr


def test_a_name_is_refused_as_it_was_typed_and_long_ones_at_once(workspace: Path) -> None:
    for name in ("a b/c", "x" * 101):
        refused = studio("headless", "rehearsal", "--name", name, workspace=workspace)
        assert refused.code == 2 and refused.stderr.startswith(f'studio: --name "{name}"')
    long = studio("headless", "rehearsal", f"library.name={'x' * 101}", workspace=workspace)
    assert long.code == 2 and "library.name" in long.stderr and "100 characters" in long.stderr
    assert not (workspace / "runs").exists()
    fits = studio("headless", "rehearsal", "--dry-run", "--name", "x" * 100, workspace=workspace)
    assert fits.code == 0, fits.stderr


def test_the_nearest_run_file_is_named_with_its_folder(workspace: Path) -> None:
    (workspace.parent / "sub").mkdir()
    (workspace.parent / "sub" / "mine.yaml").write_text("defaults: [rehearsal, _self_]\n")
    refused = studio("headless", "sub/mime.yaml", workspace=workspace)
    assert f'Did you mean "{Path("sub") / "mine.yaml"}"?' in refused.stderr
    preset = studio("headless", "rehersal", workspace=workspace)
    assert 'Did you mean "rehearsal"?' in preset.stderr


def test_runs_are_listed_where_nothing_can_be_written(
    practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = studio("runs", "list", workspace=practised)

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("engines.record.appender.make_folder", refuse)
    assert studio("runs", "list", workspace=practised) == usual


def test_bounds_are_told_in_plain_words(practised: Path) -> None:
    refused = studio("eval", "rehearsal", "--k", "0", workspace=practised)
    assert refused.stderr == (
        "studio eval: Invalid value for '--k': it must be at least 1. See `studio eval -h`.\n"
    )
    assert plain_words("Input should be less than 3") == "it must be below 3"


def told(text: str, address: str, kind: str = "refused") -> PolicyError:
    client = EndpointClient(EndpointSettings(model="m", base_url=address), "openai:m")
    return client.policy_error(EndpointFailed(kind, text, transient=False))


def test_https_on_a_plain_port_is_a_wrong_address() -> None:
    plain = "no connection to it: [SSL: WRONG_VERSION_NUMBER] wrong version number"
    assert "TLS only where it begins with https" in told(plain, "https://localhost:1/v1").move
    assert "overloaded" in told("it fell silent", "http://localhost:1/v1", "timeout").move


def test_an_extra_is_installed_from_the_checkout_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(errors.__file__).parents[2]
    monkeypatch.setattr(sys, "executable", str(root / ".venv" / "bin" / "python"))
    pip = root / ".venv" / "bin" / "pip"
    assert errors.install_command("grpo") == f"{pip} install -e '{root}[grpo]'"
    monkeypatch.setattr(errors, "_ROOT", tmp_path)
    assert errors.install_command("grpo") == "pip install 'practice-studio[grpo]'"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("headless rehearsal --review", "studio headless: Option"),
        ("completion", "bash, zsh, fish"),
        ("headless REHEARSAL", 'Did you mean "rehearsal"? Presets: api, '),
        ("run nonsense", "Presets: api, "),
        ("runs show reharsal", 'Did you mean "rehearsal"? There are: rehearsal.'),
        ("library show rehersal", 'Did you mean "rehearsal"? Libraries: rehearsal.'),
        ("ctl stop rehearsal", "it is finished and has no process"),
        ("config explain learning", '"practice.learning_objective" or "grpo.learning_rate"'),
        ("config explain nonsense", "See `studio config list`."),
        ("data check mine.csv", "the fields are: 1+1?, 2"),
        ("data check mine.jsonl", "The file is not UTF-8"),
        ("headless tab.yaml", "Indent with spaces"),
        ("headless rehearsal epochs", "it has no ="),
        ("headless rehearsal --name v verifier=mine.py", "there is no such verifier"),
    ],
)
def test_a_newcomers_mistake_is_told_with_what_to_do(
    practised: Path, words: str, says: str
) -> None:
    beside = practised.parent
    (beside / "mine.csv").write_text("1+1?,2\n2+2?,4\n")
    (beside / "mine.jsonl").write_bytes(b"\x7fELF\x00\x01\xff")
    (beside / "tab.yaml").write_text("practice:\n\tepochs: 2\n")
    refused = studio(*words.split(), workspace=practised)
    assert refused.code == 2 and says in refused.stderr


def test_a_workspace_that_is_not_there_is_named_as_missing(workspace: Path) -> None:
    for words in ("runs show mine", "library show mine", "library history mine"):
        refused = studio(*words.split(), workspace=workspace)
        assert refused.code == 2 and f"There is no folder {workspace}" in refused.stderr


@pytest.mark.parametrize(
    "command",
    ["runs", "runs show rehearsal", "library", "library show rehearsal", "data",
     "data check arithmetic", "data preview arithmetic", "presets", "config list policy"],
)  # fmt: skip
def test_what_lists_or_shows_ends_with_what_to_do_next(command: str, practised: Path) -> None:
    shown = studio(*command.split(), workspace=practised)
    assert shown.code == 0 and shown.stderr.splitlines()[-1].startswith("next: studio ")
