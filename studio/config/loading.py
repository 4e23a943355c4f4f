"""Loading a run file: composed, unified, resolved, validated, and written back.

The only module that reads the environment. It imports Hydra and pydantic, so commands
import it when they run, never before. `studio.config.settings.run` says what may be set.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from engines.core.errors import ConfigError, DataError
from engines.core.text.masking import Mask
from engines.data.source import HELD_OUT, PRACTISED, DataSource, locate, resolve_data
from studio.config.agent_file import mount_agent
from studio.config.aliases import apply_aliases
from studio.config.compose import (
    ComposedConfig,
    Tree,
    compose_run,
    dotted_name,
    replace_value,
    resolve,
    walk,
)
from studio.config.offline_load import leave_out, left_out_notes, masked_environment, unknown_keys
from studio.config.paths import pin_models
from studio.config.run_yaml import dump_run_yaml
from studio.config.settings.agent import AgentConfig
from studio.config.settings.fingerprint import RESULT_FIELDS, differences
from studio.config.settings.run import RunConfig, section_of
from studio.config.validation_errors import explain_error
from studio.config.value_checks import check_plain_values
from studio.config.verifier_aliases import normalise_verifier, pin_verifiers
from studio.config.youtu import YoutuConfig, translate
from studio.config.youtu_model import flatten
from studio.presets import list_presets, preset_path, presets_folder
from studio.secrets.output import remember
from studio.secrets.rules import (
    is_common,
    is_kept_as_written,
    is_masked,
    is_secret,
    known_secrets,
    mask_override,
)

__all__ = [
    "RESULT_FIELDS",
    "LoadedRun",
    "RunConfig",
    "differences",
    "dump_run_yaml",
    "list_presets",
    "load_run",
]

_ROLES = ("policy", "reflector", "judge")
_SHORTHAND = {**dict.fromkeys((*_ROLES, "agent.model"), "model"), "verifier": "name"}


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A validated run file and where things were found."""

    config: RunConfig
    path: Path
    preset: bool
    roots: tuple[Path, ...]  # folders in which data names are looked up, in order
    warnings: tuple[str, ...]
    place: Callable[[str], str]  # dotted key → where its value was written
    secrets: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)

    @property
    def mask(self) -> Mask:
        """Takes every secret that this run knows out of what it writes."""
        return Mask(self.secrets)

    def data_path(self, name: str, key: str = "data.practice") -> DataSource:
        """The file or split of a data set named in this run file.

        Where a name leaves the split open, it is one to practise on or one that is held
        out, by the key it stands under.

        Raises:
            DataError: no root has it; the place is where the run file names it.
        """
        try:
            prefer = HELD_OUT if key.startswith("evaluation") else PRACTISED
            return resolve_data(name, self.roots, prefer)
        except DataError as error:
            cause = f"{error.place}: {error.cause}"
            if error.cause.startswith("It is not found. "):
                searched = error.cause.removeprefix("It is not found. ")
                cause = f'There is no data set "{name}". {searched}'
            move = error.move
            if os.sep not in name and cause != f"{error.place}: {error.cause}":
                move += f" Or add it: studio data add FILE --name {name.partition(':')[0]}."
            raise DataError(self.place(key), cause, move) from error


