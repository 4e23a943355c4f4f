"""Composing a run file the Hydra way, and remembering where each key was written.

Owns groups, overrides, interpolations, and the place of every key: a file and line, or an override.
Hydra takes a fifth of a second to load: a file that stands alone does not wait for it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engines.core.errors import ConfigError
from engines.record.yaml_text import load_yaml, unescape_interpolation
from studio.config.long_lists import keep_long_lists_away, put_back, without_plain_lists
from studio.config.tree import (
    REFERENCE,
    Key,
    Tree,
    dotted_name,
    get_value,
    map_tree,
    replace_value,
    walk_texts,
)
from studio.config.yaml_positions import (
    ParsedFiles,
    Place,
    config_positions,
    find_defaults,
    syntax_error,
)
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
_ENV = re.compile(r"(?<!\\)((?:\\\\)*)\$\{\s*oc\.env\s*:")


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
    nodes: ParsedFiles = {}
    named = dict(find_defaults(path, "", folders, nodes))
    asked = _hydra_overrides(overrides, folders)
    away = nullcontext if any("experiences" in text for text in overrides) else keep_long_lists_away
    with warnings.catch_warnings(record=True) as caught, _HYDRA, away() as lists:
        warnings.simplefilter("always")
        try:
            alone = not named and "@package" not in path.read_text(encoding="utf-8")
            config = _compose_alone(path, asked[1:]) if alone else None  # and needs no search path
            parts = [(path.stem, "")]
            if config is None:
                config, parts = _compose_hydra(path, asked)
        except _RefusedError as error:
            if (missing := error.missing) is None:
                raise _compose_error(path, error, overrides) from error
            typed = _find_override(missing, overrides)
            place = named.get(missing) or (_override_text(typed) if typed else str(path))
            raise _missing_group_error(place, missing, folders) from error
        except yaml.MarkedYAMLError as error:
            raise syntax_error(path, error) from error
        except OmegaConfBaseException as error:
            raise _compose_error(path, error, overrides) from error
        except (TypeError, ValueError) as error:  # a name is no number: a list is there
            if refusal := _list_error(path, str(error), overrides) or _value_error(nodes):
                raise refusal from error
            raise
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    tree = put_back(tree, lists or {})
    places: dict[Key, Place] = {}
    for config_path, package in parts:
        if not package.startswith("hydra"):
            places.update(config_positions(config_path, package, folders, nodes))
    for text in overrides:
        key = tuple(_key_of(text).split("."))
        # An override replaces what the files said below its key.
        places = {k: place for k, place in places.items() if k[: len(key)] != key}
        places[key] = Place(_override_text(text), override=True)
    return ComposedConfig(path, map_tree(tree), places, [str(w.message) for w in caught])


def resolve(composed: ComposedConfig, environ: Mapping[str, str]) -> Tree:
    """The tree with every interpolation replaced by its value.

    `${oc.env:NAME}` reads `environ` alone, never the process's own environment.

    Raises ConfigError: names the variable or key that is missing, and where it is asked for.
    """
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
    leaves = walk_texts(composed.tree)
    asked = "\n".join(text for _, text in leaves if "${" in text and REFERENCE.search(text))
    plain = without_plain_lists(composed.tree, asked)
    config = OmegaConf.create(map_tree(plain, _use_given_environment))
    result: Tree = map_tree(composed.tree)
    # Those that name a variable go first: an error then shows where it is written.
    for key, text in sorted(leaves, key=lambda leaf: "oc.env" not in leaf[1]):
        if text == "???":
            raise composed.error(key, f'"{dotted_name(key)}" has no value yet.', "Give it one.")
        if "${" not in text:
            continue
        if not REFERENCE.search(text):
            replace_value(result, key, unescape_interpolation(text))
            continue
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


def _use_given_environment(text: Any) -> Any:
    return _ENV.sub(r"\1${studio.env:", text) if isinstance(text, str) else text


def _search_folders(path: Path, roots: Sequence[Path]) -> list[Path]:
    # A file inside a group folder (practice/x.yaml) finds the groups beside that folder.
    beside = [parent.parent for parent in path.parents if parent.name in GROUPS]
    found = [path.parent, *beside, *(root.resolve() for root in roots if root.is_dir())]
    return list(dict.fromkeys(found))


def _replace_sections(overrides: Sequence[str]) -> Iterator[str]:
    """Drop what a later override of a whole `REPLACED` section replaces; Hydra would merge it."""
    last = {
        key: at
        for at, text in enumerate(overrides)
        if (key := text.partition("=")[0].lstrip("+")) in REPLACED and "=" in text
    }
    for at, text in enumerate(overrides):
        key = _key_of(text)
        whole = key.partition(".")[0]
        if at < last.get(whole, -1):
            continue
        if last.get(key) == at:
            yield f"++{key}=null"
        yield text


def _escape_quotes(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"')


def _hydra_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    search = ",".join(f'"file://{_escape_quotes(folder)}"' for folder in folders[1:])
    forced = (_force_override(text, folders) for text in _replace_sections(overrides))
    return [f"hydra.searchpath=[{search}]", *forced]


def _force_override(text: str, folders: Sequence[Path]) -> str:
    """An override as Hydra wants it: a plain key may be one the file does not mention."""
    key, _, value = text.partition("=")
    named = _CHOICE.fullmatch(value) and any((folder / key).is_dir() for folder in folders)
    group = "@" in key or named  # practice=5 is no choice of its group
    return text if group or not key or key[0] in "+~" or "=" not in text else f"++{text}"


_CHOICE = re.compile(r"(?!(?i:null|true|false)$)[A-Za-z_][\w./-]*")
_HYDRAS_OWN = {"defaults", "hydra"}
_HYDRA = Lock()
"""Hydra keeps what it composes in one place a process; a screen reads several files at once."""


def _compose_alone(path: Path, overrides: Sequence[str]) -> DictConfig | None:
    """What Hydra makes of one file and plain overrides, in a third of its time.

    None leaves it to Hydra, which has the words for what does not fit.
    """
    keys = [_key_of(text) for text in overrides]
    own = any("@" in key or key.partition(".")[0] in _HYDRAS_OWN for key in keys)
    if own or not all(text.startswith("++") for text in overrides):
        return None
    early, late = _split_overrides(overrides)
    try:
        config = OmegaConf.load(path)
        if not isinstance(config, DictConfig) or config.keys() & _HYDRAS_OWN:
            return None
        _merge_overrides(config, early)
        _merge_overrides(config, _expand_sections(config, late))
        _merge_overrides(config, late)
    except (yaml.YAMLError, _RefusedError, OmegaConfBaseException, TypeError, ValueError):
        return None
    return config


def _merge_overrides(config: DictConfig, overrides: list[str]) -> None:
    if not overrides:
        return
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with _refusals():
        parsed = OverridesParser.create().parse_overrides(overrides)
    for override in parsed:
        if override.is_sweep_override():
            raise ValueError(f"{override.input_line} is a sweep")
        OmegaConf.update(
            config, override.key_or_group, override.value(), merge=True, force_add=True
        )


def _split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The early ones and the late: those in a section that may be a plain text and no mapping."""
    late = [text for text in overrides if _section_of(text) in SHORTHAND]
    return [text for text in overrides if text not in late], late


