"""Composing a run file the Hydra way, and remembering where each key was written.

Owns `defaults` lists, groups, packages, overrides and interpolations, and the place of every key: a
file and line, or an override. Files are read and merged here, with their places. Hydra, which takes
a tenth of a second to load, parses the values of overrides alone; OmegaConf resolves `${…}`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from engines.core.errors import ConfigError
from engines.record.yaml_text import unescape_interpolation
from studio.config.tree import (
    ABSENT,
    REFERENCE,
    Key,
    Tree,
    dotted_name,
    get_value,
    map_tree,
    merge_value,
    pop_value,
    replace_value,
    walk_texts,
)
from studio.config.yaml_file import Place, YamlFile, read_yaml_file
from studio.presets import GROUPS
from studio.secrets.run_files import mask_override

SHORTHAND = {
    **dict.fromkeys(("policy", "reflector", "judge", "agent.model"), "model"),
    "verifier": "name",
}
"""Sections that may be a plain text, with the key it stands for; an override of another key of
such a section keeps that text."""
REPLACED = ("verifier",)
"""Sections that are one choice: an override of the whole leaves nothing of the file's."""
GLOBAL = "_global_"
_CHOICE = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z_][\w./-]*")
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
    folders = _search_folders(path, roots)
    choices = [text for text in overrides if _is_choice(text, folders)]
    composition = _Composition(folders, choices)
    composed = ComposedConfig(path, {}, {}, composition.warnings)
    for mounted in composition.list_parts(path):
        package = tuple(filter(None, mounted.package.split(".")))
        if package:
            composed.places[package] = Place(f"{mounted.file.path}:1")
        composed.places |= {(*package, *key): place for key, place in mounted.file.places.items()}
        values = {name: value for name, value in mounted.file.tree.items() if name != "defaults"}
        merge_value(composed.tree, package, values)
    _apply_overrides(composed, [text for text in overrides if text not in choices])
    return composed


def _search_folders(path: Path, roots: Sequence[Path]) -> list[Path]:
    # A file inside a group folder (practice/x.yaml) finds the groups beside that folder.
    beside = [parent.parent for parent in path.parents if parent.name in GROUPS]
    folders = [path.parent, *beside, *(root.resolve() for root in roots if root.is_dir())]
    return list(dict.fromkeys(folders))


# Files


@dataclass(frozen=True, slots=True)
class _Part:
    """A file and the section below which its keys stand."""

    file: YamlFile
    package: str


@dataclass(slots=True)
class _Default:
    """One entry of a `defaults` list: which files it mounts, and where."""

    folder: str  # as written, without a leading slash
    group: str  # the folder from where groups are searched
    names: list[str]
    package: str | None
    place: str
    is_group: bool  # written as `group: name`, so that it can be chosen otherwise
    optional: bool = False
    override: bool = False

    def package_below(self, parent: str, header: str | None = None) -> str:
        """Return where its files are mounted, in a file that is itself mounted at `parent`."""
        package = self.package if self.package is not None else header
        if package is None:
            package = self.folder.replace("/", ".")
        whole = f"{parent}.{package}".strip(".")
        return whole.rpartition(GLOBAL)[2].strip(".") if GLOBAL in whole else whole

    def choice_key(self, parent: str) -> str:
        """Return the name by which an override chooses another file: its group, and package."""
        package = self.package_below(parent)
        usual = self.group.replace("/", ".")
        return self.group if package == usual else f"{self.group}@{package or GLOBAL}"


