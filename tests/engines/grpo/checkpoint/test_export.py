"""Exported weights: the same numbers as in the run, in folders that others load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sample_data
from engines.core.errors import ConfigError, ConflictError, DamagedError, RecordError
from engines.core.events import EvaluationFinished
from engines.core.types import NO_USAGE
from engines.grpo.checkpoint.contents import write_checkpoint
from engines.grpo.checkpoint.folders import (
    BUNDLED_LICENCE,
    CardFacts,
    adapter_rank,
    base_facts,
    export_adapter,
    export_merged,
    model_card,
)
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings
from tests.engines.grpo.checkpoints import a_state, adapted, trained
from tests.engines.grpo.models import a_folder

TOKENIZER = {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def local(base: Path) -> LocalModel:
    return trained(base)


@pytest.fixture(scope="module")
def saved(local: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "global_step_3"
    write_checkpoint(folder, local, a_state(local))
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def settings_of(base: Path) -> LocalSettings:
    return LocalSettings(str(base), device="cpu", threads=1)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(3, 40)[None]).logits
    return found


def test_merged_weights_reload_with_transformers_and_say_what_the_adapter_said(
    base: Path, local: LocalModel, saved: Path, tmp_path: Path
) -> None:
    export_merged(saved, tmp_path / "out", "card", settings_of(base))
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert (logits(whole) - logits(local.model)).abs().max() < 1e-5
    with local.disable_adapter():
        assert (logits(whole) - logits(local.model)).abs().max() > 0.1
    expected = {"config.json", "generation_config.json", "model.safetensors", "README.md"}
    assert names(tmp_path / "out") == expected | TOKENIZER
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == local.tokenizer.chat_template
    assert (tmp_path / "out" / "README.md").read_text() == "card"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers an old question
def test_the_adapter_is_copied_without_what_only_training_needs(
    base: Path, local: LocalModel, saved: Path, tmp_path: Path
) -> None:
    import peft  # takes three seconds to load

    (saved / "notes.txt").write_text("somebody's own")
    export_adapter(saved, tmp_path / "out", "card")
    expected = {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    assert names(tmp_path / "out") == expected | TOKENIZER
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(plain, str(tmp_path / "out")).eval()
    assert torch.equal(logits(theirs), logits(local.model))


def test_an_empty_folder_is_filled_and_one_that_is_not_is_left_alone(
    saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    export_adapter(saved, tmp_path / "empty", "card")
    assert "README.md" in names(tmp_path / "empty")
    with pytest.raises(ConfigError, match="is not empty"):
        export_adapter(saved, tmp_path / "empty", "other card")
    assert (tmp_path / "empty" / "README.md").read_text() == "card"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is no folder"):
        export_adapter(saved, tmp_path / "file", "card")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_that_fails_leaves_nothing(
    base: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(RecordError, match=r"the model cannot be written \(No space left"):
        export_merged(saved, tmp_path / "out" / "deep", "card", settings_of(base))
    assert names(tmp_path / "out") == set()


def test_another_base_than_the_run_was_trained_on_is_not_merged(
    saved: Path, tmp_path: Path
) -> None:
    other = a_folder(tmp_path / "other", seed=1)
    with pytest.raises(ConflictError, match=r"the weights of .*other are others"):
        export_merged(saved, tmp_path / "out", "card", settings_of(other))
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_not_exported(local: LocalModel, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    weights = tmp_path / "c" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="adapter_model"):
        export_adapter(tmp_path / "c", tmp_path / "out", "card")
    assert not (tmp_path / "out").exists()


def test_rank_and_base_are_read_from_the_checkpoint(
    base: Path, local: LocalModel, saved: Path, tmp_path: Path
) -> None:
    assert adapter_rank(saved) == 4
    assert base_facts(saved)["name"] == str(base)
    write_checkpoint(tmp_path / "c", local, a_state(local))
    config = tmp_path / "c" / "adapter_config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "rank_pattern": {"q_proj": 12}}))
    assert adapter_rank(tmp_path / "c") == 12
    config.write_text("[]")
    with pytest.raises(DamagedError):
        adapter_rank(tmp_path / "c")
    (tmp_path / "c" / "state.json").write_text('{"base": {}}')
    with pytest.raises(DamagedError, match="names no base model"):
        base_facts(tmp_path / "c")


def an_evaluation(step: int, mean: float | None, n: int = 512) -> EvaluationFinished:
    return EvaluationFinished(
        step=step,
        data="skills|heldout",
        policy_version=step,
        library_version=0,
        k=2,
        n=n,
        unjudged=3,
        mean=mean,
        usage=NO_USAGE,
    )


def a_card(**more: Any) -> str:
    return model_card(CardFacts(**{"kind": "adapter", "run": "r", "step": 30, "base": "b", **more}))


def test_a_card_tells_base_run_step_algorithm_and_settings() -> None:
    card = a_card(
        algorithm="grpo",
        steps_finished=60,
        settings={"grpo.learning_rate": 0.002, "practice.note": "```\n# heading"},
        versions={"torch": "2.13.0"},
    )
    assert 'base_model: "b"' in card
    assert "library_name: peft" in card
    assert 'tags: ["lora", "grpo"]' in card
    assert "after step 30 of 60" in card
    assert "Algorithm: grpo." in card
    assert "grpo.learning_rate: 0.002" in card
    assert card.count("```") == 2  # a value cannot end the block
    assert "Versions: torch 2.13.0." in card
    assert "It is not known here" in card
    assert "library_name: transformers" in a_card(kind="merged")


def test_a_card_shows_held_out_rewards_before_and_at_its_step_with_n() -> None:
    evaluations = (an_evaluation(0, 0.27), an_evaluation(15, 0.5), an_evaluation(30, 0.68, 509))
    card = a_card(evaluations=evaluations)
    assert "| skills\\|heldout | before training | 0.270 | 512 | 2 | 3 |" in card
    assert "| skills\\|heldout | 30 | 0.680 | 509 | 2 | 3 |" in card
    assert "0.500" not in card
    assert "| unknown |" in a_card(evaluations=(an_evaluation(30, None, 0),))
    assert "None were measured at this step." in a_card()


def test_a_card_says_rehearsal_bundled_and_quantised_where_it_is_so() -> None:
    plain = a_card()
    assert not any(word in plain for word in ("Rehearsal", "ships with", "NF4"))
    assert "scripted" in a_card(rehearsal=True)
    assert "tiny model that ships with practice studio" in a_card(bundled=True)
    own = (
        Path(sample_data.__file__)
        .with_name("tiny")
        .joinpath("README.md")
        .read_text()
        .splitlines()[1]
    )
    assert own == f"license: {BUNDLED_LICENCE}"
    assert own in a_card(bundled=True).splitlines()
    assert "not known here" not in a_card(bundled=True)
    assert "license:" not in plain and "not known here" in plain
    assert "Serve it on the same 4-bit weights" in a_card(quantise="nf4")
    assert "before quantising" in a_card(quantise="nf4", kind="merged")


def test_a_name_cannot_break_out_of_the_front_matter_or_hide() -> None:
    card = a_card(base='x"\n---\nlicense: mit', run="r\u202er")
    assert card.splitlines()[1] == 'base_model: "x\\"\\n---\\nlicense: mit"'
    assert "\u202e" not in card
    assert card.splitlines().count("---") == 2


def test_an_adapter_that_is_exported_can_be_begun_with(
    base: Path, local: LocalModel, saved: Path, tmp_path: Path
) -> None:
    export_adapter(saved, tmp_path / "out", "card")
    assert adapted(base, adapter=tmp_path / "out").weights_digest() == local.weights_digest()
