"""What `studio export` takes from a run, and the command that serves it.

Owns the choice of a checkpoint. `engines.grpo.checkpoint.folders` copies and merges.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from engines.core.codec import JsonMapping, JsonObject
from engines.core.errors import ConfigError, ConflictError
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.grpo.checkpoint import folders
from engines.policies.hf_local.settings import LocalSettings
from engines.record import appender, seal, yaml_text
from engines.record.formats.rows import format_agent_yaml
from engines.record.run_dir import RunDir, Workspace
from studio.facts.run import load_state_with_parents
from studio.library.references import version_at
from studio.run import models, new_or_resume

SERVERS = ("vllm",)
_AGENT = "agent.yaml"
_BUNDLED = f"hf:{models.BUNDLED}"
CLEAR_DIFFERENCE = 0.05
"""A held-out reward so much higher after another step gets a note."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank; it refuses others."""
_ON_CARD = ("practice.", "grpo.", "sft.", "policy.max_tokens", "policy.local.", "data.practice")


@frozen
class Export:
    kind: folders.Kind
    run: str
    found: folders.FoundCheckpoint
    folder: Path
    base: LocalSettings
    card: str
    note: str = ""  # why another step may be better
    agent: JsonMapping | None = None  # None: without experiences there is none to mount
    library: Library | None = None  # what stood in its prompts

    @property
    def facts(self) -> JsonObject:
        return {"folder": str(self.folder), "base": self.base.path, "step": self.found.step}

    @property
    def remarks(self) -> list[str]:
        """What was written, and why another step may be better."""
        said = [f"{self.kind} of run {self.run}, step {self.found.step}: {self.folder}"]
        if self.library is not None:
            held = f"with {len(self.library.experiences)} experiences of its library"
            said.append(f"{held}: {self.folder / _AGENT}")
        return said + ([f"warning: {self.note}"] if self.note else [])

    def write(self) -> None:
        """Raises StudioError: the checkpoint, its base model or the folder cannot be used."""
        if self.kind == "merged":
            folders.export_merged(self.found.folder, self.folder, self.card, self.base)
        else:
            folders.export_adapter(self.found.folder, self.folder, self.card)
        if self.agent is not None and self.library is not None:
            own = {"model": f"hf:{self.folder}"} if self.kind == "merged" else {}
            model = {k: v for k, v in self.agent["model"].items() if k != "adapter"} | own
            if self.kind == "adapter":
                model["adapter"] = str(self.folder)
            described = {**self.agent, "model": model}
            appender.write_atomic(
                self.folder / _AGENT, format_agent_yaml(described, self.library, self.run)
            )

    def command(self, server: str) -> list[str]:
        """The words of the command that serves the folder. Raises ConfigError: no such server."""
        check_server(server)
        if self.kind == "merged":
            return ["vllm", "serve", str(self.folder), "--served-model-name", self.run]
        rank = folders.adapter_rank(self.found.folder)
        allowed = next((one for one in _LORA_RANKS if one >= rank), rank)
        words = ["vllm", "serve", self.base.path, "--enable-lora"]
        words += ["--lora-modules", f"{self.run}={self.folder}", "--max-lora-rank", str(allowed)]
        if folders.base_facts(self.found.folder).get("quantise") == "nf4":
            words += ["--quantization", "bitsandbytes"]
        return words


def prepare_export(
    workspace: Workspace,
    run: str,
    folder: Path,
    kind: folders.Kind,
    *,
    step: int | None,
    best: bool,
) -> Export:
    """Find the checkpoint and make its model card; nothing is written. Raises StudioError."""
    folders.check_target(folder)
    taken = workspace.run(run)
    state = load_state_with_parents(taken, workspace)
    found = choose_checkpoint(taken, state, step, best)
    folders.check_seal(found.folder)  # before anything of it is shown
    run_file = run_settings(taken)
    card = folders.model_card(card_facts(taken, state, found, kind, run_file))
    base = base_settings(found.folder, run_file)
    note = _better_step_note(state, found.step)
    agent, library = _described_agent(workspace, taken, state, found.step)
    return Export(kind, run, found, folder, base, card, note, agent, library)


def _described_agent(
    workspace: Workspace, run: RunDir, state: RunState, step: int
) -> tuple[JsonObject | None, Library | None]:
    """A run's agent, and the library that it had after a step; None where that is empty."""
    if state.started is None or not run.agent_file.exists():
        return None, None
    library = workspace.library(state.started.library).at(version_at(state, step))
    seal.refuse_altered(run.agent_file)
    described = yaml_text.load_yaml(run.agent_file.read_text("utf-8"))
    described.pop("experiences", None)
    return (described, library) if library.experiences else (None, None)


