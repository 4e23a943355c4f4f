"""Composing a run file the Hydra way, and remembering where each key was written.

Owns `defaults` lists, packages, overrides and interpolations, and the place of every key: a file
and line, or an override. Files are read and merged here, with their places. Hydra, which takes a
tenth of a second to load, parses the values of overrides alone; OmegaConf resolves `${…}`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError, did_you_mean
from engines.core.frozen import frozen
from engines.record.yaml_text import unescape_interpolation
from studio.config.tree import (
    ABSENT,
    REFERENCE,
    Key,
    Place,
    Tree,
    YamlFile,
    dotted_name,
    get_value,
    map_tree,
    merge_value,
    pop_value,
    read_yaml_file,
    replace_value,
    walk_texts,
)
from studio.presets import GROUPS
from studio.secrets.run_files import mask_override

SHORTHAND = {
    **dict.fromkeys(("policy", "reflector", "judge", "agent.model"), "model"),
    "verifier": "name",
}
"""Sections that may be a plain text, with the key it stands for; an override of another key of
such a section keeps that text."""
REPLACED = (("verifier",),)
"""Sections that are one choice: an override of the whole leaves nothing of the file's."""
GLOBAL = "_global_"
_ENV = re.compile(r"(?<!\\)((?:\\\\)*)\$\{\s*oc\.env\s*:")
_LONG_LIST = 200
"""Entries from which a list without references is kept from OmegaConf, which takes a third of a
millisecond for each value: an agent may have 10,000 experiences."""


@dataclass(slots=True)
class ComposedConfig:
    """A run file as written: interpolations unresolved, with the place of every key."""

    path: Path
    tree: Tree
    places: dict[Key, Place]
    warnings: list[str] = field(default_factory=list)

    def place(self, key: Key) -> Place:
        """Of the key itself, or else of the nearest key that holds it."""
        for size in range(len(key), 0, -1):
            if key[:size] in self.places:
                return self.places[key[:size]]
        typed = (p for k, p in self.places.items() if p.override and k[: len(key)] == key)
        return next(typed, Place(str(self.path)))

    def place_text(self, dotted: str) -> str:
        return self.place(tuple(dotted.split("."))).text

    def error(self, key: Key, cause: str, move: str) -> ConfigError:
        return ConfigError(self.place(key).text, cause, move)


def compose_run(path: Path, overrides: Sequence[str], roots: Sequence[Path]) -> ComposedConfig:
    """Compose a run file; groups are searched in its own folder, then in `roots`.

    An override is `key=value` in Hydra's grammar; its key need not stand in the file.

    Raises ConfigError: syntax, an unknown group or file, or an override that does not fit.
    """
    path = path.resolve()
    if path.suffix != ".yaml":
        raise ConfigError(str(path), "A run file's name ends in .yaml.", "Rename the file.")
    composed = ComposedConfig(path, {}, {})
    _mount_file(composed, _search_folders(path, roots), read_yaml_file(path), "", (path,))
    _apply_overrides(composed, overrides)
    return composed


def _search_folders(path: Path, roots: Sequence[Path]) -> list[Path]:
    # A file inside a group folder (practice/x.yaml) finds the groups beside that folder.
    beside = [parent.parent for parent in path.parents if parent.name in GROUPS]
    folders = [path.parent, *beside, *(root.resolve() for root in roots if root.is_dir())]
    return list(dict.fromkeys(folders))


# Files


@frozen
class _Mount:
    """An entry of a `defaults` list: `[/]PATH[@PACKAGE]`, or `PATH[@PACKAGE]: NAMES`."""

    folder: str  # as written, without a leading slash
    group: str  # the folder from where configs are searched
    names: list[str]
    package: str | None
    place: str = ""


_SELF = _Mount("", "", ["_self_"], None)