def load_run(
    name_or_path: str,
    overrides: Sequence[str],
    workspace: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    agent: Path | None = None,
    youtu: YoutuConfig | None = None,
    *,
    keyless: bool = False,
) -> LoadedRun:
    """Load a run file or preset.

    Args:
        name_or_path: an existing file, else the name of a preset.
        overrides: `key=value` texts.
        workspace: its `configs/` and `datasets/` are searched after the file's folder.
        environ: what `${oc.env:NAME}` reads; default the process's environment.
        cwd: where relative paths of overrides are looked up; default the current folder.
        agent: a file that takes the place of the run file's agent.
        youtu: a config of a Youtu-Agent checkout, loaded instead of `name_or_path`.
        keyless: no model will be asked, so keys and addresses that are masked, or whose
            variable is not set, count as absent; the warnings name them.

    Returns:
        The run, with data sets, verifiers, logs and rules that lie outside the workspace and the
        bundled data as absolute paths, so that its `run.yaml` means the same anywhere.

    Raises:
        ConfigError: with place (file:line or override), cause and next move.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    path, preset = (youtu.file, False) if youtu else _find_run_file(name_or_path, workspace)
    outer, environ = environ, {**youtu.environment(), **environ} if youtu else environ
    composed = compose_run(
        path, overrides, (workspace / "configs", presets_folder()), mask_override, _SHORTHAND
    )
    unknown = unknown_keys(composed, environ) if keyless else {}
    environ = masked_environment(composed, environ) if unknown else environ
    if youtu:
        translate(composed, youtu, environ)
    else:
        apply_aliases(composed)
        for role in (*((name,) for name in _ROLES), ("agent", "model")):
            flatten(composed, role, environ)
    normalise_verifier(composed)
    if agent is not None:
        mount_agent(composed, agent)
    _expand_roles(composed)
    tree = resolve(composed, environ)
    if unknown:
        leave_out(tree)
    origins = {
        dotted_name(key): text
        for key, text in walk(composed.tree)
        if isinstance(text, str) and "${" in text and is_kept_as_written(key, text)
    }
    secrets = known_secrets(walk(tree), origins, environ)
    remember(secrets)  # before anything of the file can stand in a refusal
    check_plain_values(composed, walk(tree))
    common = [
        dotted_name(key)
        for key, value in walk(tree)
        if isinstance(value, str) and is_secret(key, value) and is_common(value)
    ]
    _fill_defaults(composed, tree, origins, environ, preset=preset, keyless=keyless)
    own = (workspace / "datasets", Path(str(files("sample_data"))))
    # After the three of the contract comes the current folder, for what is typed there.
    roots: tuple[Path, ...] = (*own, cwd) if preset else (path.parent, *own, cwd)
    if youtu:
        roots = (own[0], *youtu.data_folders, own[1], cwd)
    _pin_paths(composed, tree, roots, own, cwd)
    pin_models(composed, tree, path.parent, workspace, cwd)
    own = (workspace / "verifiers", Path(str(files("sample_data"))) / "verifiers")
    folders: tuple[Path, ...] = (*(() if preset else (path.parent,)), *own, cwd)
    if youtu:
        folders = (own[0], youtu.verifiers, own[1], cwd)
    pin_verifiers(composed, tree, folders, own, cwd)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise explain_error(composed, error) from error
    config.origins.update(origins)
    return LoadedRun(
        config,
        path,
        preset,
        roots,
        (
            *composed.warnings,
            *_doubtful_settings(config),
            *_common_secret_notes(common),
            *_env_file_notes(youtu, origins, outer),
            *left_out_notes(unknown),
        ),
        lambda key: composed.place(tuple(key.split("."))).text,
        secrets,
    )


def _find_run_file(name_or_path: str, workspace: Path) -> tuple[Path, bool]:
    given = Path(name_or_path).expanduser()
    if given.is_file():
        return given.resolve(), False
    if found := preset_path(name_or_path):
        return found, True
    if "=" in name_or_path:
        raise ConfigError(
            f"run file '{mask_override(name_or_path)}'",
            "It looks like an override, and no run file stands before it.",
            "Write the run file or preset first, then key=value.",
        )
    if os.path.lexists(given):
        raise ConfigError(f'run file "{name_or_path}"', _no_file_text(given), "Give a run file.")
    names = [name for name, _ in list_presets()]
    beside = given.parent if given.parent.is_dir() else Path()
    close = get_close_matches(given.name, [*names, *(f.name for f in beside.glob("*.yaml"))], n=1)
    raise ConfigError(
        f'run file "{name_or_path}"',
        "There is no such file and no preset of that name.",
        f'Did you mean "{close[0]}"?' if close else f"Presets: {', '.join(names)}.",
    )


def _no_file_text(path: Path) -> str:
    if os.path.isdir(path):
        return "It is a folder."
    return "It is a link that leads nowhere." if path.is_symlink() else "It is no file."


def _expand_roles(composed: ComposedConfig) -> None:
    """Write plain model names as mappings, and let roles take over from each other.

    A role without a `model` is the policy with some settings changed; an agent's own
    model is the policy where the run file sets none.
    """
    tree = composed.tree
    for name in _ROLES:
        # Copied as written: resolving it would lose where its secrets came from.
        if (other := str(tree.get(name)).removeprefix("${").removesuffix("}")) in _ROLES:
            tree[name] = tree.get(other) if other != name else None
    agent = tree.get("agent")
    for holder, name in [(tree, "policy"), (tree, "reflector"), (tree, "judge"), (agent, "model")]:
        if isinstance(holder, dict) and isinstance(holder.get(name), str):
            holder[name] = {"model": holder[name]}
    model = agent.get("model") if isinstance(agent, dict) else None
    if isinstance(model, dict):
        if tree.get("policy") is None:
            composed.places.setdefault(("policy",), composed.place(("agent", "model")))
            tree["policy"] = dict(model)
        elif isinstance(tree["policy"], dict) and "model" not in tree["policy"]:
            tree["policy"] = {**model, **tree["policy"]}
        elif isinstance(tree["policy"], dict) and "adapter" not in tree["policy"]:
            _take_weights(composed, tree["policy"], model)
    policy = tree.get("policy")
    for name in ("reflector", "judge"):
        role = tree.get(name)
        if isinstance(role, dict) and isinstance(policy, dict) and "model" not in role:
            own = ("temperature", "concurrency")
            shared = {key: value for key, value in policy.items() if key not in own}
            tree[name] = {**shared, **role}


def _take_weights(composed: ComposedConfig, policy: Tree, model: Tree) -> None:
    """A trained agent's weights come with it where the run file names the same model."""
    if model.get("adapter") is not None and model.get("model") == policy.get("model"):
        policy["adapter"] = model["adapter"]
        place = composed.place(("agent", "model", "adapter"))
        composed.places.setdefault(("policy", "adapter"), place)


