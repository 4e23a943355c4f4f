"""Folders of models and adapters that a run file names, made absolute.

Owns where they are looked up: typed ones from the current folder, written ones beside the
file. A name that is no folder may be one of the hub, and is left as it is.
"""

from __future__ import annotations

from pathlib import Path

from studio.config.compose import ComposedConfig, Tree, replace_value, walk

_STEP = "global_step_"


def pin_models(
    composed: ComposedConfig, tree: Tree, beside: Path, workspace: Path, cwd: Path
) -> None:
    """Make `hf:PATH` and adapters absolute, in place.

    Raises:
        ConfigError: an adapter is not there, or its run has no checkpoint.
    """
    for key, value in list(walk(tree)):
        if not isinstance(value, str):
            continue
        root = cwd if composed.place(key).override else beside
        if key[-1] == "model" and value.startswith("hf:"):
            folder = (root / Path(value.removeprefix("hf:")).expanduser()).resolve()
            if value != "hf:tiny" and folder.is_dir():
                replace_value(tree, key, f"hf:{folder}")
        elif key[-1] == "adapter" and key[0] in ("policy", "reflector", "judge"):
            replace_value(tree, key, str(_adapter_path(composed, key, value, root, workspace)))


def _adapter_path(
    composed: ComposedConfig, key: tuple[str, ...], value: str, root: Path, workspace: Path
) -> Path:
    kind, _, named = value.partition(":")
    if kind == "run" and named:
        run, _, step = named.partition("@")
        steps = newest_checkpoints(workspace / "runs" / run)
        wanted = [path for path in steps if step in ("", path.name.removeprefix(_STEP))]
        if not wanted:
            of = f" of step {step}" if step else ""
            there = ", ".join(path.name.removeprefix(_STEP) for path in steps)
            raise composed.error(
                key,
                f"run {run} has no checkpoint{of} in {workspace}.",
                f"It has those of steps {there}."
                if there
                else "Name another run (studio runs list), or the folder of an adapter.",
            )
        return wanted[0].resolve()
    folder = (root / Path(value).expanduser()).resolve()
    if not (folder / "adapter_config.json").is_file():
        raise composed.error(
            key,
            f"{folder} is no folder with an adapter_config.json.",
            "Give the folder of a LoRA adapter, run:RUN (its newest checkpoint) or run:RUN@STEP.",
        )
    return folder


def newest_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run's folder, the newest step of the newest experiment first."""
    found = [
        path
        for path in run.glob(f"checkpoints/*/*/{_STEP}*")
        if path.name.removeprefix(_STEP).isdecimal() and path.is_dir()
    ]
    return sorted(
        found, key=lambda path: (path.parent.name, int(path.name.removeprefix(_STEP))), reverse=True
    )
