"""Files and folders that a run file names, made absolute: data, logs, rules and models.

Typed names are looked up from the current folder, written ones beside the file. A model's name
that is no folder may be one of the hub, and is left as it is.
"""

import os
from collections.abc import Sequence
from filecmp import cmp
from pathlib import Path

from engines.core.errors import DataError
from engines.data.source import DataSource, locate
from engines.verifiers.spec import find_file
from studio.config.compose import ComposedConfig
from studio.config.settings.agent import AgentConfig
from studio.config.tree import Key, Tree, dotted_name, get_value, replace_value, walk_texts

_STEP = "global_step_"


def pin_data(
    composed: ComposedConfig, tree: Tree, roots: Sequence[Path], own: Sequence[Path], cwd: Path
) -> None:
    """Make names of files absolute, unless the workspace or the bundled data has them."""
    for key, value in walk_texts(tree):
        scheme, _, name = value.partition(":")
        is_data = key == ("data", "practice") or key[:2] == ("evaluation", "data")
        if is_data:
            scheme, name = "", value
        elif not (
            (key[-1] == "model" and scheme == "replay")
            or (key == ("review", "by") and scheme == "rules")
        ):
            continue
        source = _locate(name, (cwd, *roots) if _is_typed_path(composed, key, name) else roots)
        if source is None:
            continue  # refused where it is read, which may be never
        if is_data and any(source.path.is_relative_to(folder) for folder in own):
            continue
        # The split as it is written: which one is meant otherwise is known where it is read.
        found = DataSource(source.path.resolve(), source.split)
        if is_data and os.sep not in name and (other := _locate(name, own[:1])):
            two = (source.path, other.path)
            if all(path.is_file() for path in two) and cmp(*two, shallow=False):
                continue  # it was added and left where it was
            composed.warnings.append(
                f'{dotted_name(key)}: "{name}" is {found} here, not the data set of that name '
                "in the workspace; give one of them another name, or a path."
            )
        replace_value(tree, key, f"{scheme}:{found}" if scheme else str(found))


def _is_typed_path(composed: ComposedConfig, key: Key, name: str) -> bool:
    """What an override gives as a path is meant from where it is typed."""
    return composed.place(key).override and (os.sep in name or "." in name)


def _locate(name: str, roots: Sequence[Path]) -> DataSource | None:
    try:
        return locate(name, roots)
    except DataError:
        return None


def pin_models(composed: ComposedConfig, tree: Tree, workspace: Path, cwd: Path) -> None:
    """Make `hf:PATH`, `handoff:DIR` and adapters absolute, in place.

    Raises ConfigError: an adapter is not there.
    """
    for key, value in walk_texts(tree):
        root = cwd if composed.place(key).override else composed.path.parent
        if key[-1] == "model" and value.startswith("hf:"):
            folder = (root / Path(value.removeprefix("hf:")).expanduser()).resolve()
            if value != "hf:tiny" and folder.is_dir():
                replace_value(tree, key, f"hf:{folder}")
        elif key[-1] == "model" and value.startswith("handoff:") and value != "handoff:":
            folder = (root / Path(value.removeprefix("handoff:")).expanduser()).resolve()
            replace_value(tree, key, f"handoff:{folder}")
        elif key[-1] == "adapter" and key[0] in ("policy", "reflector", "judge"):
            replace_value(tree, key, str(_adapter_path(composed, key, value, root, workspace)))


def _adapter_path(
    composed: ComposedConfig, key: Key, value: str, root: Path, workspace: Path
) -> Path:
    kind, _, named = value.partition(":")
    if kind == "run" and named:
        run, _, step = named.partition("@")
        steps = newest_checkpoints(workspace / "runs" / run)
        wanted = [path for path in steps if step in ("", path.name.removeprefix(_STEP))]
        if not wanted:
            of = f" of step {step}" if step else ""
            cause = f"run {run} has no checkpoint{of} in {workspace}."
            there = ", ".join(path.name.removeprefix(_STEP) for path in steps)
            move = "Name another run (studio runs list), or the folder of an adapter."
            raise composed.error(key, cause, f"It has those of steps {there}." if there else move)
        return wanted[0].resolve()
    folder = (root / Path(value).expanduser()).resolve()
    if not (folder / "adapter_config.json").is_file():
        cause = f"{folder} is no folder with an adapter_config.json."
        move = "Give the folder of a LoRA adapter, run:RUN (its newest checkpoint) or run:RUN@STEP."
        raise composed.error(key, cause, move)
    return folder


def newest_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run's folder, the newest step of the newest experiment first."""
    found = {
        path: (path.parent.name, int(step))
        for path in run.glob(f"checkpoints/*/*/{_STEP}*")
        if (step := path.name.removeprefix(_STEP)).isdecimal() and path.is_dir()
    }
    return sorted(found, key=lambda path: found[path], reverse=True)


def pin_verifiers(
    composed: ComposedConfig, tree: Tree, roots: Sequence[Path], own: Sequence[Path], cwd: Path
) -> None:
    """Make verifier files absolute, except in `own` folders, whose names mean the same anywhere."""
    for below, name in walk_texts(tree.get("verifier")):
        key = ("verifier", *below)
        if key[-1] != "file" or not name.strip():
            continue
        found = find_file(name, (cwd, *roots) if _is_typed_path(composed, key, name) else roots)
        if found is None or any(found.is_relative_to(folder) for folder in own):
            continue  # a missing file is refused where it is opened, with its line
        replace_value(tree, key, str(found.resolve()))


def pin_programs(composed: ComposedConfig, tree: Tree, beside: Sequence[Path], cwd: Path) -> None:
    """Make one's own programs absolute: files in commands of agents and tools, and of functions."""
    for key, text in walk_texts(tree.get("agent")):
        place: Key = ("agent", *key)
        is_function = key[-1] == "function" or (key[0] == "tools" and ".py:" in text)
        if not is_function and not {"command", "readable"} & set(key):
            continue
        name, colon, function = text.rpartition(":") if is_function else (text, "", "")
        roots = (cwd, *beside) if _is_typed_path(composed, place, name) else beside
        found = next((path for root in roots if (path := root / name).exists()), None)
        if found is not None and name and (found.is_file() or "readable" in key):
            replace_value(tree, place, f"{found.resolve()}{colon}{function}")


def pin_sources(composed: ComposedConfig, tree: Tree, beside: Sequence[Path], cwd: Path) -> None:
    """Make the files and folders absolute in which tools find their pages."""
    for key, text in walk_texts(get_value(tree, ("agent", "tools"))):
        place: Key = ("agent", "tools", *key)
        local = get_value(tree, (*place[:-1], "provider")) in ("fixture", "folder")
        if key[-1] == "source" and local:
            roots = (cwd, *beside) if _is_typed_path(composed, place, text) else beside
            if found := next((path for root in roots if (path := root / text).exists()), None):
                replace_value(tree, place, str(found.resolve()))


def own_programs(agent: AgentConfig) -> tuple[Path, ...]:
    """The files that an agent's programs, functions and pages were found to be."""
    texts = [*agent.command, *(text for tool in agent.tools for text in tool.command)]
    functions = (agent.function, *(tool.function for tool in agent.tools))
    texts += [function.rpartition(":")[0] for function in functions if function]
    texts += [tool.source for tool in agent.tools if tool.source]
    found = [Path(text) for text in texts if text.startswith("/")]
    found += [page for path in found for page in sorted(path.glob("*.md"))]  # of a folder
    return tuple(dict.fromkeys(path for path in found if path.is_file()))