def _section_of(override: str) -> str:
    return _key_of(override).rpartition(".")[0]


def _expand_sections(config: DictConfig, late: Sequence[str]) -> list[str]:
    """Overrides that make a mapping of each section that is a plain text in `config`."""
    written = OmegaConf.to_container(config, resolve=False) if late else {}
    sections = dict.fromkeys(_section_of(text) for text in late)
    texts = {section: get_value(written, tuple(section.split("."))) for section in sections}
    return [
        f'++{section}={{{SHORTHAND[section]}: "{_escape_quotes(text)}"}}'
        for section, text in texts.items()
        if isinstance(text, str)
    ]


def _compose_hydra(
    path: Path, overrides: Sequence[str]
) -> tuple[DictConfig, list[tuple[str, str]]]:
    """The composed config, and its parts (name and package) in the order of merging."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    _leave_own_settings_out()
    early, late = _split_overrides(overrides)
    directory = initialize_config_dir(str(path.parent), job_name="studio", version_base="1.3")
    with _refusals(), directory:
        if late:
            early += _expand_sections(compose(path.stem, early), late)
        config = compose(path.stem, [*early, *late])
        loader = GlobalHydra.instance().config_loader()
        parts = loader.compute_defaults_list(path.stem, [*early, *late], RunMode.RUN).defaults
    return config, [(part.config_path, part.package or "") for part in parts if part.config_path]


@cache
def _leave_own_settings_out() -> None:
    """Hydra's settings of its own program (help texts, logs, a launcher) change no composed config.

    To read and merge them was more than half the time of loading a run file.
    """
    from hydra.conf import HydraConf
    from hydra.core.config_store import ConfigStore

    unread = [{group: None for group in default} for default in HydraConf().defaults]
    ConfigStore.instance().store("config", HydraConf(defaults=unread), "hydra", provider="studio")


class _RefusedError(Exception):
    """What Hydra says of a group whose file is `missing`, of an `override`, or of anything else."""

    def __init__(self, said: str, missing: str | None = None, override: str | None = None) -> None:
        super().__init__(said)
        self.missing, self.override = missing, override


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise what Hydra refuses as what is known before it is loaded."""
    from hydra.errors import HydraException, MissingConfigException, OverrideParseException

    try:
        yield
    except MissingConfigException as error:
        raise _RefusedError(str(error), missing=error.missing_cfg_file or "") from error
    except OverrideParseException as error:
        raise _RefusedError(str(error), override=error.override) from error
    except HydraException as error:
        raise _RefusedError(str(error)) from error


