"""`studio config` and `studio version`: what there is to set, and what is installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from engines.core.errors import StudioError
from engines.verifiers.open import parse_spec
from studio.commands.reference.guide import SCREEN_FILE, every_setting
from studio.config.loading import load_run
from studio.config.settings.reference import Setting
from studio.tui.settings import read_settings
from tests.support.run_studio import studio

EVERY = every_setting()
BASES = {  # the preset in which a section has an effect
    "grpo": "grpo-tiny",
    "sft": "grpo-tiny",
    "policy.adapter": "grpo-tiny",
    "policy.local": "grpo-tiny",
    "practice.algorithm": "grpo-tiny",
    "agent.team": "research",
}
NEEDED = {  # what must be said beside an example
    "verifier.name=text verifier.pattern": "verifier.mode=regex",
    "lint.embedding.": "lint.embedding.model=rehearsal",
    "practice.proposals=": "review.gate.problems=8",
    "agent.models": "agent.function=my_agent.py:solve",
}


def test_every_setting_has_a_meaning_a_type_and_an_example() -> None:
    for setting in EVERY:
        assert setting.meaning and setting.kind, setting.key
        assert setting.example or setting.kind == "section", setting.key
        assert setting.choices or not setting.kind.startswith("one of"), setting.key


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with what the examples name."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    workspace = tmp_path / "practice"
    step = workspace / "runs" / "grpo-tiny" / "checkpoints" / "E" / "T" / "global_step_1"
    step.mkdir(parents=True)
    (workspace / "verifiers").mkdir()
    (workspace / "verifiers" / "exact.py").write_text("def verify_func(sample): return 1.0\n")
    return workspace


def test_every_example_is_accepted_by_the_loader(home: Path) -> None:
    refused = {}
    for setting in EVERY:
        if setting.example and setting.file != SCREEN_FILE:
            base = next((b for s, b in BASES.items() if setting.key.startswith(s)), "rehearsal")
            words = shlex.split(setting.example)
            more = [need for start, need in NEEDED.items() if setting.example.startswith(start)]
            try:
                loaded = load_run(base, [*more, *words], home)
                if setting.key.startswith("verifier."):
                    parse_spec(loaded.config.verifier.spec, [home / "verifiers"])
            except StudioError as error:
                if "has no checkpoint" not in str(error):  # of a run that is not here
                    refused[setting.example] = str(error)
    assert refused == {}


def test_every_example_of_the_screen_is_read(home: Path) -> None:
    for setting in EVERY:
        if setting.file == SCREEN_FILE:
            (home / SCREEN_FILE).write_text(setting.example + "\n")
            read_settings(home)


def explained(key: str, workspace: Path) -> Setting:
    done = studio("config", "explain", key, "--json", workspace=workspace)
    assert done.code == 0, done.stderr
    return Setting(**json.loads(done.stdout))


def test_the_settings_of_a_model_are_explained_for_every_role(workspace: Path) -> None:
    found = explained("policy.base_url", workspace)
    assert found == explained("reflector.base_url", workspace)
    assert found == explained("agent.model.base_url", workspace)


def test_a_setting_is_explained_by_either_of_its_names(workspace: Path) -> None:
    found = explained("practice.group_size", workspace)
    assert found == explained("practice.grpo_n", workspace)
    assert (found.default, found.bounds) == (3, "at least 1, at most 10,000")
    assert "practice.grpo_n" in found.aliases
    shown = studio("config", "explain", "practice.group_size", workspace=workspace).stdout
    assert "default  3" in shown and "at least 1" in shown and "practice.group_size=6" in shown
    section = studio("config", "explain", "budget", workspace=workspace).stdout
    assert "What may be spent" in section and "budget.cost_usd" in section
    of_two = studio("config", "explain", "verifier.deadline_s", workspace=workspace).stdout
    assert "(verifier math)" in of_two and "(verifier function)" in of_two


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("practice.grup_size", "practice.group_size"),
        ("group_size", "practice.group_size"),
        ("practise.group_size", "practice.group_size"),
    ],
)
def test_an_unknown_setting_gets_the_nearest_name(typed: str, meant: str, workspace: Path) -> None:
    done = studio("config", "explain", typed, workspace=workspace)
    assert done.code == 2 and f'Did you mean "{meant}"?' in done.stderr


def test_settings_are_listed_whole_or_by_section(workspace: Path) -> None:
    usual = studio("config", workspace=workspace)
    assert usual.code == 0 and "practice.epochs" in usual.stdout and SCREEN_FILE in usual.stdout
    counts = [
        len(json.loads(studio("config", "list", *more, "--json", workspace=workspace).stdout))
        for more in ((), ("--all",))
    ]
    assert counts[0] <= 45 and counts[1] <= 160
    one = studio("config", "list", "lint", "--json", workspace=workspace)
    assert {row["key"].partition(".")[0] for row in json.loads(one.stdout)} == {"lint"}
    assert studio("config", "list", "lnt", workspace=workspace).code == 2


def test_the_version_names_what_matters(workspace: Path) -> None:
    found = json.loads(studio("version", "--json", workspace=workspace).stdout)
    assert {"practice-studio", "python", "textual", "torch"} <= set(found)
    assert (
        f"practice-studio  {found['practice-studio']}"
        in studio("version", workspace=workspace).stdout
    )


@pytest.mark.parametrize("group", ["runs", "library", "data", "presets"])
def test_a_group_alone_lists(group: str, practised: Path) -> None:
    alone, named = studio(group, workspace=practised), studio(group, "list", workspace=practised)
    assert alone == named and alone.code == 0 and alone.stdout
    assert json.loads(studio(group, "--json", workspace=practised).stdout)


def test_ctl_alone_shows_the_newest_run_and_rehearsal_what_there_is(practised: Path) -> None:
    assert studio("ctl", workspace=practised) == studio("ctl", "status", workspace=practised)
    shown = studio("rehearsal", workspace=practised)
    assert shown.code == 0 and "serve" in shown.stdout