def _mount_file(
    composed: ComposedConfig,
    folders: Sequence[Path],
    file: YamlFile,
    package: str,
    above: tuple[Path, ...],
    group: str = "",
) -> None:
    """Merge a file and all that it mounts; `above` are the files that mount it."""
    package = _join_packages(package, file.package and f"{GLOBAL}.{file.package}")
    mounts = _read_defaults(file, group)
    if not any(mount.names == _SELF.names for mount in mounts):
        mounts.append(_SELF)
    for mount in mounts:
        if mount.names == _SELF.names:
            _merge_file(composed, file, package)
            continue
        for name in mount.names:
            target = f"{mount.group}/{name}".lstrip("/")
            path = find_config(target, folders)
            if path is None:
                raise _missing_config_error(mount.place, target, folders)
            if path in above:
                raise ConfigError(
                    mount.place, f'"{target}" mounts itself.', "Take it out of its `defaults`."
                )
            inner = read_yaml_file(path)
            if mount.package is not None:
                inner = replace(inner, package=None)  # what is written here counts
            written = mount.folder.replace("/", ".") if mount.package is None else mount.package
            below = _join_packages(package, written)
            _mount_file(composed, folders, inner, below, (*above, path), target.rpartition("/")[0])


def _join_packages(parent: str, package: str | None) -> str:
    """The section below `parent` in which keys stand; `_global_` leads out of all others."""
    whole = f"{parent}.{package or ''}".strip(".")
    return whole.rpartition(GLOBAL)[2].strip(".") if GLOBAL in whole else whole


def _merge_file(composed: ComposedConfig, file: YamlFile, package: str) -> None:
    at = tuple(filter(None, package.split(".")))
    if at:
        composed.places[at] = Place(f"{file.path}:1")
    composed.places |= {(*at, *key): place for key, place in file.places.items()}
    values = {name: value for name, value in file.tree.items() if name != "defaults"}
    merge_value(composed.tree, at, values)


def _read_defaults(file: YamlFile, group: str) -> list[_Mount]:
    """Read the `defaults` of a file that stands in a group itself."""
    written = file.tree.get("defaults") or []
    mounts: list[_Mount] = []
    for number, entry in enumerate(written if isinstance(written, list) else [None]):
        names: object = None
        if isinstance(entry, dict) and len(entry) == 1:
            ((entry, names),) = entry.items()
            names = [] if names is None else names
        if not isinstance(entry, str):
            raise ConfigError(
                str(file.path),
                "Its `defaults` is no list of names of configs.",
                "Write it as defaults: [rehearsal, _self_].",
            )
        target, at, package = entry.partition("@")
        folder = target.strip("/")
        if names is None:
            folder, _, names = folder.rpartition("/")
        whole = folder if target.startswith("/") or not group else f"{group}/{folder}".rstrip("/")
        listed = names if isinstance(names, list) else [str(names).removesuffix(".yaml")]
        place = file.places[("defaults", str(number))].text
        mounts.append(_Mount(folder, whole, listed, package if at else None, place))
    return mounts


