"""Checkpoints: whole or absent, the same bit for bit, and refused where they do not belong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engines.core.errors import ConfigError, ConflictError, DamagedError, RecordError
from engines.grpo.checkpoint import contents, folders
from engines.grpo.checkpoint.contents import EngineState, read_checkpoint, write_checkpoint
from engines.grpo.checkpoint.folders import (
    FoundCheckpoint,
    find_checkpoints,
)
from engines.policies.hf_local.model import LocalModel
from engines.policies.hf_local.settings import LocalSettings, LoraSettings
from engines.policies.open import load_local
from tests.engines.grpo.checkpoints import a_state, adapted, checkpoint_name, trained
from tests.engines.grpo.models import a_folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def local(base: Path) -> LocalModel:
    return trained(base)


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_state_comes_back_bit_for_bit(local: LocalModel, tmp_path: Path) -> None:
    odd = {
        "half": torch.tensor([0.1, -3e-8], dtype=torch.bfloat16),
        "number": torch.tensor(7),
        "turned": torch.arange(6.0).view(2, 3).T,  # not contiguous
        "empty": torch.zeros(0, 4),
        "random": torch.get_rng_state(),
    }
    odd["shared"] = odd["turned"]
    plain = {"step": 3, "rates": [0.1, 1e-300], "name": "Zoë"}
    state = EngineState(local.adapter_state(), odd, plain, guard=local.adapter_state())
    write_checkpoint(tmp_path / "c", local, state)
    read = read_checkpoint(tmp_path / "c", local)
    assert read.plain == plain
    for before, after in (
        (state.adapter, read.adapter),
        (state.optimiser, read.optimiser),
        (state.guard, read.guard),
    ):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert tensor.dtype == after[name].dtype
            assert torch.equal(tensor, after[name])


def test_reading_leaves_the_model_as_it_is_and_loading_gives_the_same_weights(
    base: Path, local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    other = adapted(base)
    fresh = other.weights_digest()
    state = read_checkpoint(tmp_path / "c", other)
    assert other.weights_digest() == fresh
    other.load_adapter_state(state.adapter)
    assert other.weights_digest() == local.weights_digest() != fresh


def test_what_is_saved_are_the_weights_of_the_state_and_not_those_of_the_moment(
    base: Path, local: LocalModel, tmp_path: Path
) -> None:
    state = a_state(local)
    moved = trained(base, seed=2)
    write_checkpoint(tmp_path / "c", moved, state)
    moved.load_adapter_state(read_checkpoint(tmp_path / "c", moved).adapter)
    assert moved.weights_digest() == local.weights_digest()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers an old question
def test_peft_loads_it_and_computes_the_same(base: Path, local: LocalModel, tmp_path: Path) -> None:
    import peft  # takes three seconds to load

    write_checkpoint(tmp_path / "c", local, a_state(local))
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(plain, str(tmp_path / "c")).eval()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, local.model(ids).logits)
        with local.disable_adapter():
            assert not torch.allclose(theirs(ids).logits, local.model(ids).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "c")
    assert tokenizer("a b")["input_ids"] == local.tokenizer("a b")["input_ids"]
    assert tokenizer.chat_template == local.tokenizer.chat_template


def test_a_checkpoint_is_an_adapter_to_begin_with(
    base: Path, local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    begun = adapted(base, adapter=tmp_path / "c")
    assert begun.weights_digest() == local.weights_digest()
    assert begun.trainable_parameters()


def test_the_same_state_has_the_same_digest_and_another_has_another(
    local: LocalModel, tmp_path: Path
) -> None:
    first = write_checkpoint(tmp_path / "a", local, a_state(local))
    assert write_checkpoint(tmp_path / "b", local, a_state(local)) == first
    assert everything(tmp_path / "a") == everything(tmp_path / "b")
    assert write_checkpoint(tmp_path / "d", local, a_state(local, step=4)) != first


def test_base_model_and_versions_are_told(local: LocalModel, base: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    facts = json.loads((tmp_path / "c" / "state.json").read_bytes())
    assert facts["base"] == {
        "name": str(base),
        "digest": local.base_digest,
        "dtype": "float32",
        "quantise": "none",
    }
    assert facts["versions"]["torch"] == torch.__version__
    assert {"transformers", "peft", "safetensors"} <= facts["versions"].keys()


class Cut(BaseException):
    """Stands for the end of the process: nothing but `finally` sees it."""


@pytest.mark.parametrize("at", ["tokenizer", "seal", "rename"])
def test_a_writing_that_is_cut_leaves_the_earlier_checkpoint_as_it_was(
    at: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = trained(base)
    folder = tmp_path / "steps" / checkpoint_name(3)
    write_checkpoint(folder, local, a_state(local))
    before = everything(folder)

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    match at:
        case "tokenizer":
            monkeypatch.setattr(local.tokenizer, "save_pretrained", cut)
        case "seal":
            monkeypatch.setattr(folders, "seal", cut)
        case _:
            monkeypatch.setattr(folders, "_swap_folders", cut)
    with pytest.raises(Cut):
        write_checkpoint(folder, local, a_state(local, step=4))
    assert everything(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    with pytest.raises(Cut):
        if at == "rename":
            monkeypatch.setattr(os, "replace", cut)
        write_checkpoint(folder.with_name(checkpoint_name(4)), local, a_state(local))
    assert find_checkpoints(tmp_path) == ()  # it lies in no run's checkpoints folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_process_killed_between_the_two_moves_of_a_replacement_loses_nothing(
    local: LocalModel, tmp_path: Path
) -> None:
    folder = tmp_path / checkpoint_name(3)
    write_checkpoint(folder, local, a_state(local))
    folder.rename(tmp_path / ".global_step_3.4711.replaced")
    assert read_checkpoint(folder, local).plain == {"step": 3}
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_what_a_killed_writer_left_is_swept_up_and_nothing_else(
    local: LocalModel, tmp_path: Path
) -> None:
    left, other = tmp_path / ".global_step_2.4711.partial", tmp_path / ".other.1.partial"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").write_bytes(b"x")
    write_checkpoint(tmp_path / checkpoint_name(3), local, a_state(local))
    assert not left.exists()
    assert other.exists()


def test_a_disk_that_refuses_is_told_by_place_cause_and_move(
    local: LocalModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RecordError) as refused:
        write_checkpoint(tmp_path / "file" / checkpoint_name(1), local, a_state(local))
    assert refused.value.place.endswith("global_step_1")
    assert "cannot be written" in refused.value.cause
    assert "Make room" in refused.value.move


@pytest.mark.parametrize(
    "name", ["adapter_model.safetensors", "optimiser.safetensors", "state.json", "tokenizer.json"]
)
@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_damaged_file_is_named_and_nothing_is_loaded(
    name: str, harm: str, local: LocalModel, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    write_checkpoint(folder, local, a_state(local))
    data = bytearray((folder / name).read_bytes())
    if harm == "changed":
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
    else:
        (folder / name).unlink()
    with pytest.raises(DamagedError, match=name) as refused:
        read_checkpoint(folder, local)
    assert refused.value.place in (str(folder), str(folder / name))
    assert "earlier checkpoint" in refused.value.move


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"format": 1, "files": 3}'])
def test_a_folder_without_a_whole_seal_is_no_checkpoint(
    content: bytes | None, local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    seal = tmp_path / "c" / "digest.json"
    seal.unlink()
    if content is not None:
        seal.write_bytes(content)
    with pytest.raises(DamagedError):
        read_checkpoint(tmp_path / "c", local)


def test_a_seal_that_was_made_to_fit_other_files_contradicts_itself(
    local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    seal = tmp_path / "c" / "digest.json"
    told = json.loads(seal.read_bytes())
    del told["files"]["optimiser.safetensors"]
    seal.write_text(json.dumps(told))
    with pytest.raises(DamagedError, match="contradicts itself"):
        read_checkpoint(tmp_path / "c", local)


def test_a_newer_format_names_the_version_that_is_needed(local: LocalModel, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    seal = tmp_path / "c" / "digest.json"
    seal.write_text(json.dumps({**json.loads(seal.read_bytes()), "format": 2}))
    with pytest.raises(RecordError, match="format 2"):
        read_checkpoint(tmp_path / "c", local)


def test_a_missing_folder_says_so(local: LocalModel, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "nothing", local)


def test_another_base_model_is_refused_by_its_weights_and_not_by_its_path(
    base: Path, local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    moved = a_folder(tmp_path / "moved")  # the same weights elsewhere
    assert read_checkpoint(tmp_path / "c", adapted(moved)).plain == {"step": 3}
    other = adapted(a_folder(tmp_path / "other", seed=1))
    with pytest.raises(ConflictError) as refused:
        read_checkpoint(tmp_path / "c", other)
    assert str(base) in refused.value.cause
    assert str(tmp_path / "other") in refused.value.cause


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        (LoraSettings(rank=2, alpha=8), "r 4, and this run's 2"),
        (LoraSettings(rank=4, alpha=16), "lora_alpha 8, and this run's 16"),
    ],
)
def test_another_shape_or_scale_of_adapter_is_refused(
    lora: LoraSettings, told: str, base: Path, local: LocalModel, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "c", local, a_state(local))
    with pytest.raises(ConflictError, match=told):
        read_checkpoint(tmp_path / "c", adapted(base, lora=lora))


def test_a_model_without_an_adapter_has_nothing_to_save(base: Path, tmp_path: Path) -> None:
    frozen = load_local(LocalSettings(str(base), device="cpu", threads=1), tell=lambda _: None)
    with pytest.raises(ConfigError, match="without an adapter"):
        write_checkpoint(tmp_path / "c", frozen, EngineState({}))
    assert not (tmp_path / "c").exists()


def test_checkpoints_of_a_run_are_found_by_step_and_half_ones_are_not(
    local: LocalModel, tmp_path: Path
) -> None:
    below = tmp_path / "checkpoints" / "exp" / "Experiment-20260101000000"
    for step in (10, 2):
        write_checkpoint(below / checkpoint_name(step), local, a_state(local))
    (below / checkpoint_name(30)).mkdir()  # nothing in it
    write_checkpoint(below / checkpoint_name(40), local, a_state(local))
    (below / checkpoint_name(40)).rename(below / ".global_step_40.1.partial")
    assert find_checkpoints(tmp_path) == (
        FoundCheckpoint(2, below / "global_step_2"),
        FoundCheckpoint(10, below / "global_step_10"),
    )


def test_plain_state_that_is_no_json_is_refused_before_anything_stands(
    local: LocalModel, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_checkpoint(tmp_path / "c", local, a_state(local, reward=float("nan")))
    assert list(tmp_path.iterdir()) == []


def test_nobody_else_can_read_it(local: LocalModel, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run" / "c", local, a_state(local))
    assert (tmp_path / "run" / "c").stat().st_mode & 0o777 == 0o700
    assert contents.OPTIMISER in everything(tmp_path / "run" / "c")