class _Composition:
    """The files that one run file reaches through its `defaults` lists."""

    def __init__(self, folders: Sequence[Path], choices: Sequence[str]) -> None:
        self.folders = folders
        self.warnings: list[str] = []
        self._chosen: dict[str, tuple[list[str], str]] = {}  # key → names, place
        self._added: list[_Default] = []
        self._unused: set[str] = set()
        for text in choices:
            self._read_choice(text)

    def _read_choice(self, text: str) -> None:
        key, _, value = text.partition("=")
        names = [name.strip() for name in value.strip("[]").split(",") if name.strip()]
        place = override_text(text)
        if key.startswith("+"):
            group, _, package = key.lstrip("+").partition("@")
            added = _Default(group, group, names, package or None, place, is_group=False)
            self._added.append(added)
            return
        key = key.lstrip("~")
        self._chosen[key] = ([] if text.startswith("~") else names), place
        self._unused.add(key)

    def list_parts(self, path: Path) -> list[_Part]:
        """Return the files in the order in which they are merged."""
        file = read_yaml_file(path)
        package = _Default("", "", [], None, "", is_group=False).package_below("", file.package)
        parts = self._mount(file, "", package, (path,), self._added)
        for key in self._unused:
            _, place = self._chosen[key]
            cause = f"It does not fit: Could not override '{key}'. No match in the defaults list."
            raise ConfigError(place, cause, "Add it with a + in front, or mount it in the file.")
        return parts

    def _mount(
        self,
        file: YamlFile,
        group: str,
        package: str,
        above: tuple[Path, ...],
        added: Sequence[_Default] = (),
    ) -> list[_Part]:
        """List a file with all that it mounts; `above` are the files that mount it."""
        own = _Part(file, package)
        if "defaults" not in file.tree and not added:
            return [own]
        entries = [*_read_defaults(file, group), *added]
        for entry in entries:
            if entry.override:  # the outermost file chooses
                key = entry.choice_key(package)
                if key not in self._chosen:
                    self._chosen[key] = entry.names, entry.place
                    self._unused.add(key)
        mounts = [entry for entry in entries if not entry.override]
        if mounts and not any(_is_self(entry) for entry in mounts):
            mounts.append(_SELF)
            if len(above) == 1 and len(file.tree) > 1 and not added:
                said = "`defaults` does not name `_self_`; the file itself goes last."
                self.warnings.append(f"{file.path}: {said}")
        parts: list[_Part] = []
        # From the last: what it chooses by `override` counts for those before it.
        for entry in reversed(mounts):
            below = [own] if _is_self(entry) else self._mount_entry(entry, package, above)
            parts = below + parts
        return parts or [own]

    def _mount_entry(self, entry: _Default, parent: str, above: tuple[Path, ...]) -> list[_Part]:
        names, place = entry.names, entry.place
        key = entry.choice_key(parent)
        if entry.is_group and key in self._chosen:
            names, place = self._chosen[key]
            self._unused.discard(key)
        parts: list[_Part] = []
        for name in names:
            target = f"{entry.group}/{name}".lstrip("/")
            path = find_config(target, self.folders)
            if path is None and entry.optional:
                continue
            if path is None:
                raise _missing_group_error(place, target, self.folders)
            if path in above:
                cause = f'"{target}" mounts itself.'
                raise ConfigError(place, cause, "Take it out of its `defaults`.")
            file = read_yaml_file(path)
            package = entry.package_below(parent, file.package and f"{GLOBAL}.{file.package}")
            group = target.rpartition("/")[0]
            parts += self._mount(file, group, package, (*above, path))
        return parts


_SELF = _Default("", "", ["_self_"], None, "", is_group=False)


def _is_self(entry: _Default) -> bool:
    return entry.names == ["_self_"]


def _read_defaults(file: YamlFile, group: str) -> list[_Default]:
    """Read the `defaults` of a file that stands in a group itself."""
    written = file.tree.get("defaults") or []
    entries: list[_Default] = []
    for number, entry in enumerate(written if isinstance(written, list) else [None]):
        place = file.places.get(("defaults", str(number)), Place(str(file.path))).text
        if isinstance(entry, str):
            entries.append(_read_default(entry, None, group, place))
        elif isinstance(entry, dict) and len(entry) == 1:
            ((key, value),) = entry.items()
            names = value if isinstance(value, list) else [value]
            names = [str(name) for name in names if name is not None]
            entries.append(_read_default(key, names, group, place))
        else:
            cause = "Its `defaults` is no list of names of configs."
            raise ConfigError(str(file.path), cause, "Write it as defaults: [rehearsal, _self_].")
    return entries


def _read_default(text: str, names: list[str] | None, group: str, place: str) -> _Default:
    """Read `[optional|override] [/]PATH[@PACKAGE]`; of `names` the path is their group."""
    *words, target = text.split()
    target, at, package = target.partition("@")
    is_absolute = target.startswith("/")
    folder = target.strip("/")
    if names is None:
        folder, _, name = folder.rpartition("/")
    whole = folder if is_absolute or not group else f"{group}/{folder}".rstrip("/")
    if package == "_here_":
        package = ""
    return _Default(
        folder=folder,
        group=whole,
        names=[name.removesuffix(".yaml")] if names is None else names,
        package=package.replace("_group_", f"{GLOBAL}.{whole.replace('/', '.')}") if at else None,
        place=place,
        is_group=names is not None,
        optional="optional" in words,
        override="override" in words,
    )