def find_config(target: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of that name in the folders; None: there is none."""
    files = (folder / f"{target}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _missing_config_error(place: str, missing: str, folders: Sequence[Path]) -> ConfigError:
    names = {
        str(file.relative_to(folder).with_suffix(""))
        for folder in folders
        for pattern in ("*.yaml", *(f"{group}/**/*.yaml" for group in GROUPS))
        for file in folder.glob(pattern)
    }
    searched = ", ".join(str(folder) for folder in folders)
    move = did_you_mean(missing, names) or f"Write {missing}.yaml in one of them."
    return ConfigError(place, f'"{missing}" is not found. Searched: {searched}.', move.strip())


# Overrides


def override_text(override: str) -> str:
    """Return an override as errors name it, its secrets hidden."""
    return f"override '{mask_override(override)}'"


def _key_of(override: str) -> Key:
    return tuple(override.partition("=")[0].lstrip("+~").split("."))


def _apply_overrides(composed: ComposedConfig, overrides: Sequence[str]) -> None:
    """Set what overrides say, in place: whole sections first, then the keys in them."""
    for text in sorted(overrides, key=lambda text: len(_key_of(text))):
        key = _key_of(text)
        value = _parse_override(text)
        _expand_section(composed.tree, key)
        is_removal = text.startswith("~")
        if is_removal or key in REPLACED:
            removed = pop_value(composed.tree, key)
            if is_removal and removed is ABSENT:
                raise _override_error(text, f"there is no {dotted_name(key)} to take away")
        try:
            if not is_removal:
                merge_value(composed.tree, key, value)
        except TypeError as error:
            raise ConfigError(
                override_text(text),
                "The run file has a list there, and the entries of a list have no names.",
                "Replace the whole list (key=[…]), or edit the run file.",
            ) from error
        # An override replaces what the files said below its key.
        composed.places = {k: p for k, p in composed.places.items() if k[: len(key)] != key}
        composed.places[key] = Place(override_text(text), override=True)


def _expand_section(tree: Tree, key: Key) -> None:
    """Make a mapping of the plain text above a key, where one may stand."""
    name = SHORTHAND.get(dotted_name(key[:-1]))
    if name is not None and isinstance(text := get_value(tree, key[:-1]), str):
        replace_value(tree, key[:-1], {name: text})


def _parse_override(text: str) -> Any:
    """Return the value of an override, read by Hydra's grammar. Raises ConfigError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    plain = text if text[:1] in ("+", "~") else f"++{text}"
    try:
        parsed = OverridesParser.create().parse_override(plain)
        if parsed.is_sweep_override():
            raise _override_error(text, "Ambiguous value: a list of values for several runs")
        return map_tree(parsed.value())
    except HydraException as error:  # whose words would quote a secret
        reason = "its value cannot be read" if "=" in text else "it has no ="
        raise _override_error(text, reason) from error


def _override_error(text: str, reason: str) -> ConfigError:
    return ConfigError(
        override_text(text),
        f"It does not fit: {reason}.",
        "Write key=value; put a value with commas, brackets or quotes in quotes: key='a, b'.",
    )


# Interpolations


def resolve(composed: ComposedConfig, environ: Mapping[str, str]) -> Tree:
    """Return the tree with every interpolation replaced by its value.

    `${oc.env:NAME}` reads `environ` alone, never the process's own environment.

    Raises ConfigError: names the variable or key that is missing, and where it is asked for.
    """
    result: Tree = map_tree(composed.tree)
    referring: list[tuple[Key, str]] = []
    for key, text in walk_texts(composed.tree):
        if text == "???":
            raise composed.error(key, f'"{dotted_name(key)}" has no value yet.', "Give it one.")
        if "${" in text and REFERENCE.search(text):
            referring.append((key, text))
        elif "${" in text:
            replace_value(result, key, unescape_interpolation(text))
    if not referring:
        return result
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    missing: list[str] = []

    def env(name: str, *default: Any) -> Any:
        if name in environ:
            return environ[name]
        if default:
            return default[0]
        missing.append(name)
        raise KeyError(name)

    # omegaconf keeps resolvers in one process-wide table; replaced at every load.
    OmegaConf.register_new_resolver("studio.env", env, replace=True)
    config = OmegaConf.create(map_tree(_without_long_lists(composed.tree), _use_given_environment))
    # Those that name a variable go first: an error then shows where it is written.
    for key, _ in sorted(referring, key=lambda leaf: "oc.env" not in leaf[1]):
        node: Any = config
        try:
            for part in key:
                node = node[int(part) if OmegaConf.is_list(node) else part]
        except OmegaConfBaseException as error:
            cause = f'"{dotted_name(key)}" cannot be resolved: {str(error).splitlines()[0]}.'
            move = "Correct the interpolation; write \\${ for a literal ${."
            if missing:
                name = missing[0]
                needed = f"the environment variable {name}, which is not set."
                cause = f'"{dotted_name(key)}" needs {needed}'
                move = f"Set it (export {name}=…), or give a default: ${{oc.env:{name},DEFAULT}}."
            raise composed.error(key, cause, move) from error
        value = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
        replace_value(result, key, value)
    return result


def _without_long_lists(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_long_lists(value) for name, value in tree.items()}
    is_long = isinstance(tree, list) and len(tree) >= _LONG_LIST
    return [] if is_long and not any("${" in text for _, text in walk_texts(tree)) else tree


def _use_given_environment(text: Any) -> Any:
    return _ENV.sub(r"\1${studio.env:", text) if isinstance(text, str) else text
