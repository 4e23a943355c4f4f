"""Youtu-Agent's configs, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from engines.core.errors import ConfigError, DataError
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import dump_run_yaml
from studio.config.source import find_youtu_config
from tests.support.youtu_checkout import ENV, GONE, checkout, write

PROVIDED = {
    "type": "chat.completions",
    "model": "${oc.env:JUDGE_LLM_MODEL}",
    "base_url": "${oc.env:JUDGE_LLM_BASE_URL}",
    "api_key": "${oc.env:JUDGE_LLM_API_KEY}",
}
JUDGE = {
    "JUDGE_LLM_MODEL": "strict",
    "JUDGE_LLM_BASE_URL": "http://judge/v1",
    "JUDGE_LLM_API_KEY": "sk-judge",
}


def loaded(
    folder: Path,
    changes: dict[str, object] | None = None,
    *overrides: str,
    environ: dict[str, str] | None = None,
    root: str = "practice",
) -> LoadedRun:
    home = str(checkout(folder / "youtu", changes, {**ENV, **JUDGE}))
    if root == "practice":
        asked = find_youtu_config(home, "math_reasoning", "practice")
    else:
        asked = find_youtu_config(home, "math/math_set", "eval")
    return load_run("", overrides, folder / "practice", environ or {}, cwd=folder, youtu=asked)


def notes(run: LoadedRun, word: str) -> list[str]:
    return [warning for warning in run.warnings if word in warning]


def test_a_practice_config_with_its_eval_agent_and_model_becomes_a_run(tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "eval.judge_model": {"model_provider": PROVIDED, "model_params": {"temperature": 0.5}},
        "eval.judge_concurrency": 128,
        "eval.verify_filename": "mine.py",
        "eval.verify_func_name": "verify_func",
        "agent.model.model_settings.extra_args": {"timeout": 3000},
    }
    run = loaded(tmp_path, changes).config
    assert (run.exp_id, run.data.practice, run.data.truncate) == ("math_practice", "arithmetic", 4)
    assert (run.practice.group_size, run.practice.temperature) == (3, 0.7)
    assert (run.policy.model, run.policy.base_url) == ("openai:rehearsal", ENV["UTU_LLM_BASE_URL"])
    assert (run.policy.top_p, run.policy.timeout_s, run.policy.temperature) == (0.95, 3000, None)
    assert (run.evaluation.data, run.evaluation.k) == (("arithmetic-heldout",), 1)
    assert (run.evaluation.temperature, run.evaluation.limit) == (0.2, 2)
    assert run.evaluation.concurrency == 8
    assert run.judge is not None
    assert (run.judge.model, run.judge.base_url) == ("openai:strict", "http://judge/v1")
    assert (run.judge.temperature, run.judge.concurrency) == (0.5, 128)
    assert (run.agent.name, run.agent.model) == ("math_agent", None)
    verifier = tmp_path / "youtu/utu/practice/verify/mine.py"
    assert run.verifier.spec == {
        "name": "function",
        "file": str(verifier),
        "function": "verify_func",
    }


def test_an_eval_config_can_be_the_root(tmp_path: Path) -> None:
    run = loaded(tmp_path, {"eval.pass_k": 32}, "concurrency=5", root="eval").config
    assert (run.exp_id, run.evaluation.k, run.evaluation.concurrency) == ("math_eval", 32, 5)
    assert run.evaluation.data == ("arithmetic-heldout",)
    assert (run.data.practice, run.agent.name) == (None, "math_agent")
    assert (run.policy.model, run.evaluation.temperature) == ("openai:rehearsal", 0.2)


@pytest.mark.parametrize("place", ["", "configs"])
def test_the_folder_may_be_the_checkout_or_its_configs(tmp_path: Path, place: str) -> None:
    home = checkout(tmp_path / "youtu")
    found = find_youtu_config(str(home / place), "math_reasoning", "practice")
    assert (found.root, found.file) == (home, home / "configs/practice/math_reasoning.yaml")


def test_a_config_may_lie_in_a_folder_of_its_group(tmp_path: Path) -> None:
    home = checkout(tmp_path / "youtu")
    text = (home / "configs/practice/math_reasoning.yaml").read_text()
    write(home / "configs/practice/deep/er/mine.yaml", text)
    run = load_run(
        "", [], tmp_path, {}, youtu=find_youtu_config(str(home), "deep/er/mine", "practice")
    )
    assert run.config.policy.model == "openai:rehearsal"


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("nowhere", "x", ("--from-youtu", "no configs/practice", "checkout")),
        ("youtu", "math_reasonin", ("--config-name math_reasonin", 'mean "math_reasoning"')),
        ("youtu", "zzz", ("--config-name zzz", "There are: math_reasoning")),
        ("youtu", "", ("--config-name", "There are: math_reasoning")),
        ("youtu", "../eval/math/math_set", ("--config-name", "There is no")),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    tmp_path: Path, folder: str, name: str, words: tuple[str, ...]
) -> None:
    checkout(tmp_path / "youtu")
    with pytest.raises(ConfigError) as caught:
        find_youtu_config(str(tmp_path / folder), name, "practice")
    for word in words:
        assert word in str(caught.value)


# Overrides


@pytest.mark.parametrize(
    "override",
    ["practice.grpo_n=7", "practice.group_size=7"],
)
def test_overrides_work_in_either_spelling(tmp_path: Path, override: str) -> None:
    assert loaded(tmp_path, {}, override).config.practice.group_size == 7


def test_another_model_takes_the_place_of_the_agent_s_without_its_address(tmp_path: Path) -> None:
    for override in ("policy=rehearsal", "policy.model=rehearsal", "policy={model: rehearsal}"):
        policy = loaded(tmp_path, {}, override).config.policy
        assert (policy.model, policy.base_url, policy.api_key) == ("rehearsal", None, None)
        assert policy.top_p == 0.95
    other = loaded(tmp_path, {}, "policy.model=openai:other").config.policy
    assert (other.model, other.base_url) == ("openai:other", ENV["UTU_LLM_BASE_URL"])


def test_an_override_chooses_another_verifier_or_judge(tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "eval.verify_filename": "mine.py",
        "eval.judge_model": {"model_provider": PROVIDED},
        "eval.judge_concurrency": 3,
    }
    run = loaded(tmp_path, changes, "verifier=text", "judge=rehearsal").config
    assert run.verifier.spec == {"name": "text"}
    assert run.judge is not None
    assert (run.judge.model, run.judge.concurrency) == ("rehearsal", 3)
    given = loaded(tmp_path, {}, "evaluation.verify_filename=mine.py").config
    assert given.verifier.spec["file"].endswith("verify/mine.py")


def test_a_typo_in_an_override_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"override 'practice\.grpo_m=3'.*practice\.grpo_n"):
        loaded(tmp_path, {}, "practice.grpo_m=3")


def test_two_names_of_one_setting_are_refused_with_both_places(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"math_reasoning\.yaml:\d+: .*two names.*yaml:\d+"):
        loaded(tmp_path, {"practice.practice.group_size": 4})


# What has no counterpart


WITHOUT: dict[str, tuple[object, str]] = {
    "agent.max_turns": (50, "the agent answers in one turn"),
    "agent.runner": ("react", "runner (react) has no counterpart"),
    "agent.context_manager": ({"name": "base"}, "context_manager (name)"),
    "agent.model.termination_max_tokens": (5, "max_tokens bounds a reply"),
    "agent.model.model_settings.parallel_tool_calls": (True, "it is not sent"),
    "model.model_provider.type": ("responses", "asked for chat completions"),
    "eval.db_url": ("sqlite:///x.db", "kept in the workspace"),
    "eval.eval_method": ("GAIA", "the verifier judges"),
    "eval.data.type": ("mixed", "measured as a single one"),
}


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("root", ["practice", "eval"])
def test_what_has_no_counterpart_is_told_with_its_line_and_left_out(
    tmp_path: Path, name: str, root: str
) -> None:
    value, words = WITHOUT[name]
    run = loaded(tmp_path, {name: value}, root=root)
    (note,) = notes(run, words)
    file, line, _ = note.split(":", 2)
    text = (tmp_path / "youtu" / file).read_text().splitlines()[int(line) - 1]
    assert name.rpartition(".")[2] in text
    assert "has no counterpart here" in note


def test_a_toolkit_that_only_computes_is_told_by_its_name(tmp_path: Path) -> None:
    (note,) = notes(loaded(tmp_path), "toolkits (")
    assert "toolkits (python_executor) has no counterpart" in note
    assert note.startswith("configs/tools/python_executor.yaml:")


MISSING: dict[str, tuple[object, str]] = {
    "agent.type": ("orchestra", "of type orchestra: agents of several roles"),
    "agent.toolkits.search": ({"mode": "builtin"}, "toolkits that do not exist here: search"),
    "agent.env": ({"name": "shell_local"}, "env that do not exist here: shell_local"),
    "agent.enabled_skills": (["pdf", "xlsx"], "enabled_skills that do not exist here: pdf, xlsx"),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("root", ["practice", "eval"])
def test_an_agent_with_parts_that_do_not_exist_is_refused_by_their_names(
    tmp_path: Path, name: str, root: str
) -> None:
    value, words = MISSING[name]
    with pytest.raises(ConfigError, match=rf"^configs/.*\.yaml:\d+: .*{words}") as caught:
        loaded(tmp_path, {name: value}, root=root)
    key = ".".join(name.split(".")[:2])
    override = f"{key}=simple" if key == "agent.type" else f"{key}=null"
    assert key == "agent.type" or override in caught.value.move
    assert loaded(tmp_path, {name: value}, override, root=root).config.agent.name == "math_agent"


def test_an_agent_that_is_replaced_is_not_asked_for_its_parts(tmp_path: Path) -> None:
    home = checkout(tmp_path / "youtu", {"agent.type": "orchestra"})
    mine = write(tmp_path / "agent.yaml", "instructions: Solve it.\nmodel: rehearsal\n")
    asked = find_youtu_config(str(home), "math/math_set", "eval")
    run = load_run("", ["policy=rehearsal"], tmp_path, {}, agent=mine, youtu=asked).config
    assert run.agent.instructions == "Solve it."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agent.model.model_params", {"temperature": 0.2}),
        ("agent.type", "simple"),
        ("agent.context_manager", {}),
        ("agent.model.model_params", {}),
        ("agent.model.model_settings.include_usage", True),
        ("agent.model.model_settings.max_tokens", None),
        ("eval.exp_id", "another"),
        ("eval.eval_method", None),
        ("eval.data.question_field", "question"),
    ],
)
def test_what_changes_nothing_is_left_out_without_a_word(
    tmp_path: Path, name: str, value: object
) -> None:
    assert loaded(tmp_path, {name: value}).warnings == loaded(tmp_path).warnings


def test_a_key_nobody_knows_is_told_as_unknown_with_the_nearest(tmp_path: Path) -> None:
    changes = {"practice.practice.epochs_max": 9, "eval.pass_many": 3, "practice.game": {}}
    run = loaded(tmp_path, changes)
    assert run.config.practice.epochs == 1
    (typo,) = notes(run, '"practice.epochs_max"')
    assert "configs/practice/math_reasoning.yaml:" in typo and "unknown" in typo
    assert '"practice.epochs"' in typo
    assert notes(run, '"evaluation.pass_many" is unknown')


@pytest.mark.parametrize(
    ("name", "place", "meant"),
    [
        ("practice.practice.epoch", r"practice/math_reasoning\.yaml:\d+", "practice.epochs"),
        ("practice.practice.grpo_nn", r"practice/math_reasoning\.yaml:\d+", "practice.grpo_n"),
        ("eval.pass_kk", r"eval/math/math_set\.yaml:\d+", "evaluation.pass_k"),
        ("agent.agent.instruction", r"agents/.*\.yaml:\d+", "agent.instructions"),
    ],
)
def test_a_near_miss_of_a_setting_is_told_with_what_is_meant(
    tmp_path: Path, name: str, place: str, meant: str
) -> None:
    (note,) = notes(loaded(tmp_path, {name: 9}), "Did you mean")
    assert re.match(rf'configs/{place}: .*Did you mean "{meant}"\?', note)


@pytest.mark.parametrize("root", ["practice", "eval"])
def test_a_judge_without_a_verifier_judges_and_says_so(tmp_path: Path, root: str) -> None:
    run = loaded(tmp_path, {"eval.judge_model": {"model_provider": PROVIDED}}, root=root)
    assert run.config.verifier.name == "judge"
    assert notes(run, "the judge model judges")


def test_an_agent_file_without_a_model_takes_the_usual_variables(tmp_path: Path) -> None:
    policy = loaded(tmp_path, {"model.model_provider": GONE}).config.policy
    assert (policy.model, policy.base_url) == ("openai:rehearsal", ENV["UTU_LLM_BASE_URL"])


@pytest.mark.parametrize("written", [GONE, None, "", "${oc.env:EMPTY}"])
def test_an_address_or_key_that_a_model_leaves_open_is_that_of_the_usual_variables(
    tmp_path: Path, written: object
) -> None:
    changes: dict[str, object] = {
        f"model.model_provider.{field}": written for field in ("base_url", "api_key")
    }
    judge = {key: value for key, value in PROVIDED.items() if key in ("type", "model")}
    changes["eval.judge_model"] = {"model_provider": judge}
    run = loaded(tmp_path, changes, environ={"EMPTY": ""}).config
    for role in (run.policy, run.judge):
        assert role is not None and role.api_key is not None
        assert role.base_url == ENV["UTU_LLM_BASE_URL"]
        assert role.api_key.get_secret_value() == ENV["UTU_LLM_API_KEY"]
    assert run.origins["policy.api_key"] == "${oc.env:UTU_LLM_API_KEY}"


def test_a_variable_that_is_asked_for_and_not_set_falls_back_to_nothing(tmp_path: Path) -> None:
    changes: dict[str, object] = {"model.model_provider.api_key": "${oc.env:MINE}"}
    with pytest.raises(ConfigError, match="MINE, which is not set"):
        loaded(tmp_path, changes)


def test_an_empty_name_of_a_model_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    changes: dict[str, object] = {"eval.judge_model": {"model_provider": PROVIDED}}
    with pytest.raises(ConfigError, match=r"math_set\.yaml:\d+: The name of the model is empty"):
        loaded(tmp_path, changes, environ={"JUDGE_LLM_MODEL": ""})


# Environment and secrets


def test_the_real_environment_goes_before_the_file(tmp_path: Path) -> None:
    run = loaded(tmp_path, {}, environ={"UTU_LLM_MODEL": "mine"})
    assert run.config.policy.model == "openai:mine"


def test_a_missing_variable_is_told_with_its_line(tmp_path: Path) -> None:
    home = checkout(tmp_path / "youtu", env={})
    with pytest.raises(ConfigError, match=r"model/base\.yaml:\d+: .*UTU_LLM_MODEL"):
        load_run(
            "", [], tmp_path, {}, youtu=find_youtu_config(str(home), "math_reasoning", "practice")
        )


ENV_LINES = {
    "A=1": "1",
    "export A=1": "1",
    "  A = 1  ": "1",
    "A='x # y'": "x # y",
    'A="x y" # why': "x y",
    "A=x # why": "x",
    "A=x#y": "x#y",
    "A=http://h/#f": "http://h/#f",
    "A=": "",
    "A= # nothing": "",
    "A='it''s": "'it''s",
    "\ufeffA=1": "1",
    "A=1\r": "1",
    "A=1\nA=2": "2",
    "A=a=b": "a=b",
}


@pytest.mark.parametrize("line", ENV_LINES)
def test_a_line_of_env_is_read_as_a_shell_would(tmp_path: Path, line: str) -> None:
    home = checkout(tmp_path / "youtu")
    (home / ".env").write_bytes(f"{line}\n# a comment\nnonsense\n".encode())
    found = find_youtu_config(str(home), "math_reasoning", "practice").environment()
    assert found == {"A": ENV_LINES[line]}


def test_an_env_that_is_no_text_is_refused_without_its_content(tmp_path: Path) -> None:
    home = checkout(tmp_path / "youtu")
    (home / ".env").write_bytes(b"KEY=sk-\xff\xfe")
    with pytest.raises(ConfigError) as caught:
        find_youtu_config(str(home), "math_reasoning", "practice").environment()
    assert ".env" in str(caught.value) and "sk-" not in str(caught.value)


def test_the_resolved_file_is_in_our_names_holds_no_key_and_loads_to_an_equal_run(
    tmp_path: Path,
) -> None:
    changes: dict[str, object] = {
        "eval.judge_model": {"model_provider": PROVIDED, "model_params": {"temperature": 0.5}},
        "eval.verify_filename": "mine.py",
    }
    run = loaded(tmp_path, changes)
    text = dump_run_yaml(run.config)
    for secret in (ENV["UTU_LLM_API_KEY"], JUDGE["JUDGE_LLM_API_KEY"]):
        assert secret not in text
    assert yaml.safe_load(text)["policy"]["api_key"] == "${oc.env:UTU_LLM_API_KEY,none}"
    again = load_run(str(write(tmp_path / "run.yaml", text)), [], tmp_path, {**ENV, **JUDGE})
    assert again.config == run.config


# Data


def test_data_is_found_in_the_checkout_and_pinned(tmp_path: Path) -> None:
    for place in ("utu/practice/dataset", "data"):
        file = write(tmp_path / "youtu" / place / "sums.jsonl", '{"question":"1+1","answer":"2"}\n')
        run = loaded(tmp_path, {"practice.data.practice_dataset_name": "sums"})
        assert run.config.data.practice == str(file)
        file.unlink()


def test_data_of_the_workspace_goes_before_the_checkout_s(tmp_path: Path) -> None:
    row = '{"question":"1+1","answer":"2"}\n'
    write(tmp_path / "youtu/data/sums.jsonl", row)
    write(tmp_path / "practice/datasets/sums.jsonl", row)
    run = loaded(tmp_path, {"practice.data.practice_dataset_name": "sums"})
    assert run.config.data.practice == "sums"


def test_data_that_is_nowhere_says_how_to_add_it(tmp_path: Path) -> None:
    run = loaded(tmp_path, {"practice.data.practice_dataset_name": "DAPO-Math-17k"})
    with pytest.raises(DataError, match=r"studio data add FILE --name DAPO-Math-17k") as caught:
        run.data_path(str(run.config.data.practice))
    assert "math_reasoning.yaml:" in caught.value.place


# The same names in run files of our own


def written(folder: Path, text: str, *overrides: str) -> LoadedRun:
    path = write(folder / "mine.yaml", text)
    return load_run(str(path), overrides, folder / "workspace", JUDGE, cwd=folder)


OWN = "policy: rehearsal\ndata: {practice: arithmetic}\n"


def test_a_model_in_youtu_s_blocks_stands_for_a_role_of_any_run_file(tmp_path: Path) -> None:
    text = yaml.safe_dump({"judge_model": {"model_provider": PROVIDED, "model_params": {}}})
    judge = written(tmp_path, OWN + text + "judge_concurrency: 4\n").config.judge
    assert judge is not None
    assert (judge.model, judge.base_url, judge.concurrency) == (
        "openai:strict",
        "http://judge/v1",
        4,
    )


def test_a_held_out_set_may_be_written_as_youtu_does(tmp_path: Path) -> None:
    text = OWN + "evaluation:\n  data:\n    dataset: arithmetic-heldout\n    type: single\n"
    run = written(tmp_path, text)
    assert run.config.evaluation.data == ("arithmetic-heldout",)
    assert run.place("evaluation.data").endswith("mine.yaml:5")
    named = text + "    question_field: riddle\n    gt_field: truth\n"
    fields = written(tmp_path, named).config.data.fields
    assert fields == {"question": "riddle", "answer": "truth"}
    assert notes(written(tmp_path, text.replace("single", "mixed")), "data.type mixed")


@pytest.mark.parametrize("kind", ["verifier: math\n", "verifier: [math, text]\n"])
def test_a_verifier_named_twice_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.yaml:4: .*two names of one setting"):
        written(tmp_path, OWN + kind + "verify_filename: mine.py\n")


def test_blocks_that_hold_more_than_is_known_are_refused_in_a_run_file(tmp_path: Path) -> None:
    text = OWN + "judge:\n  model_provider: {model: m}\n  model_params:\n    seeds: 3\n"
    with pytest.raises(ConfigError, match=r"mine\.yaml:5: \"judge\.model_params\""):
        written(tmp_path, text)