def try_command(exported: Export, workspace: Path) -> str:
    """The command that tries what was exported, by the run file of its run."""
    words = ["studio", "try", str(Workspace(workspace).run(exported.run).run_file)]
    if exported.kind == "merged":
        words += [f"policy.model=hf:{exported.folder}", "policy.adapter=null"]
    else:
        words.append(f"policy.adapter={exported.folder}")
    return shlex.join(words)


def serve(words: list[str]) -> bool:
    """Run a serving command until it ends; False: it is not installed. Raises ConfigError."""
    # A virtual environment that is not activated has its programs beside Python.
    beside = Path(sys.executable).parent / words[0]
    program = shutil.which(words[0]) or (str(beside) if beside.is_file() else None)
    if program is None:
        return False
    ended = subprocess.run([program, *words[1:]], check=False).returncode
    if ended:
        raise ConfigError(
            "--serve-with", f"{words[0]} ended with status {ended}.", "See what it said above."
        )
    return True


def _better_step_note(state: RunState, step: int) -> str:
    """A note where held-out reward was clearly higher after another step; "" elsewhere."""
    best, known = state.best_step, [(e.step, e.mean) for e in state.evaluations]
    means = [[mean for at, mean in known if at == one and mean is not None] for one in (best, step)]
    if not all(means) or (lost := fmean(means[0]) - fmean(means[1])) < CLEAR_DIFFERENCE:
        return ""
    move = "--best exports that one" if best else "before any training"
    return f"held-out reward was {lost:.2f} higher after step {best}: {move}"


def choose_checkpoint(
    run: RunDir, state: RunState, step: int | None, best: bool
) -> folders.FoundCheckpoint:
    """The checkpoint of `step`, or of the `best` step, else the newest. Raises ConflictError."""
    found = folders.find_checkpoints(run.path)
    place = f"run {run.run}"
    if not found and not state.trains_weights:
        raise ConflictError(
            place,
            "it trained no weights, so there are none to folders.",
            "Train some: studio train grpo-tiny.",
        )
    if not found:
        raise ConflictError(
            place,
            "it has no checkpoint.",
            "Let it reach the end of an epoch, or set grpo.checkpoint_steps.",
        )
    step = state.best_step if best else step
    chosen = [one for one in found if one.step == step or (step is None and not best)]
    if not chosen:
        cause = f"step {step}"
        if best:
            cause = f"the best step, {step or 'which nothing has measured'},"
        steps = ", ".join(map(str, sorted({one.step for one in found})))
        raise ConflictError(
            place, f"{cause} has no checkpoint.", f"Name one with --step: there are {steps}."
        )
    return chosen[-1]


def base_settings(checkpoint: Path, run_file: JsonMapping) -> LocalSettings:
    """The base model of a checkpoint, as it is loaded for merging. Raises DamagedError."""
    base = folders.base_facts(checkpoint)
    # The bundled model's folder differs after the studio was installed anew.
    moved = run_file.get("policy.model") == _BUNDLED and not Path(base["name"]).exists()
    return LocalSettings(
        path=models.model_path(_BUNDLED) if moved else base["name"],
        dtype="bfloat16" if base.get("quantise") == "nf4" else base.get("dtype", "auto"),
        device="cpu",  # merging needs room for the whole model and no speed
        threads=1,
    )


def card_facts(
    run: RunDir,
    state: RunState,
    found: folders.FoundCheckpoint,
    kind: folders.Kind,
    run_file: JsonMapping,
) -> folders.CardFacts:
    """What is known of the weights from the run's journal, its run file and the checkpoint."""
    base = folders.base_facts(found.folder)
    versions = folders.read_facts(found.folder).get("versions", {})
    bundled = (
        base["name"] == models.model_path(_BUNDLED) or run_file.get("policy.model") == _BUNDLED
    )
    return folders.CardFacts(
        kind=kind,
        run=run.run,
        step=found.step,
        base="practice-studio/tiny" if bundled else base["name"],
        bundled=bundled,
        quantise=base.get("quantise", "none"),
        algorithm=str(run_file.get("practice.algorithm", "grpo")),
        rehearsal=state.started is not None and state.started.rehearsal,
        steps_finished=state.steps_finished,
        settings={key: run_file[key] for key in run_file if key.startswith(_ON_CARD)},
        evaluations=tuple(state.evaluations),
        versions={**versions, "practice-studio": version("practice-studio")},
    )


def run_settings(run: RunDir) -> JsonObject:
    """The run file by dotted key, as it was written; empty where it cannot be read.

    Only the card shows it, so that one which is no longer valid does no harm. Raises DamagedError:
    it was altered.
    """
    seal.refuse_altered(run.run_file)
    return dict(_flatten(new_or_resume.read_run_yaml(run.run_file) or {}, ""))


def check_server(server: str) -> None:
    if server not in SERVERS:
        raise ConfigError(
            "--serve-with", f"{server} is not supported.", f"There is {', '.join(SERVERS)}."
        )


def _flatten(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flatten(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