def _fill_defaults(
    composed: ComposedConfig,
    tree: Tree,
    origins: dict[str, str],
    environ: Mapping[str, str],
    *,
    preset: bool,
    keyless: bool,
) -> None:
    """Defaults that come from elsewhere: the file's name, the environment, the policy."""
    for key, value in walk(tree):
        if is_masked(key, value) and not keyless:
            raise composed.error(
                key,
                f'"{dotted_name(key)}" is masked: it was once spelled out, and is never stored.',
                f"Set it again: {dotted_name(key)}=${{oc.env:NAME}}, or start with the original "
                f"file.",
            )
    named = composed.place(("exp_id",))
    if named.text.startswith(str(presets_folder())) and not preset:
        # What builds on a preset is another experiment than the preset itself.
        tree.pop("exp_id", None)
        composed.places.pop(("exp_id",), None)
    tree.setdefault("exp_id", re.sub(r"[^A-Za-z0-9._-]", "-", composed.path.stem).lstrip("._-"))
    agent = tree.get("agent")
    holders = [(tree.get(role), role) for role in _ROLES]
    holders.append((agent.get("model") if isinstance(agent, dict) else None, "agent.model"))
    for role, name in holders:
        if not isinstance(role, dict) or not str(role.get("model")).startswith("openai:"):
            continue
        for field, variable in (("base_url", "OPENAI_BASE_URL"), ("api_key", "OPENAI_API_KEY")):
            if role.get(field) is None and environ.get(variable):
                role[field] = environ[variable]
                origins[f"{name}.{field}"] = f"${{oc.env:{variable}}}"
    policy, practice = tree.get("policy"), tree.setdefault("practice", {})
    given = policy.get("temperature") if isinstance(policy, dict) else None
    # Of policy.temperature and practice.temperature the more specific one, the latter, wins.
    if given is not None and isinstance(practice, dict) and "temperature" not in practice:
        practice["temperature"] = given
        composed.places[("practice", "temperature")] = composed.place(("policy", "temperature"))
    for name in [key for key, value in tree.items() if value is None and section_of((key,))]:
        del tree[name]  # `evaluation:` with nothing below it is an empty section


def _pin_paths(
    composed: ComposedConfig, tree: Tree, roots: Sequence[Path], own: Sequence[Path], cwd: Path
) -> None:
    """Make names of files absolute, unless the workspace or the bundled data has them."""
    for key, value in list(walk(tree)):
        if not isinstance(value, str):
            continue
        scheme, _, name = value.partition(":")
        is_data = key == ("data", "practice") or key[:2] == ("evaluation", "data")
        if is_data:
            scheme, name = "", value
        elif not (
            (key[-1] == "model" and scheme == "replay")
            or (key == ("review", "by") and scheme == "rules")
        ):
            continue
        # What is typed as a path is meant from where it is typed.
        typed = composed.place(key).override and (os.sep in name or "." in name)
        try:
            source = locate(name, (cwd, *roots) if typed else roots)
        except DataError:
            continue  # told where it is read, which may be never
        if scheme == "" and any(source.path.is_relative_to(folder) for folder in own):
            continue
        # The split as it is written: which one is meant otherwise is known where it is read.
        found = DataSource(source.path.resolve(), source.split)
        if is_data and os.sep not in name and _is_known(name, own[:1]):
            composed.warnings.append(
                f'{dotted_name(key)}: "{name}" is {found} here, not the data set of that name '
                f"in the "
                "workspace; give one of them another name, or a path."
            )
        replace_value(tree, key, f"{scheme}:{found}" if scheme else str(found))


def _is_known(name: str, roots: Sequence[Path]) -> bool:
    try:
        locate(name, roots)
    except DataError:
        return False
    return True


def _doubtful_settings(config: RunConfig) -> tuple[str, ...]:
    told = []
    if config.evaluation.do_eval and config.evaluation.k > 1 and config.evaluation.temperature == 0:
        told.append("evaluation.k is above 1 at temperature 0: its tries may all be the same.")
    if config.practice.group_size == 1 and config.data.practice is not None:
        told.append(
            "practice.group_size is 1: a single try shows no contrast, so nothing can be "
            "learned from it."
        )
    usual = AgentConfig.model_fields["max_turns"].default
    if config.agent.kind == "single_turn" and config.agent.max_turns != usual:
        told.append("agent.max_turns has no effect: an agent of kind single_turn replies once.")
    return tuple(told)


def _common_secret_notes(keys: Sequence[str]) -> tuple[str, ...]:
    """Which secrets ordinary text may hold too: a reader would wonder at the gaps."""
    return tuple(f"{key} is a common word: it is masked wherever it occurs." for key in keys)


def _env_file_notes(
    youtu: YoutuConfig | None, origins: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Which file was read beside the environment, and what of it a resume will miss."""
    if youtu is None or not youtu.env_file.is_file():
        return ()
    asked = re.findall(r"oc\.env\s*:\s*(\w+)", " ".join(origins.values()))
    kept = sorted({name for name in asked if name in youtu.environment() and name not in environ})
    need = f"; --resume needs {', '.join(kept)} in the environment" if kept else ""
    return (f"{youtu.env_file} is read for what the environment does not set{need}",)
