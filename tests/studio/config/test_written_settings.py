"""Settings as earlier versions wrote them: a run that goes on must not see them changed.

`written/` holds what commit a4fb9e7 wrote of every preset, and compared in a resume.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.fingerprint import differences, fingerprint
from studio.presets import list_presets

WRITTEN = Path(__file__).parent / "written"
NEWER = ("demo", "math", "command", "grpo-team", "research", "web", "math-aime", "both-tiny")
"""That version did not have them."""
CHANGED = ("grpo-planner",)
"""What was kept of them is what an older run was begun with."""
NEWER_SETTINGS = re.compile(
    r"^(?:  dropout: 0.0\n|dispatch: local\nray:\n(?:  .*\n)+"
    r"|tracing:\n(?:  .*\n)+tensorboard: null\n| +(?:expected_tokens: null"
    r"|reflect_on_worsened: 0|(?:proposals: 1\n +)?proposals_per_call: 8|operations_per_call: 200"
    r"|read_without_contrast: 4|min_contrast: 0.05|read_chars: 40000"
    r"|select_above: 30|select_most: 10"
    r"|rollouts_sleep: false|replicas: \[\]|price_cached_usd_per_mtok: null"
    r"|team: null|models: {}|monitor: null"
    r"|tools: \[\]|tool_protocol: auto|context_tokens: 24000|sandbox: required|command: \[\]"
    r"|function: null|problem_as: stdin|answer_from: last_line|pass_env: \[\]|network: none"
    r"|readable: \[\]|allow_hosts: \[\]"
    r"|gate:\n +problems: null\n +k: 4\n +error: 0.05\n +data: null\n +unit: operation"
    r"\n +roll_back: false"
    r"|cite: (?:true|false)|sampling: uniform|weight_steps: 9|rejects:(?:\n +- .*)+)\n)",
    re.MULTILINE,
)
PRESETS = [name for name, _ in list_presets() if name not in NEWER]
ENVIRON = {"OPENAI_API_KEY": "sk-abcdefghijkl1234"}


def as_then(preset: str) -> str:
    text = (WRITTEN / f"{preset}.yaml").read_text("utf-8")
    return text.replace("BUNDLED", str(files("sample_data")))


def loaded(name: str, folder: Path) -> LoadedRun:
    return load_run(name, [], folder / "practice", ENVIRON, folder)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in CHANGED])
def test_the_run_file_is_written_byte_for_byte_as_before(tmp_path: Path, preset: str) -> None:
    found = loaded(preset, tmp_path)
    written = NEWER_SETTINGS.sub("", dump_run_yaml(found.config, found.mask))
    assert written == as_then(preset).replace("  tensorboard: true\n", "")  # not in `grpo` now


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resume_of_an_older_run_sees_no_changed_setting(tmp_path: Path, preset: str) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(as_then(preset), "utf-8")
    before = json.loads((WRITTEN / "fingerprints.json").read_text("utf-8"))[preset]
    now = json.loads(json.dumps(fingerprint(loaded(str(run_file), tmp_path).config)))
    assert differences(before, now) == ()
    assert [name for name in now if name in before] == list(
        before
    )  # journals write the settings in this order


def test_every_preset_was_kept() -> None:
    assert sorted(path.stem for path in WRITTEN.glob("*.yaml")) == PRESETS
