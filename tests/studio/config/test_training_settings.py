"""Settings of runs that train weights: what is refused, and where the refusal points."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engines.core.errors import ConfigError
from engines.grpo.settings import GRPOSettings, SFTSettings
from engines.policies.hf_local.policy import HFLocal
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.training_free.settings import LintSettings, TrainingFreeSettings
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import RESULT_FIELDS, fingerprint
from studio.run.assemble import grpo_settings, training_warnings
from studio.run.models import LocalModels, open_vllm_rollouts


def loaded(folder: Path, *overrides: str) -> LoadedRun:
    return load_run("grpo-tiny", list(overrides), folder / "practice", {}, folder)


def refused(folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, *overrides)
    return str(caught.value)


def test_the_preset_trains_the_bundled_model(tmp_path: Path) -> None:
    config = loaded(tmp_path).config
    assert config.trains
    assert config.policy.model == "hf:tiny"


@pytest.mark.parametrize(
    ("name", "ours"),
    [("GRPO", "grpo"), ("multi_step_grpo", "grpo"), ("training_free_grpo", "training_free")],
)
def test_an_algorithm_may_be_called_as_others_call_it(tmp_path: Path, name: str, ours: str) -> None:
    assert loaded(tmp_path, f"practice.algorithm={name}").config.practice.algorithm == ours


def test_an_unsupported_algorithm_is_refused_naming_the_supported(tmp_path: Path) -> None:
    said = refused(tmp_path, "practice.algorithm=ppo")
    assert "practice.algorithm" in said
    assert "ppo is not supported" in said
    assert "multi_step_grpo" in said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("policy.model=rehearsal", ("policy.model", "hf:")),
        ("policy.top_p=0.9", ("policy.top_p", "not the policy's own")),
        ("practice.temperature=0", ("practice.temperature", "the same")),
        ("practice.group_size=1", ("practice.group_size", "compared")),
        ("practice.given_ground_truth=false", ("practice.given_ground_truth", "rewards")),
        ("grpo.accumulation=3", ("grpo.accumulation", "minibatches")),
        ("grpo.learning_rate=0", ("grpo.learning_rate", "0")),
        ("grpo.aggregation=mean", ("grpo.aggregation", "dr_grpo")),
        ("grpo.clip=0.2", ("grpo.clip", "clip_low")),
        ("grpo.minibatches=true", ("grpo.minibatches", "true", "a number", "parts of")),
        ("grpo.iterations=2", ("grpo.iterations", "is not a setting")),
        ("grpo.lora.rnk=4", ("grpo.lora.rnk", 'Did you mean "grpo.lora.rank"')),
        ("grpo.lora.rank=0", ("grpo.lora.rank", "at least 1")),
        ("grpo.temperature=1", ("grpo.temperature", "is not a setting")),
        ("sft.min_reward=0.5", ("sft.min_reward", "is not a setting")),
        ("policy.local.rollouts_sleep=true", ('Did you mean "policy.local.rollouts_url"',)),
        ("practice.replies=1", ("practice.replies", "is not a setting")),
        ("practice.sampling=1", ("practice.sampling", "uniform")),
        ("policy.local.path=x", ("policy.local.path", "is not a setting")),
        ("policy.local.quantise=int8", ("policy.local.quantise", "nf4")),
        ("policy.adapter=nowhere", ("policy.adapter", "adapter_config.json")),
        ("policy.adapter=run:nobody", ("policy.adapter", "nobody")),
    ],
)
def test_a_refusal_names_setting_and_cause(
    tmp_path: Path, override: str, says: tuple[str, ...]
) -> None:
    said = refused(tmp_path, override)
    for part in says:
        assert part in said


def test_a_run_file_holds_the_classes_that_the_engines_read(tmp_path: Path) -> None:
    config = loaded(tmp_path).config
    assert isinstance(config.grpo, GRPOSettings)
    assert isinstance(config.sft, SFTSettings)
    assert isinstance(config.practice, TrainingFreeSettings)
    assert isinstance(config.lint, LintSettings)
    assert isinstance(config.policy.local, LocalSettings)


def test_a_training_free_run_may_cut_its_sampling(tmp_path: Path) -> None:
    config = loaded(tmp_path, "practice.algorithm=training_free", "policy.top_p=0.9").config
    assert config.policy.top_p == 0.9


@pytest.mark.parametrize("rate", [0.02, 1e-9])
def test_an_odd_learning_rate_is_warned_of(tmp_path: Path, rate: float) -> None:
    (said,) = training_warnings(loaded(tmp_path, f"grpo.learning_rate={rate}").config)
    assert f"grpo.learning_rate={rate:g}" in said


def test_a_usual_learning_rate_is_not(tmp_path: Path) -> None:
    assert training_warnings(loaded(tmp_path).config) == []


OTHER: dict[str, Any] = {
    "learning_rate": 1e-3,
    "schedule": "linear",
    "warmup": 0.25,
    "max_grad_norm": 0.5,
    "aggregation": "bnpo",
    "clip_low": 0.1,
    "clip_high": 0.3,
    "beta": 0.02,
    "minibatches": 4,
    "accumulation": 2,
    "micro_batch": 7,
    "advantage_scale": "none",
    "discount": 0.9,
}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_every_setting_of_the_algorithm_reaches_the_engine(
    tmp_path: Path, name: str, value: Any
) -> None:
    more = ["grpo.minibatches=4"] if name == "accumulation" else []
    config = loaded(tmp_path, *more, f"grpo.{name}={value}").config
    assert getattr(grpo_settings(config), name) == value


def test_the_rate_of_fine_tuning_reaches_its_engine(tmp_path: Path) -> None:
    assert loaded(tmp_path, "sft.learning_rate=0.002").config.sft.learning_rate == 2e-3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "bfloat16"),
        ("quantise", "nf4"),
        ("gradient_checkpointing", True),
        ("threads", 3),
    ],
)
def test_every_setting_of_a_local_model_reaches_it(tmp_path: Path, name: str, value: Any) -> None:
    config = loaded(tmp_path, f"policy.local.{name}={str(value).lower()}").config
    assert getattr(LocalModels(config, training=True).settings(config.policy), name) == value


async def test_rollouts_come_from_one_server_or_from_several(tmp_path: Path) -> None:
    urls = ["http://a:8000/v1", "http://b:8000/v1"]
    one = loaded(tmp_path, f"policy.local.rollouts_url={urls[0]}").config
    assert one.policy.local.rollouts_url == (urls[0],)
    both = loaded(tmp_path, f"policy.local.rollouts_url=[{','.join(urls)}]").config
    local = cast(HFLocal, SimpleNamespace(local=SimpleNamespace(window=64)))
    made = open_vllm_rollouts(both, local, print)
    await made.aclose()
    assert [server.settings.base_url for server in made._servers] == urls
    assert "'b' is no address" in refused(tmp_path, "policy.local.rollouts_url=[http://a/v1,b]")


def test_the_adapter_is_as_set_and_only_where_it_is_trained(tmp_path: Path) -> None:
    lora = {"rank": 3, "alpha": 5}
    given = [f"grpo.lora.{name}={value}" for name, value in lora.items()]
    config = loaded(tmp_path, "seed=11", *given).config
    made = LocalModels(config, training=True).settings(config.policy)
    assert made.lora == LoraSettings(3, 5)
    assert made.seed == 11
    assert LocalModels(config).settings(config.policy).lora is None


def test_settings_of_the_algorithm_are_results_and_those_of_checkpoints_are_not() -> None:
    assert {f"grpo.{name}" for name in OTHER} <= set(RESULT_FIELDS)
    assert "grpo.lora.rank" in RESULT_FIELDS
    assert not {"grpo.checkpoint_steps", "policy.local.threads"} & set(RESULT_FIELDS)


def test_a_model_folder_is_found_beside_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text(
        "policy: {model: hf:models/mine}\ndata: {practice: arithmetic}\n"
    )
    found = load_run(str(tmp_path / "mine.yaml"), [], tmp_path / "practice", {}, Path("/"))
    assert found.config.policy.model == f"hf:{tmp_path / 'models' / 'mine'}"


def test_a_name_that_is_no_folder_is_left_to_the_hub(tmp_path: Path) -> None:
    config = loaded(tmp_path, "policy.model=hf:somebody/some-model").config
    assert config.policy.model == "hf:somebody/some-model"


def test_the_adapter_of_a_run_is_the_same_setting_in_a_moved_workspace(tmp_path: Path) -> None:
    found = []
    for place in ("here", "there"):
        step = tmp_path / place / "practice/runs/sft/checkpoints/sft/Experiment-1/global_step_2"
        step.mkdir(parents=True)
        (step / "digest.json").write_text("{}")
        config = loaded(tmp_path / place, "policy.adapter=run:sft").config
        assert config.policy.adapter == str(step)
        found.append(fingerprint(config)["policy.adapter"])
    assert found[0] == found[1]