def find_config(target: str, folders: Sequence[Path]) -> Path | None:
    """Return the first file of that name in the folders; None: there is none."""
    files = (folder / f"{target}.yaml" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _missing_group_error(place: str, missing: str, folders: Sequence[Path]) -> ConfigError:
    names = {
        str(file.relative_to(folder).with_suffix(""))
        for folder in folders
        for pattern in ("*.yaml", *(f"{group}/**/*.yaml" for group in GROUPS))
        for file in folder.glob(pattern)
    }
    group, _, last = missing.rpartition("/")
    siblings = [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == group]
    nearest = [f"{group}/{name}" for name in get_close_matches(last, siblings, n=1)]
    # What stands elsewhere under this very name is meant: /practice/rehearsal is rehearsal.
    nearest = nearest or sorted(name for name in names if name.rpartition("/")[2] == last)
    nearest = nearest or get_close_matches(missing, sorted(names), n=1, cutoff=0.8)
    searched = ", ".join(str(folder) for folder in folders)
    move = f'Did you mean "{nearest[0]}"?' if nearest else f"Write {missing}.yaml in one of them."
    return ConfigError(place, f'"{missing}" is not found. Searched: {searched}.', move)


# Overrides


def _is_choice(text: str, folders: Sequence[Path]) -> bool:
    """Tell whether an override chooses a file of a group; practice=5 is none of its group."""
    key, _, value = text.partition("=")
    key = key.lstrip("+~")
    named = _CHOICE.fullmatch(value) or (text.startswith("~") and not value)
    is_group = any((folder / key).is_dir() for folder in folders)
    return "@" in key or bool(named and is_group)


def override_text(override: str) -> str:
    """Return an override as errors name it, its secrets hidden."""
    return f"override '{mask_override(override)}'"


def _key_of(override: str) -> Key:
    return tuple(override.partition("=")[0].lstrip("+~").split("."))


def _apply_overrides(composed: ComposedConfig, overrides: Sequence[str]) -> None:
    """Set what overrides say, in place; those in a section that may be a plain text come last."""
    late = [text for text in overrides if dotted_name(_key_of(text)[:-1]) in SHORTHAND]
    whole = {_key_of(text)[0]: at for at, text in enumerate(overrides) if len(_key_of(text)) == 1}
    kept = [
        text
        for at, text in enumerate(overrides)
        if _key_of(text)[0] not in REPLACED or at >= whole.get(_key_of(text)[0], 0)
    ]
    for text in (*(o for o in kept if o not in late), *(o for o in kept if o in late)):
        key = _key_of(text)
        value = _parse_override(text)
        _expand_section(composed.tree, key)
        if text.startswith("~"):
            if pop_value(composed.tree, key) is ABSENT:
                raise _override_error(text, f"there is no {dotted_name(key)} to take away")
            continue
        if key[0] in REPLACED and len(key) == 1:
            pop_value(composed.tree, key)
        try:
            merge_value(composed.tree, key, value)
        except TypeError as error:
            cause = "The run file has a list there, and the entries of a list have no names."
            move = "Replace the whole list (key=[…]), or edit the run file."
            raise ConfigError(override_text(text), cause, move) from error
    for text in overrides:
        key = _key_of(text)
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
    except HydraException as error:
        lines = [
            line for line in str(error).splitlines() if not line.startswith(("See ", "Error "))
        ]
        reason = (lines or ["it cannot be read"])[0].replace("'++", "'").rstrip(".")
        if mask_override(text) != text:
            reason = "its value cannot be read"  # Hydra's words would quote the secret
        elif "missing EQUAL" in reason:
            reason = "it has no ="
        raise _override_error(text, reason) from error


def _override_error(text: str, reason: str) -> ConfigError:
    move = "Write key=value; put a value with commas, brackets or quotes in quotes: key='a, b'."
    return ConfigError(override_text(text), f"It does not fit: {reason}.", move)


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
