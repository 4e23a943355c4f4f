"""Checkpoints as folders: written whole or not at all, sealed with a digest, and found again.

Also copied for use without the studio, with a model card: the adapter byte for byte and without
torch, while merged weights are computed. What lies in the files is `contents`'s.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from engines.core.errors import ConfigError, ConflictError, DamagedError, RecordError
from engines.core.events import EvaluationFinished
from engines.core.frozen import frozen
from engines.core.text.sanitize import escape_unsafe
from engines.policies.hf_local.settings import LocalSettings

SEAL = "digest.json"
STATE = "state.json"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
FORMAT = 1  # of the folder; a reader refuses what it does not know
_STEP = re.compile(r"global_step_(\d+)")
_NEXT = "Resume from an earlier checkpoint of the run, or train it anew."


@frozen
class FoundCheckpoint:
    """A finished checkpoint of a run: `step` counts steps over the whole run."""

    step: int
    folder: Path


def find_checkpoints(run_folder: Path) -> tuple[FoundCheckpoint, ...]:
    """All of a run, by step; of one step that was saved by several processes, the newest last."""
    folders = (path.parent for path in (run_folder / "checkpoints").glob(f"**/{SEAL}"))
    found = [
        (int(match[1]), folder.stat().st_mtime_ns, str(folder), folder)
        for folder in folders
        if (match := _STEP.fullmatch(folder.name))
        and not any(part.startswith(".") for part in folder.relative_to(run_folder).parts)
    ]
    return tuple(FoundCheckpoint(step, folder) for step, _, _, folder in sorted(found))


@contextmanager
def atomic_folder(
    folder: Path, *, what: str = "checkpoint", replace: bool = True
) -> Iterator[Path]:
    """Yield an empty folder to write into, which takes `folder`'s place once it is complete.

    Until then whatever stands there stays as it is, also when the process is killed: what is
    left behind has a hidden name and is swept up at the next writing. With `replace` an older
    `folder` gives way; otherwise only an empty one does.

    Raises RecordError: the disk is full or refuses.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    mode = 0o700 if replace else 0o777
    try:
        folder.parent.mkdir(mode=mode, parents=True, exist_ok=True)
        if replace:
            restore_replaced(folder)
        _remove_leftovers(folder)
        partial.mkdir(mode=mode)
        yield partial
        for path in (*sorted(partial.rglob("*")), partial):
            _sync_to_disk(path)
        if replace and folder.exists():
            _swap_folders(partial, folder)
        else:
            os.replace(partial, folder)
        _sync_to_disk(folder.parent)
    except OSError as error:
        raise RecordError(
            str(folder),
            f"the {what} cannot be written ({error.strerror or error}).",
            "Make room or mend the permissions, then give the same command again: nothing "
            "that was there is touched.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def restore_replaced(folder: Path) -> None:
    """Put back what a process that was killed while replacing `folder` had set aside."""
    for aside in sorted(folder.parent.glob(f".{folder.name}.*.replaced")):
        if folder.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(folder)


def seal(folder: Path) -> str:
    """Write the digest of every file below `folder` beside them; returns that of the whole."""
    files = {
        path.relative_to(folder).as_posix(): _file_digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
    whole = _combined_digest(files)
    (folder / SEAL).write_text(
        json.dumps({"format": FORMAT, "digest": whole, "files": files}, indent=2, sort_keys=True)
    )
    return whole


def check_seal(folder: Path) -> str:
    """Check every sealed file; returns the digest. Files added since do no harm.

    Raises:
        RecordError: there is no checkpoint, or one of a newer format.
        DamagedError: a file is missing or not as it was written.
    """
    if not folder.is_dir():
        raise RecordError(str(folder), "there is no checkpoint.", _NEXT)
    try:
        sealed = json.loads((folder / SEAL).read_bytes())
        written, files, whole = sealed["format"], dict(sealed["files"]), str(sealed["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_error(folder / SEAL, error) from error
    if written != FORMAT:
        raise RecordError(
            str(folder),
            f"the checkpoint has format {written}, and this version reads {FORMAT}.",
            "Use the version of practice studio that wrote it.",
        )
    for name, expected in files.items():
        try:
            actual = _file_digest(folder / name)
        except OSError as error:
            raise damaged_error(folder / name, error) from error
        if actual != expected:
            raise DamagedError(
                str(folder), f"{name} is not as it was written: its digest differs.", _NEXT
            )
    if _combined_digest(files) != whole:
        raise DamagedError(str(folder), f"{SEAL} contradicts itself.", _NEXT)
    return whole


def read_facts(folder: Path) -> dict[str, Any]:
    """A checkpoint's `state.json`: base model, versions and the engine's own plain values.

    Raises DamagedError: it is not there or no JSON object.
    """
    try:
        return dict(json.loads((folder / STATE).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise damaged_error(folder / STATE, error) from error


def damaged_error(path: Path, error: Exception) -> RecordError:
    """A file that cannot be read: damaged, unless the system refuses it."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return RecordError(
            str(path), f"cannot be read ({error.strerror or error}).", "Mend its permissions."
        )
    cause = "it is missing." if isinstance(error, OSError) else f"it cannot be read ({error})."
    return DamagedError(str(path), cause, _NEXT)


def _swap_folders(partial: Path, folder: Path) -> None:
    # A folder with files cannot be replaced in one move; `restore_replaced` undoes the first.
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.replaced")
    os.replace(folder, aside)
    os.replace(partial, folder)
    _sync_to_disk(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left: of other steps too, since one process writes at a time."""
    named = "global_step_*" if _STEP.fullmatch(folder.name) else glob.escape(folder.name)
    for path in folder.parent.glob(f".{named}.*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def _sync_to_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _combined_digest(files: dict[str, str]) -> str:
    listed = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()[:32]


CARD = "README.md"
_OURS = frozenset({SEAL, STATE, "optimiser.safetensors", "guard.safetensors"})
_WEIGHTS = frozenset({ADAPTER, ADAPTER_CONFIG})


def check_target(to: Path) -> None:
    """Refuse to overwrite. Raises ConfigError: `to` is a file, or a folder that is not empty."""
    if to.is_dir():
        if any(to.iterdir()):
            raise ConfigError("--to", f"{to} is not empty.", "Name a new folder.")
    elif to.exists() or to.is_symlink():
        raise ConfigError("--to", f"{to} is no folder.", "Name a new folder.")


def export_adapter(checkpoint: Path, to: Path, card: str) -> None:
    """Copy adapter and tokenizer, and write the card as README.md.

    Raises:
        RecordError: the checkpoint is missing or damaged, or `to` cannot be written.
        ConfigError: see `check_target`.
    """
    check_seal(checkpoint)
    check_target(to)
    with atomic_folder(to, what="adapter", replace=False) as partial:
        _copy_sealed_files(checkpoint, partial, without=_OURS)
        (partial / CARD).write_text(card, "utf-8")


def export_merged(checkpoint: Path, to: Path, card: str, base: LocalSettings) -> None:
    """Merge the adapter into its base model and save the whole as safetensors.

    `base` is the model that the checkpoint was trained on. 4-bit weights are merged at the
    precision they were quantised from.

    Raises:
        RecordError, ConfigError: as `export_adapter`.
        ConflictError, PolicyError: the base model is another one, or cannot be loaded.
    """
    check_seal(checkpoint)
    check_target(to)
    facts = base_facts(checkpoint)
    from engines.policies.open import load_local

    local = load_local(
        replace(base, adapter=checkpoint, lora=None, quantise="none", gradient_checkpointing=False),
        tell=lambda _: None,  # of decoding and training, neither of which follows
    )
    # 4-bit weights have another digest than those they were made from.
    if facts.get("quantise") != "nf4" and local.base_digest != facts.get("digest"):
        raise ConflictError(
            str(checkpoint),
            f"it was trained on {facts.get('name')}, and the weights of {base.path} are others.",
            "Put the base model back that the run was trained on.",
        )
    from engines.policies.hf_local.building import quiet_transformers

    whole = local.model.merge_and_unload()
    with atomic_folder(to, what="model", replace=False) as partial:
        with quiet_transformers():
            whole.save_pretrained(partial)
        _copy_sealed_files(checkpoint, partial, without=_OURS | _WEIGHTS)
        (partial / CARD).write_text(card, "utf-8")


def base_facts(checkpoint: Path) -> dict[str, Any]:
    """What the checkpoint knows of its base: name, digest, dtype, quantise.

    Raises DamagedError: its state cannot be read.
    """
    base = read_facts(checkpoint).get("base")
    if not isinstance(base, dict) or not isinstance(base.get("name"), str):
        raise DamagedError(
            str(checkpoint / STATE), "it names no base model.", "Take another checkpoint."
        )
    return base


def adapter_rank(checkpoint: Path) -> int:
    """The highest rank in the adapter. Raises DamagedError: its config cannot be read."""
    path = checkpoint / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_bytes())
        return int(max(config["r"], *(config.get("rank_pattern") or {}).values(), 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged_error(path, error) from error


def _copy_sealed_files(checkpoint: Path, to: Path, *, without: frozenset[str]) -> None:
    """The sealed files; what somebody laid beside them since is not the checkpoint's."""
    sealed = json.loads((checkpoint / SEAL).read_bytes())["files"]
    for name in sealed:
        if name not in without:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / name, to / name)


Kind = Literal["adapter", "merged"]

BUNDLED_LICENCE = "apache-2.0"
"""As the bundled model's own card says."""


@frozen
class CardFacts:
    """What a card tells. `settings` are the run file's, by dotted key."""

    kind: Kind
    run: str
    step: int
    base: str
    bundled: bool = False  # the base is the tiny model that ships with the studio
    quantise: str = "none"
    algorithm: str = ""
    rehearsal: bool = False
    steps_finished: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[EvaluationFinished] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def model_card(facts: CardFacts) -> str:
    """A README.md with front matter as model hubs read it."""
    merged = facts.kind == "merged"
    base = " ".join(facts.base.split())
    what = f"`{base}` with a LoRA adapter merged into its weights."
    if not merged:
        what = f"A LoRA adapter for `{base}`."
    head = [
        "---",
        f"base_model: {json.dumps(facts.base)}",  # JSON texts are YAML, and no name breaks out
        f"library_name: {'transformers' if merged else 'peft'}",
        "pipeline_tag: text-generation",
        f"tags: {json.dumps(['lora', *filter(None, [facts.algorithm])])}",
        "---",
    ]
    notes = [
        f"# {facts.run}, step {facts.step}",
        f"{what} Trained with practice studio in run `{facts.run}`; these are the weights "
        f"after step {facts.step} of {facts.steps_finished}.",
    ]
    if facts.rehearsal:
        notes.append(
            "**Rehearsal**: part of that run's replies were scripted, so its figures say "
            "nothing about a model."
        )
    if facts.quantise == "nf4":
        difference = "Serve it on the same 4-bit weights for the replies it had in training."
        if merged:
            difference = (
                "It was merged into the weights before quantising, so replies differ a little "
                "from those in training."
            )
        notes.append(f"The adapter was trained on 4-bit weights (NF4) of the base. {difference}")
    if facts.bundled:
        head.insert(2, f"license: {BUNDLED_LICENCE}")
        notes.append(
            "The base is the tiny model that ships with practice studio: it knows four kinds "
            "of short arithmetic problems and nothing else, and serves to show training, not "
            f"to be used. Licence: {BUNDLED_LICENCE}, as that of the base."
        )
    else:
        notes.append(
            "Licence: that of the base model goes with these weights. It is not known here; look "
            "it up before you pass them on."
        )
    notes += ["## Held-out results", _results_table(facts)]
    notes += ["## Training", f"Algorithm: {facts.algorithm or 'not recorded'}."]
    if facts.settings:
        lines = [f"{key}: {_value_text(value)}" for key, value in sorted(facts.settings.items())]
        notes.append("\n".join(("```yaml", *lines, "```")))
    if facts.versions:
        versions = (f"{name} {number}" for name, number in sorted(facts.versions.items()))
        notes.append(f"Versions: {', '.join(versions)}.")
    return escape_unsafe("\n\n".join(("\n".join(head), *notes))) + "\n"


def _results_table(facts: CardFacts) -> str:
    rows = [
        f"| {_cell_text(found.data)} | {'before training' if found.step == 0 else found.step} | "
        f"{'unknown' if found.mean is None else f'{found.mean:.3f}'} | {found.n} | {found.k} | "
        f"{found.unjudged} |"
        for found in facts.evaluations
        if found.step in (0, facts.step)
    ]
    if not rows:
        return "None were measured at this step."
    head = "| data | step | mean reward | n | tries each | unjudged |\n|---|---|---|---|---|---|"
    return "\n".join((head, *rows, "", "n counts replies with a known reward."))


def _value_text(value: Any) -> str:
    # A fence of the value's own would end the block.
    return json.dumps(value, ensure_ascii=False, default=str).replace("```", "` ` `")


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
