"""`studio export`: which checkpoint, where to, what is printed, and how it is served."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from engines.core import events as ev
from engines.core.types import NO_USAGE
from engines.grpo.checkpoint.contents import write_checkpoint
from engines.policies.hf_local.model import LocalModel
from engines.record.journal import Journal
from engines.record.seal import add_seal
from tests.engines.grpo.checkpoints import a_state, checkpoint_name, trained
from tests.engines.grpo.models import a_folder
from tests.support.builders import a_run
from tests.support.run_studio import Result, studio

RUN_FILE = """
practice: {algorithm: grpo, epochs: 6}
policy: {model: "hf:%s"}
grpo: {learning_rate: 0.002}
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def local(base: Path) -> LocalModel:
    return trained(base)


def a_trained_run(
    workspace: Path,
    local: LocalModel,
    *,
    steps: Sequence[int] = (2, 10),
    means: Sequence[tuple[int, float]] = ((0, 0.2), (2, 0.9), (10, 0.6)),
    rehearsal: bool = False,
) -> Path:
    """The folder of run `r`: its journal, its run file and a checkpoint of each step."""
    folder = workspace / "runs" / "r"
    journal = Journal(folder / "journal.jsonl")
    journal.append_now(a_run(run="r", exp_id="r", rehearsal=rehearsal))
    journal.append_now(ev.EngineOpened(local.facts()))
    for step, mean in means:
        found = ev.EvaluationFinished(
            step=step,
            data="held",
            policy_version=step,
            library_version=0,
            k=1,
            n=10,
            unjudged=0,
            mean=mean,
            usage=NO_USAGE,
            problems=("p",),
            rewards=((mean,),),
        )
        journal.append_now(found)
    journal.close()
    (folder / "run.yaml").write_text(RUN_FILE % local.settings.path)
    for step in steps:
        place = folder / "checkpoints" / "r" / "Experiment-20260101000000" / checkpoint_name(step)
        write_checkpoint(place, local, a_state(local))
    return folder


@pytest.fixture
def run(workspace: Path, local: LocalModel) -> Path:
    return a_trained_run(workspace, local)


def export(workspace: Path, *words: str) -> Result:
    return studio("export", *words, workspace=workspace)


def a_vllm(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """A program of that name, first on PATH, that writes down what it was given."""
    folder.mkdir()
    heard = folder / "heard.json"
    program = folder / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump(sys.argv[1:], open({str(heard)!r}, 'w'))\nsys.exit({status})\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + os.environ["PATH"])
    return heard


