"""Loading a run file: composed, rewritten in passes, resolved, its paths made absolute, validated.

The only module that reads the environment, and where refusals of values get their words. Slow to
import, since it needs pydantic. Where no model will be asked, as by a dry run, it needs no key.
Typed names of files are looked up from the current folder, written ones beside the file. A model's
name that is no folder may be one of the hub, and is left as it is.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from engines.core import errors, settings
from engines.core.frozen import frozen
from engines.data.source import HELD_OUT, PRACTISED, DataSource, locate, resolve_data
from engines.grpo.checkpoint.folders import find_checkpoints
from engines.policies.open import is_scripted
from engines.record.cassette import Tape
from engines.secrets.mask import MASK, Mask
from engines.tools.settings import TOOL_KEYS
from engines.verifiers.open import find_file
from studio.config import aliases, from_youtu
from studio.config.compose import ComposedConfig, compose_run, resolve
from studio.config.settings.agent import AgentConfig
from studio.config.settings.base import declared_settings
from studio.config.settings.run import RunConfig, every_setting, find_collector, section_of
from studio.config.source import YoutuConfig, find_run_file, read_env_file
from studio.config.tree import (
    ABSENT,
    Key,
    Tree,
    Variables,
    dotted_name,
    get_value,
    pop_value,
    replace_value,
    walk,
    walk_texts,
)
from studio.errors import plain_words
from studio.presets import presets_folder
from studio.secrets import output, run_files

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass


def explain_error(composed: ComposedConfig, error: ValidationError) -> errors.ConfigError:
    """The first refusal in the order of the settings; the others are counted."""
    first, *others = error.errors(include_url=False)
    key: Key = tuple(str(part) for part in first["loc"])
    context = first.get("ctx", {})
    more = f" ({len(others)} more to correct.)" if others else ""
    if isinstance(
        refused := context.get("error"), settings.SettingError
    ):  # of an engine's own check
        context = {"at": refused.name, "move": refused.move}
        first["msg"] = refused.cause.rstrip(".")
    at = (*key, *str(context["at"]).split(".")) if "at" in context else key
    if "move" in context:
        return composed.error(at, f'"{dotted_name(at)}": {first["msg"]}.', context["move"] + more)
    value = context.get("value", first["input"])
    cause, move = _cause_and_move(at, first["type"], first["msg"], value)
    return composed.error(at, cause, move + more)


def _cause_and_move(key: Key, kind: str, message: str, value: object) -> tuple[str, str]:
    name, section = dotted_name(key), section_of(key)
    if kind in _UNKNOWN:
        if "." in key[-1]:
            return f'"{name}" is not a setting.', "Write it nested: a key on each line."
        parent = section_of(tuple(part for part in key[:-1] if not part.isdecimal()))
        siblings = declared_settings(parent) if parent else ()
        return f'"{name}" is not a setting.', aliases.suggest_key(key, siblings, every_setting())
    keys = declared_settings(section) if section is not None and kind != "value_error" else {}
    required = [inner for inner, declared in keys.items() if declared.required]
    meaning = every_setting().get(name, "").rstrip(".")
    move = f"Set {name}: {meaning}." if meaning else "Correct it."
    if keys:
        move = f"Set {', '.join(f'{name}.{inner}' for inner in required or keys)}."
    if kind == "missing":
        return f'"{name}" is missing.', move
    shown = "" if isinstance(value, dict) else f" is {_value_text(key, value)}"
    reason = f": {plain_words(message).split(', unable to')[0]}"
    if kind == "string_pattern_mismatch":
        reason = ", which does not fit"
    elif "instance of" in message:
        reason = "; it holds settings of its own"
    return f'"{name}"{shown}{reason}.', move


def _value_text(key: Key, value: object) -> str:
    if run_files.is_secret(key, value) or "headers" in key or "extra_body" in key:
        return "hidden"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}…"


def check_plain_values(composed: ComposedConfig, tree: Tree) -> None:
    """Refuse the first value that no file of a run can hold, with the place where it is written."""
    for key, value in walk(tree):
        fault = ""
        if isinstance(value, str) and _NO_TEXT.search(value):
            fault = "holds a NUL character or half of a surrogate pair"
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            fault = "is a number beyond 64 bits"
        elif isinstance(value, float) and not math.isfinite(value) and "extra_body" in key:
            fault = "is no number that JSON knows"
        if fault:
            raise composed.error(key, f'"{dotted_name(key)}" {fault}.', "Give another value.")


_ASKED = re.compile(r"oc\.env\s*:\s*(\w+)")
_BUNDLED = Path(str(files("sample_data")))


@frozen
class LoadedRun:
    """A validated run file and where things were found."""

    config: RunConfig
    path: Path
    preset: bool
    roots: tuple[Path, ...]  # folders in which data names are looked up, in order
    warnings: tuple[str, ...]
    place: Callable[[str], str]  # dotted key → where its value was written
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    tape: Tape | None = None  # what is asked is recorded there, or played from it

    @property
    def mask(self) -> Mask:
        """Takes every secret that this run knows out of what it writes."""
        return Mask(self.secrets)

    def data_path(self, name: str, key: str = "data.practice") -> DataSource:
        """The file or split of a data set named in this run file.

        A split that the name leaves open is one to practise on or to hold out, by the key.

        Raises DataError: no root has it; the place is where the run file names it.
        """
        try:
            prefer = HELD_OUT if key.startswith("evaluation") else PRACTISED
            return resolve_data(name, self.roots, prefer)
        except errors.DataError as error:
            raise errors.DataError(
                self.place(key),
                f"{error.place}: {error.cause}",
                f"{error.move} Or add it: studio data add FILE --name {name.partition(':')[0]}.",
            ) from error


def load_run(
    name_or_path: str,
    overrides: Sequence[str],
    workspace: Path,
    environ: Variables | None = None,
    cwd: Path | None = None,
    *,
    agent: Path | None = None,
    youtu: YoutuConfig | None = None,
    keyless: bool = False,
) -> LoadedRun:
    """Load a run file or preset, or instead of it a config of a Youtu-Agent checkout.

    What it names is searched in the file's folder, then in `workspace`. `environ` is what
    `${oc.env:NAME}` reads, by default the process's environment and, for what that does not set,
    `.env` in `cwd`, where relative paths of overrides begin. The file `agent` takes the place of
    the run file's agent. With `keyless` no model will be asked, so keys and addresses that are
    masked, or whose variable is not set, count as absent; the warnings name them.

    Data sets, verifiers, logs and rules that lie outside the workspace and the bundled data become
    absolute paths, so that the run's `run.yaml` means the same anywhere.

    Raises ConfigError: with place (file:line or override), cause and next move.
    """
    variables = _read_environment(environ, cwd or Path.cwd(), youtu)
    path, preset = (youtu.file, False) if youtu else find_run_file(name_or_path)
    composed = compose_run(path, overrides, (workspace / "configs", presets_folder()))
    absent = absent_keys(composed, variables.values) if keyless else {}
    missing = [name for names in absent.values() for name in names]
    values = {**dict.fromkeys(missing, MASK), **variables.values}
    _rewrite_text(composed, values, youtu, agent)
    tree = resolve(composed, values)
    if absent:
        leave_out_masked(tree)
    origins = {  # of each setting that is stored as its text with `${…}`
        dotted_name(key): text
        for key, text in walk_texts(composed.tree)
        if "${" in text and run_files.is_kept_as_written(key, text)
    }
    secrets = run_files.known_secrets(walk(tree), origins, values)
    output.remember(secrets)  # before any refusal can quote the file
    check_plain_values(composed, tree)
    # Before the environment's own keys join. One would wonder at gaps in ordinary text.
    composed.warnings += [
        f"{dotted_name(key)} is a common word: it is masked wherever it occurs."
        for key, value in walk_texts(tree)
        if run_files.is_secret(key, value) and run_files.is_common(value)
    ]
    if not keyless:
        _refuse_masked(composed, tree)
    _name_experiment(composed, tree, preset)
    aliases.read_endpoints(tree, origins, values)
    aliases.share_temperature(composed, tree)
    for name in [key for key, value in tree.items() if value is None and section_of((key,))]:
        del tree[name]  # `evaluation:` with nothing below it is an empty section
    # Last: roles may have taken over a path from each other.
    beside = () if preset or youtu else (composed.path.parent,)
    theirs = youtu.data_roots(variables.values, composed.warnings) if youtu else ()
    verifiers = (workspace / "verifiers", *((youtu.verifiers,) if youtu else ()))
    cwd = variables.folder
    names = _FileNames(
        composed=composed,
        workspace=workspace,
        cwd=cwd,
        beside=beside,
        data=(*beside, workspace / "datasets", *theirs, _BUNDLED, cwd),
        verifiers=(*beside, *verifiers, _BUNDLED / "verifiers", cwd),
    )
    names.pin_all(tree)
    config = _validate(composed, tree, origins, values)
    warnings = [*composed.warnings, *_doubtful_settings(config)]
    warnings += variables.notes(composed, origins)
    warnings += [_absent_text(key, names) for key, names in absent.items()]
    return LoadedRun(
        config, composed.path, preset, names.data, tuple(warnings), composed.place_text, secrets
    )


@frozen
class _Environment:
    """The variables that a run file may name, and the working folder."""

    values: Variables
    folder: Path
    own: Variables  # what its `.env` adds

    def notes(self, composed: ComposedConfig, origins: Variables) -> Iterator[str]:
        """Say what the working folder's `.env` gave."""
        texts = (*origins.values(), *(text for _, text in walk_texts(composed.tree)))
        if given := {name for name in _ASKED.findall(" ".join(texts)) if name in self.own}:
            yield f"{self.folder / '.env'} gives {', '.join(sorted(given))}"


