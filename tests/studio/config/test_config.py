"""Run files: composition, defaults, paths and fingerprints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.errors import DataError
from studio.config.aliases import ALIASES
from studio.config.loading import load_run
from studio.config.run_yaml import RESULT_FIELDS, differences, dump_run_yaml, fingerprint
from studio.config.settings.run import every_setting
from studio.presets import list_presets
from tests.studio.config.run_files import SMALL, loaded, write


def test_layered_files_compose_with_packages_across_folders(tmp_path: Path) -> None:
    write(
        tmp_path,
        "name: solver\ninstructions: Think first.\n",
        "agents/practice/math.yaml",
    )
    write(
        tmp_path / "workspace/configs",
        "# @package _global_\n"
        "defaults:\n  - /agents/practice/math@agent\n  - _self_\n"
        "data: held-out\npass_k: 4\n",
        "eval/math.yaml",
    )
    path = write(
        tmp_path,
        "# @package _global_\n"
        "defaults:\n  - /eval/math@evaluation\n  - _self_\n"
        "exp_id: math_practice\npolicy: rehearsal\n"
        "practice:\n  epochs: 2\n  grpo_n: 7\n  do_eval: true\n"
        "data:\n  practice_dataset_name: sums\n",
        "practice/math.yaml",
    )
    run = load_run(str(path), ["practice.batch_size=9"], tmp_path / "workspace", {}, tmp_path)
    config = run.config
    assert (config.exp_id, config.data.practice) == ("math_practice", "sums")
    assert (config.agent.name, config.agent.instructions) == ("solver", "Think first.")
    assert (config.practice.epochs, config.practice.group_size) == (2, 7)
    assert config.practice.batch_size == 9
    assert (config.evaluation.data, config.evaluation.k) == (("held-out",), 4)
    assert config.evaluation.do_eval
    assert run.place("practice.epochs") == f"{path}:8"
    assert run.place("practice.batch_size") == "override 'practice.batch_size=9'"
    assert run.place("agent.instructions") == f"{tmp_path}/agents/practice/math.yaml:2"
    assert run.place("evaluation.k") == f"{tmp_path}/workspace/configs/eval/math.yaml:6"


def test_a_run_file_can_begin_with_a_preset(tmp_path: Path) -> None:
    run = loaded(tmp_path, "defaults: [rehearsal, _self_]\npractice: {batch_size: 3}\n").config
    preset = load_run("rehearsal", [], tmp_path / "workspace", {}, cwd=tmp_path).config
    practice = replace(preset.practice, batch_size=3)
    assert preset.practice != practice
    assert (run.policy, run.data, run.practice) == (preset.policy, preset.data, practice)


def test_the_file_itself_wins_over_what_it_mounts_before_self(tmp_path: Path) -> None:
    write(tmp_path, "name: a\ninstructions: Think.\n", "agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\nagent: {instructions: Write.}\n" + SMALL
    agent = loaded(tmp_path, text).config.agent
    assert (agent.name, agent.instructions) == ("a", "Write.")


def test_groups_beside_the_file_go_before_the_workspace(tmp_path: Path) -> None:
    write(tmp_path, "name: beside\n", "agents/a.yaml")
    write(tmp_path, "name: workspace\n", "workspace/configs/agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\n" + SMALL
    assert loaded(tmp_path, text).config.agent.name == "beside"


def test_an_enhanced_agent_mounts_with_its_experiences_and_model(tmp_path: Path) -> None:
    write(
        tmp_path,
        "name: practised\nexperiences:\n  - {id: E1, text: 'Carry: add the carry.'}\n"
        "model: {model: 'openai:m', api_key: '${oc.env:AGENT_KEY}'}\n",
        "agent.yaml",
    )
    text = "defaults:\n  - /agent@agent\n  - _self_\ndata: {practice: sums}\n"
    config = loaded(tmp_path, text, environ={"AGENT_KEY": "sk-1"}).config
    assert [(e.id, e.text) for e in config.agent.experiences] == [("E1", "Carry: add the carry.")]
    assert config.policy.model == "openai:m"
    assert config.policy.api_key and config.policy.api_key.get_secret_value() == "sk-1"
    assert "sk-1" not in dump_run_yaml(config)
    other = loaded(tmp_path, text + "policy: rehearsal\n", environ={"AGENT_KEY": "sk-1"}).config
    assert other.policy.model == "rehearsal"


def test_an_override_may_set_what_the_file_does_not_mention(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL, "practice.library_limit=null", "seed=4").config
    assert config.practice.library_limit is None
    assert config.seed == 4


def test_overriding_one_key_of_a_plain_model_name_keeps_the_name(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL, "policy.max_tokens=9", "verifier.mode=choice").config
    assert (config.policy.model, config.policy.max_tokens) == ("rehearsal", 9)
    late = loaded(tmp_path, SMALL, "policy=openai:m", "policy.base_url=http://h:1/v1").config
    assert (late.policy.model, late.policy.base_url) == ("openai:m", "http://h:1/v1")


def test_folders_with_unusual_names_are_searched(tmp_path: Path) -> None:
    odd = tmp_path / 'a, b [c] "d"'
    write(odd / "workspace/configs", "name: found\n", "agents/a.yaml")
    text = "defaults:\n  - /agents/a@agent\n  - _self_\n" + SMALL
    assert loaded(odd, text).config.agent.name == "found"


# Values


def test_defaults_are_those_of_the_practice_this_descends_from(tmp_path: Path) -> None:
    config = loaded(tmp_path, SMALL).config
    practice = config.practice
    assert (practice.epochs, practice.batch_size, practice.group_size) == (5, 32, 3)
    assert (practice.concurrency, practice.temperature, practice.task_timeout_s) == (64, 0.7, 3600)
    assert (practice.restart_step, practice.experiences_per_query) == (None, 1)
    assert (config.evaluation.do_eval, config.evaluation.strategy) == (False, "epoch")
    assert config.exp_id == "mine"


def test_environment_variables_are_read_from_what_is_given(tmp_path: Path) -> None:
    text = (
        "policy:\n  model: ${oc.env:MODEL}\n  base_url: ${oc.env:URL,http://h/v1}\n"
        "data: {practice: sums}\nseed: ${oc.decode:${oc.env:SEED}}\n"
    )
    config = loaded(tmp_path, text, environ={"MODEL": "openai:m", "SEED": "12"}).config
    assert (config.policy.model, config.policy.base_url) == ("openai:m", "http://h/v1")
    assert config.seed == 12


def test_an_openai_role_takes_url_and_key_from_the_usual_variables(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-env", "OPENAI_BASE_URL": "http://env/v1"}
    text = (
        "policy: openai:m\nreflector: rehearsal\ndata: {practice: sums}\n"
        "judge: {model: 'openai:j', base_url: 'http://own/v1', api_key: '${oc.env:OWN}'}\n"
    )
    config = loaded(tmp_path, text, environ={**environ, "OWN": "sk-own"}).config
    assert config.policy.base_url == "http://env/v1"
    assert config.policy.api_key and config.policy.api_key.get_secret_value() == "sk-env"
    assert config.reflector and config.reflector.api_key is None
    assert config.judge and config.judge.base_url == "http://own/v1"
    assert config.judge.api_key and config.judge.api_key.get_secret_value() == "sk-own"
    assert loaded(tmp_path, text, environ={"OWN": "x"}).config.policy.api_key is None


def test_reflector_and_judge_default_to_the_policy_at_their_own_temperature(
    tmp_path: Path,
) -> None:
    text = "policy: {model: 'openai:m', temperature: 0.9, max_tokens: 50}\ndata: {practice: s}\n"
    config = loaded(tmp_path, text).config
    assert config.practice.temperature == 0.9
    roles = {name: config.role(name) for name in ("policy", "reflector", "judge")}
    assert {role.model for role in roles.values()} == {"openai:m"}
    assert [role.temperature for role in roles.values()] == [0.9, 0.3, 0.0]
    partial = loaded(tmp_path, text + "reflector: {max_tokens: 99}\n").config.role("reflector")
    assert (partial.model, partial.max_tokens, partial.temperature) == ("openai:m", 99, 0.3)
    rollouts = loaded(tmp_path, text, "practice.temperature=0.2").config.role("policy")
    assert rollouts.temperature == 0.2


def test_a_verifier_is_a_name_or_a_name_with_its_settings(tmp_path: Path) -> None:
    assert loaded(tmp_path, SMALL).config.verifier.spec == {"name": "math"}
    text = SMALL + "verifier: {name: text, mode: choice}\n"
    assert loaded(tmp_path, text).config.verifier.spec == {"name": "text", "mode": "choice"}


def test_data_beside_the_file_is_pinned_and_data_of_the_workspace_is_named(
    tmp_path: Path,
) -> None:
    row = '{"question": "q", "answer": "1"}\n'
    beside = write(tmp_path, row, "sums.jsonl")
    write(tmp_path, row, "workspace/datasets/known.jsonl")
    run = loaded(
        tmp_path, SMALL, "evaluation.data=[known,./sums.jsonl]", "policy=replay:sums.jsonl"
    )
    assert run.config.data.practice == str(beside)
    assert run.config.evaluation.data == ("known", str(beside))
    assert run.config.policy.model == f"replay:{beside}"
    assert run.data_path("known").path == tmp_path / "workspace/datasets/known.jsonl"


def test_data_that_is_nowhere_is_told_with_the_place_that_names_it(tmp_path: Path) -> None:
    run = loaded(tmp_path, SMALL)
    with pytest.raises(DataError) as caught:
        run.data_path(run.config.data.practice)
    assert caught.value.place == f"{tmp_path}/mine.yaml:2"
    assert '"sums"' in caught.value.cause and str(tmp_path) in caught.value.cause


def test_rules_beside_the_file_are_pinned(tmp_path: Path) -> None:
    rules = write(tmp_path, "pass: []\n", "rules.yaml")
    assert loaded(tmp_path, SMALL, "review.by=rules:rules.yaml").config.review.by == (
        f"rules:{rules}"
    )


def test_a_doubtful_evaluation_is_a_warning(tmp_path: Path) -> None:
    for evaluated in ("do_eval: true", "do_eval: false"):  # `studio eval` measures either way
        text = SMALL + f"evaluation: {{{evaluated}, data: x, k: 4}}\n"
        assert "temperature 0" in loaded(tmp_path, text).warnings[0]
    real = "policy: 'openai:m'\ndata: {practice: s}\npractice: {temperature: 0}\n"
    assert "practice.temperature is 0" in loaded(tmp_path, real).warnings[0]


def test_a_group_of_one_is_a_warning(tmp_path: Path) -> None:
    (told,) = loaded(tmp_path, SMALL, "practice.group_size=1").warnings
    assert "a single try shows no contrast" in told
    assert loaded(tmp_path, SMALL, "practice.group_size=2").warnings == ()
    only_evaluates = "policy: rehearsal\npractice: {group_size: 1}\n"
    assert loaded(tmp_path, only_evaluates).warnings == ()


# Comparing runs


def test_only_what_changes_results_is_in_the_fingerprint(tmp_path: Path) -> None:
    free = ["practice.epochs=9", "practice.concurrency=2", "review.by=auto", "policy.max_retries=0"]
    before = fingerprint(loaded(tmp_path, SMALL).config, "d1")
    assert tuple(before) == RESULT_FIELDS
    assert differences(before, fingerprint(loaded(tmp_path, SMALL, *free).config, "d1")) == ()
    bound = ["practice.group_size=9", "practice.temperature=0.1", "verifier=text"]
    after = fingerprint(loaded(tmp_path, SMALL, *bound).config, "d2")
    assert {name: (old, new) for name, old, new in differences(before, after)} == {
        "policy.temperature": (0.7, 0.1),
        "data.digest": ("d1", "d2"),
        "practice.group_size": (3, 9),
        "verifier": ({"name": "math"}, {"name": "text"}),
    }


# Presets


@pytest.mark.parametrize("name", [name for name, _ in list_presets()])
def test_every_preset_loads_says_what_it_is_and_can_be_copied(tmp_path: Path, name: str) -> None:
    environ = {"OPENAI_API_KEY": "k"}
    run = load_run(name, [], tmp_path, environ)
    assert run.preset and run.config.exp_id == name
    assert len(dict(list_presets())[name]) > 20
    copy = write(tmp_path, run.path.read_text(encoding="utf-8"))
    assert load_run(str(copy), [], tmp_path, environ).config == run.config


def test_every_setting_says_what_it_is() -> None:
    assert [name for name, meaning in every_setting().items() if not meaning] == []
    ours = {name for name in ALIASES.values() if not name.startswith("verifier.")}  # its own
    assert ours <= set(every_setting())


def test_listing_presets_imports_neither_hydra_nor_pydantic() -> None:
    code = (
        "import sys, studio.presets as p; assert p.list_presets();"
        "print([m for m in ('hydra', 'pydantic', 'omegaconf', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_file_on_a_preset_is_named_by_its_own_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [rehearsal, _self_]\npractice: {epochs: 1}\n")
    workspace = tmp_path / "p"
    assert load_run(str(file), [], workspace, {}).config.exp_id == "mine"
    assert load_run(str(file), ["exp_id=typed"], workspace, {}).config.exp_id == "typed"
    file.write_text("defaults: [rehearsal, _self_]\nexp_id: written\n")
    assert load_run(str(file), [], workspace, {}).config.exp_id == "written"
    assert load_run("rehearsal", [], workspace, {}).config.exp_id == "rehearsal"