def test_the_newest_adapter_is_copied_and_its_folder_printed(
    run: Path, workspace: Path, tmp_path: Path
) -> None:
    done = export(workspace, "r", "--adapter", "--to", str(tmp_path / "out"))
    assert (done.code, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    assert f"adapter of run r, step 10: {tmp_path / 'out'}" in done.stderr
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# r, step 10" in card
    assert "| held | before training | 0.200 | 10 | 1 | 0 |" in card
    assert "| held | 10 | 0.600 | 10 |" in card
    assert "grpo.learning_rate: 0.002" in card
    assert "practice.epochs: 6" in card
    assert "Algorithm: grpo" in card


def test_a_relative_folder_is_below_the_current_one(run: Path, workspace: Path) -> None:
    done = export(workspace, "r", "--adapter", "--to", "out")
    assert done.stdout == f"{workspace.parent / 'out'}\n"


def test_the_merged_model_is_one_that_transformers_loads(
    run: Path, workspace: Path, tmp_path: Path, local: LocalModel
) -> None:
    done = export(workspace, "r", "--merged", "--to", str(tmp_path / "out"), "--step", "2")
    assert (done.code, done.stdout) == (0, f"{tmp_path / 'out'}\n"), done.stderr
    told, then = done.stderr.splitlines()
    assert told == f"merged of run r, step 2: {tmp_path / 'out'}"
    assert then.endswith(f"run.yaml policy.model=hf:{tmp_path / 'out'} policy.adapter=null")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        assert (whole(ids).logits - local.model(ids).logits).abs().max() < 1e-5
    assert "# r, step 2" in (tmp_path / "out" / "README.md").read_text()


def test_a_step_or_the_best_step_can_be_named(run: Path, workspace: Path, tmp_path: Path) -> None:
    for words, step in ((("--step", "2"), 2), (("--best",), 2), ((), 10)):
        target = tmp_path / "-".join(("out", *words))
        done = export(workspace, "r", "--adapter", "--to", str(target), *words, "--json")
        assert json.loads(done.stdout)["step"] == step


def test_json_has_folder_base_step_and_command(
    run: Path, workspace: Path, tmp_path: Path, base: Path
) -> None:
    words = ("r", "--adapter", "--to", str(tmp_path / "out"), "--json")
    assert json.loads(export(workspace, *words).stdout) == {
        "folder": str(tmp_path / "out"),
        "base": str(base),
        "step": 10,
        "command": None,
    }


def test_vllm_is_told_base_adapter_and_a_rank_that_it_takes(
    run: Path, workspace: Path, tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = a_vllm(tmp_path / "bin", monkeypatch)
    out = tmp_path / "out"
    done = export(workspace, "r", "--adapter", "--to", str(out), "--serve-with", "vllm")
    expected = ["serve", str(base), "--enable-lora", "--lora-modules", f"r={out}"]
    expected += ["--max-lora-rank", "8"]  # the adapter has 4, which vLLM does not offer
    assert json.loads(heard.read_text()) == expected
    assert (done.code, done.stdout) == (0, f"vllm {' '.join(expected)}\n")


def test_vllm_serves_a_merged_folder_under_the_name_of_the_run(
    run: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = a_vllm(tmp_path / "bin", monkeypatch)
    out = tmp_path / "with blank"
    words = ("r", "--merged", "--to", str(out), "--serve-with", "vllm")
    assert export(workspace, *words).stdout == f"vllm serve '{out}' --served-model-name r\n"
    assert json.loads(heard.read_text()) == ["serve", str(out), "--served-model-name", "r"]


def test_four_bit_weights_are_told_to_vllm(
    base: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantised = trained(base)
    quantised.settings = replace(quantised.settings, quantise="nf4")
    a_trained_run(workspace, quantised)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    done = export(
        workspace, "r", "--adapter", "--to", str(tmp_path / "out"), "--serve-with", "vllm"
    )
    assert done.stdout.endswith(" --quantization bitsandbytes\n")
    assert "NF4" in (tmp_path / "out" / "README.md").read_text()


def test_without_vllm_the_command_is_printed_and_that_is_said(
    run: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    words = ("r", "--adapter", "--to", str(tmp_path / "out"), "--serve-with", "vllm")
    done = export(workspace, *words)
    assert done.code == 0
    assert done.stdout.startswith("vllm serve ")
    assert "vLLM is not installed here" in done.stderr


def test_a_server_that_fails_is_told_with_its_status(
    run: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_vllm(tmp_path / "bin", monkeypatch, status=7)
    words = ("r", "--adapter", "--to", str(tmp_path / "out"), "--serve-with", "vllm")
    done = export(workspace, *words)
    assert (done.code, "vllm ended with status 7" in done.stderr) == (2, True)


def test_rehearsal_is_said_on_the_card(workspace: Path, tmp_path: Path, local: LocalModel) -> None:
    a_trained_run(workspace, local, rehearsal=True)
    export(workspace, "r", "--adapter", "--to", str(tmp_path / "out"))
    assert "**Rehearsal**" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("r", "--to", "out"), "both are missing. Give exactly one"),
        (("r", "--to", "out", "--merged", "--adapter"), "they contradict each other"),
        (("r", "--to", "out", "--adapter", "--best", "--step", "2"), "Give one of them"),
        (("r", "--to", "out", "--adapter", "--serve-with", "ollama"), "There is vllm."),
        (
            ("r", "--to", "out", "--adapter", "--step", "3"),
            "--step: there are 2, 10.",
        ),
        (("q", "--to", "out", "--adapter"), "there is none in"),
        (("r", "--to", "runs", "--adapter"), "is not empty. Name a new folder."),
        (("r", "--to", "file", "--adapter"), "is no folder. Name a new folder."),
        (("r", "--adapter"), "--to"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    words: tuple[str, ...], told: str, run: Path, workspace: Path
) -> None:
    (workspace / "file").write_text("mine")
    before = sorted(workspace.iterdir())
    done = studio("export", *words, workspace=workspace, cwd=workspace)
    assert (done.code, done.stdout) == (2, "")
    assert told in " ".join(done.stderr.split())
    assert sorted(workspace.iterdir()) == before


def test_a_run_without_a_checkpoint_names_the_next_move(
    workspace: Path, local: LocalModel, practised: Path
) -> None:
    words = ("--adapter", "--to", "out")
    plain = export(workspace, "rehearsal", *words)
    assert plain.code == 2
    assert "it trained no weights" in plain.stderr and "studio train grpo-tiny" in plain.stderr
    a_trained_run(workspace, local, steps=())
    young = export(workspace, "r", *words)
    assert young.code == 2
    assert "it has no checkpoint" in young.stderr and "grpo.checkpoint_steps" in young.stderr


def test_the_best_step_is_told_where_it_has_no_checkpoint_or_is_not_known(
    workspace: Path, local: LocalModel
) -> None:
    words = ("r", "--adapter", "--to", "out", "--best")
    a_trained_run(workspace, local, steps=(10,))
    assert "the best step, 2, has no checkpoint" in export(workspace, *words).stderr
    other = workspace.with_name("other")
    a_trained_run(other, local, means=())
    done = export(other, *words)
    assert (done.code, "the best step, which nothing has measured," in done.stderr) == (2, True)


def test_a_base_model_that_is_gone_is_named(workspace: Path, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "gone")
    a_trained_run(workspace, trained(folder))
    folder.rename(tmp_path / "elsewhere")
    done = export(workspace, "r", "--merged", "--to", "out")
    assert done.code == 2
    assert str(folder) in done.stderr
    assert not (workspace.parent / "out").exists()
    assert export(workspace, "r", "--adapter", "--to", "out").code == 0


def test_without_the_extra_one_line_says_what_to_install(
    run: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr("engines.policies.open.find_spec", lambda name: None)
    done = export(workspace, "r", "--merged", "--to", "out")
    assert done.code == 2
    assert "pip install" in done.stderr and "[grpo]'" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_nothing_is_exported_by_a_run_file_that_was_altered(
    run: Path, workspace: Path, tmp_path: Path
) -> None:
    file = run / "run.yaml"
    file.write_bytes(add_seal(file.read_bytes()).replace(b"epochs: 6", b"epochs: 7"))
    done = export(workspace, "r", "--adapter", "--to", str(tmp_path / "out"))
    assert done.code == 2 and "run.yaml: it was altered" in done.stderr
    assert not (tmp_path / "out").exists()