def _read_environment(
    environ: Variables | None, folder: Path, youtu: YoutuConfig | None
) -> _Environment:
    """Read the variables; `.env` counts where no `environ` is given, and is not printed then."""
    outer = youtu.environment() if youtu else {}
    if environ is not None:
        return _Environment({**outer, **environ}, folder, {})
    outer |= os.environ
    own = read_env_file(folder / ".env")
    output.remember(run_files.environment_secrets(own))
    own = {name: value for name, value in own.items() if name not in outer}
    return _Environment({**own, **outer}, folder, own)


def _rewrite_text(
    composed: ComposedConfig,
    environ: Variables,
    youtu: YoutuConfig | None,
    agent: Path | None,
) -> None:
    """The passes over the text with its `${…}`, the names first: then each setting has one."""
    if youtu:
        from_youtu.translate(composed, youtu, environ, own_agent=agent is None)
    else:
        aliases.mount_parts(composed)
        if get_value(composed.tree, ("data", "dataset")) is not ABSENT:  # an eval file
            from_youtu.mount_root(composed)
        aliases.apply_aliases(composed)
        for role in aliases.model_keys(composed.tree):
            from_youtu.flatten(composed, role, environ)
    aliases.normalise_verifier(composed)
    if agent is not None:
        aliases.mount_agent(composed, agent)
    aliases.expand_roles(composed)  # the mounted agent may bring the policy