def _key_of(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _override_text(override: str) -> str:
    return f"override '{mask_override(override)}'"


def _find_override(message: str, overrides: Sequence[str]) -> str | None:
    """The override a message of Hydra speaks of."""
    for text in overrides:
        key, value = _key_of(text), text.partition("=")[2]
        if key in message or f"{key.split('@')[0]}/{value}" == message:
            return text
    return None


def _compose_error(path: Path, error: Exception, overrides: Sequence[str]) -> ConfigError:
    if isinstance(error, _RefusedError) and error.override is not None:
        text: str | None = error.override.removeprefix("++")
    else:
        text = _find_override(str(error), overrides)
    lines = [line for line in str(error).splitlines() if not line.startswith(("See ", "Error "))]
    reason = (lines or ["it cannot be read"])[0].replace("'++", "'").rstrip(".")
    if text is None:
        return ConfigError(str(path), f"It does not compose: {reason}.", "Correct that entry.")
    if mask_override(text) != text:
        reason = "its value cannot be read"  # Hydra's words would quote the secret
    elif "missing EQUAL" in reason:
        reason = "it has no ="
    move = "Write key=value; put a value with commas, brackets or quotes in quotes: key='a, b'."
    return ConfigError(_override_text(text), f"It does not fit: {reason}.", move)


def _list_error(path: Path, message: str, overrides: Sequence[str]) -> ConfigError | None:
    """A list where names were looked up; None where that is not what went wrong."""
    typed = [o for o in overrides if any(repr(n) in message for n in _key_of(o).split("."))]
    if typed:
        cause = "The run file has a list there, and the entries of a list have no names."
        move = "Replace the whole list (key=[…]), or edit the run file."
        return ConfigError(_override_text(typed[0]), cause, move)
    if "defaults" in message:
        cause = "Its `defaults` is no list of names of configs."
        return ConfigError(str(path), cause, "Write it as defaults: [rehearsal, _self_].")
    return None


def _value_error(files: Iterable[Path]) -> ConfigError | None:
    """The first file with a value that its tag cannot be, as `!!int x`; None where none has."""
    for file in files:
        try:
            load_yaml(file.read_text(encoding="utf-8"))
        except ValueError as error:
            return ConfigError(str(file), f"A value in it cannot be read: {error}.", "Correct it.")
    return None


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