def _validate(
    composed: ComposedConfig, tree: Tree, origins: Variables, environ: Variables
) -> RunConfig:
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise explain_error(composed, error) from error
    config.origins.update(origins)
    config.tool_keys.update({name: environ[name] for name in TOOL_KEYS if name in environ})
    try:
        config.set_collector(find_collector(config.tracing, environ))
    except ValueError as error:
        composed.warnings.append(f"no spans are sent: {error}.")
    return config


def _refuse_masked(composed: ComposedConfig, tree: Tree) -> None:
    for key, value in walk(tree):
        # An agent's model that is asked has become the policy.
        if run_files.is_masked(key, value) and key[:2] != ("agent", "model"):
            name = dotted_name(key)
            raise composed.error(
                key,
                f'"{name}" is masked: it was once written as its value, which is never stored.',
                f"Set it again: {name}=${{oc.env:NAME}}, or start with the original file.",
            )


def _name_experiment(composed: ComposedConfig, tree: Tree, preset: bool) -> None:
    """After the file, unless it gives a name itself."""
    written = composed.place(("exp_id",)).text
    if written.startswith(str(presets_folder())) and not preset:
        # What builds on a preset is another experiment than the preset itself.
        tree.pop("exp_id", None)
        composed.places.pop(("exp_id",), None)
    stem = composed.path.stem
    tree.setdefault("exp_id", re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-"))


def _doubtful_settings(config: RunConfig) -> Iterator[str]:
    evaluation, practice = config.evaluation, config.practice
    if evaluation.data and evaluation.k > 1 and evaluation.temperature == 0:
        yield (
            f"evaluation.k is {evaluation.k} at temperature 0: its tries are likely all the same; "
            "set evaluation.temperature, or k to 1."
        )
    if practice.group_size == 1 and config.data.practice is not None:
        yield (
            "practice.group_size is 1: a single try shows no contrast, so nothing can be learned "
            "from it."
        )
    elif practice.temperature == 0 and not is_scripted(config.policy.model):
        yield (
            "practice.temperature is 0: all tries of a group are likely the same, and nothing is "
            "learned from that."
        )


_UNCONDITIONAL = re.compile(r"oc\.env\s*:\s*(\w+)\s*}")  # one with a default is never missing


def absent_keys(composed: ComposedConfig, environ: Variables) -> dict[Key, list[str]]:
    """Return what only a model is asked with, and the variables that are not set.

    There are none where a value is masked.
    """
    absent: dict[Key, list[str]] = {}
    for key, text in walk_texts(composed.tree):
        if run_files.is_masked(key, text):
            absent[key] = []
        elif run_files.is_secret(key) or run_files.names_secret(text) or run_files.is_address(key):
            names = [name for name in _UNCONDITIONAL.findall(text) if name not in environ]
            if names:
                absent[key] = names
    return absent


def leave_out_masked(tree: Tree) -> None:
    """Take keys and addresses away that are not known; in other places the mask does no harm."""
    for key, value in walk_texts(tree):
        if MASK in value and (key[-1] == "api_key" or run_files.is_address(key)):
            pop_value(tree, key)


def _absent_text(key: Key, names: Sequence[str]) -> str:
    why = f"the environment variable {names[-1]} is not set" if names else "it is masked"
    return f"{dotted_name(key)} is left out, since {why}: only a run needs it."


@frozen
class _FileNames:
    """Where names of files in a run file are looked up, in order; what is typed, from `cwd`."""

    composed: ComposedConfig
    workspace: Path
    cwd: Path
    beside: tuple[Path, ...]  # the run file's own folder; () of a preset or a foreign config
    data: tuple[Path, ...]
    verifiers: tuple[Path, ...]

    def pin_all(self, tree: Tree) -> None:
        """Make the names absolute, in place, so that a stored `run.yaml` means the same anywhere.

        Raises ConfigError: an adapter is not there. Other files are refused where they are read.
        """
        for key, text in walk_texts(tree):
            pinned = self._pin(tree, key, text)
            if pinned != text:
                replace_value(tree, key, pinned)

    def _pin(self, tree: Tree, key: Key, text: str) -> str:
        scheme, _, name = text.partition(":")
        match key:
            case ("data", "practice") | ("evaluation", "data", *_):
                source = self._locate(key, text)
                own = (self.workspace / "datasets", _BUNDLED)
                if source is None or _lies_in(source.path, own):
                    return text
                return str(source)
            case (*_, "model") | ("review", "by") if scheme in ("replay", "rules"):
                source = self._locate(key, name)
                return text if source is None else f"{scheme}:{source}"
            case (*_, "model") if scheme in ("hf", "handoff") and name:
                folder = self._from_root(key, name)
                # A name that is no folder may be one of the hub.
                is_folder = scheme == "handoff" or (name != "tiny" and folder.is_dir())
                return f"{scheme}:{folder}" if is_folder else text
            case ("policy" | "reflector" | "judge", "adapter"):
                return str(self._find_adapter(key, text))
            case ("verifier", *_, "file") if text.strip():
                file = find_file(text, self._roots(key, text, self.verifiers))
                own = (self.workspace / "verifiers", _BUNDLED / "verifiers")
                return text if file is None or _lies_in(file, own) else str(file.resolve())
            case ("agent", _, *_):
                return self._pin_program(tree, key, text)
        return text

    def _roots(self, key: Key, name: str, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        # What an override gives as a path is meant from where it is typed.
        is_typed = self.composed.place(key).override and (os.sep in name or "." in name)
        return (self.cwd, *roots) if is_typed else roots

    def _from_root(self, key: Key, name: str) -> Path:
        root = self.cwd if self.composed.place(key).override else self.composed.path.parent
        return (root / Path(name).expanduser()).resolve()

    def _locate(self, key: Key, name: str) -> DataSource | None:
        """The split stays as it is written: what is meant else is known where it is read."""
        try:
            source = locate(name, self._roots(key, name, self.data))
        except errors.DataError:
            return None
        return DataSource(source.path.resolve(), source.split)

    def _pin_program(self, tree: Tree, key: Key, text: str) -> str:
        """Programs are files in commands of agents and tools, and of functions.

        Pages of tools are looked up with the data, too.
        """
        is_function = key[-1] == "function" or (key[1] == "tools" and ".py:" in text)
        provider = get_value(tree, (*key[:-1], "provider"))
        is_source = key[-1] == "source" and provider in ("fixture", "folder")
        if not (is_function or is_source or {"command", "readable"} & set(key)):
            return text
        name, colon, function = text.rpartition(":") if is_function else (text, "", "")
        roots = (*self.beside, _BUNDLED / "agents", self.cwd)
        if is_source:
            roots += (self.workspace, self.workspace / "datasets", _BUNDLED)
        for root in self._roots(key, name, roots):
            path = root / name
            if name and path.exists():
                is_meant = path.is_file() or is_source or "readable" in key
                return f"{path.resolve()}{colon}{function}" if is_meant else text
        return text

    def _find_adapter(self, key: Key, value: str) -> Path:
        kind, _, named = value.partition(":")
        if kind != "run" or not named:
            folder = self._from_root(key, value)
            if (folder / "adapter_config.json").is_file():
                return folder
            cause = f"{folder} is no folder with an adapter_config.json."
            move = "Give the folder of a LoRA adapter, run:RUN (its newest checkpoint) or "
            raise self.composed.error(key, cause, f"{move}run:RUN@STEP.")
        run, _, step = named.partition("@")
        saved = find_checkpoints(self.workspace / "runs" / run)
        chosen = [checkpoint for checkpoint in saved if step in ("", str(checkpoint.step))]
        if chosen:
            return chosen[-1].folder.resolve()
        of = f" of step {step}" if step else ""
        steps = ", ".join(str(checkpoint.step) for checkpoint in saved)
        move = "Name another run (studio runs list), or the folder of an adapter."
        if saved:
            move = f"It has those of steps {steps}."
        raise self.composed.error(
            key, f"run {run} has no checkpoint{of} in {self.workspace}.", move
        )


def _lies_in(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def own_programs(agent: AgentConfig) -> tuple[Path, ...]:
    """The files that an agent's programs, functions and pages were found to be."""
    texts = [*agent.command, *(text for tool in agent.tools for text in tool.command)]
    functions = (agent.function, *(tool.function for tool in agent.tools))
    texts += [function.rpartition(":")[0] for function in functions if function]
    texts += [tool.source for tool in agent.tools if tool.source]
    found = [Path(text) for text in texts if text.startswith("/")]
    found += [page for path in found for page in sorted(path.glob("*.md"))]  # of a folder
    return tuple(dict.fromkeys(path for path in found if path.is_file()))
