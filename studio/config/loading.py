"""Loading a run file: composed, rewritten in passes, resolved and validated.

The only module that reads the environment. It imports Hydra and pydantic, so commands
import it when they run, never before. `studio.config.settings.run` says what may be set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from engines.core.errors import DataError
from engines.core.text.masking import Mask
from engines.data.source import HELD_OUT, PRACTISED, DataSource, resolve_data
from studio.config.agent_file import mount_agent
from studio.config.aliases import apply_aliases, normalise_verifier
from studio.config.compose import ComposedConfig, compose_run, resolve
from studio.config.offline_load import leave_out, left_out_notes, masked_environment, unknown_keys
from studio.config.paths import pin_data, pin_models, pin_verifiers
from studio.config.roles import ROLES, expand_roles, read_endpoints, share_temperature
from studio.config.settings.agent import AgentConfig
from studio.config.settings.run import RunConfig, section_of
from studio.config.source import find_run_file
from studio.config.tree import Key, Tree, dotted_name, walk
from studio.config.validation_errors import check_plain_values, explain_error
from studio.config.youtu import YoutuConfig, translate
from studio.config.youtu_model import flatten
from studio.presets import presets_folder
from studio.secrets.output import remember
from studio.secrets.rules import (
    is_common,
    is_kept_as_written,
    is_masked,
    is_secret,
    known_secrets,
)

_BUNDLED = Path(str(files("sample_data")))


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A validated run file and where things were found."""

    config: RunConfig
    path: Path
    preset: bool
    roots: tuple[Path, ...]  # folders in which data names are looked up, in order
    warnings: tuple[str, ...]
    place: Callable[[str], str]  # dotted key → where its value was written
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

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
            cause, move = f"{error.place}: {error.cause}", error.move
            searched = error.cause.removeprefix("It is not found. ")
            if searched != error.cause:
                cause = f'There is no data set "{name}". {searched}'
                if os.sep not in name:
                    move += f" Or add it: studio data add FILE --name {name.partition(':')[0]}."
            raise DataError(self.place(key), cause, move) from error


@dataclass(slots=True)
class _Draft:
    """A run file between its text and its settings; the passes below change it in turn."""

    composed: ComposedConfig  # as written, with the place of every key
    workspace: Path
    environ: Mapping[str, str]  # what `${oc.env:NAME}` reads
    cwd: Path
    preset: bool
    keyless: bool
    agent: Path | None
    youtu: YoutuConfig | None
    unknown: Mapping[Key, str]  # what counts as absent, see `offline_load`
    tree: Tree = field(default_factory=dict)  # the values, once they are resolved
    origins: dict[str, str] = field(default_factory=dict)  # dotted key → text with `${…}`
    secrets: frozenset[str] = frozenset()

    @property
    def data_roots(self) -> tuple[Path, ...]:
        """Folders in which names of data sets are looked up, in order."""
        own = self.workspace / "datasets"
        if self.youtu:
            return (own, *self.youtu.data_folders, _BUNDLED, self.cwd)
        # After the three of the contract comes the current folder, for what is typed there.
        return (*self._beside, own, _BUNDLED, self.cwd)

    @property
    def verifier_roots(self) -> tuple[Path, ...]:
        own = self.workspace / "verifiers"
        if self.youtu:
            return (own, self.youtu.verifiers, _BUNDLED / "verifiers", self.cwd)
        return (*self._beside, own, _BUNDLED / "verifiers", self.cwd)

    @property
    def _beside(self) -> tuple[Path, ...]:
        return () if self.preset else (self.composed.path.parent,)


def load_run(
    name_or_path: str,
    overrides: Sequence[str],
    workspace: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    *,
    agent: Path | None = None,
    youtu: YoutuConfig | None = None,
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
    outer = os.environ if environ is None else environ
    environ = {**youtu.environment(), **outer} if youtu else outer
    path, preset = (youtu.file, False) if youtu else find_run_file(name_or_path)
    roots = (workspace / "configs", presets_folder())
    composed = compose_run(path, overrides, roots)
    unknown = unknown_keys(composed, environ) if keyless else {}
    draft = _Draft(
        composed,
        workspace,
        masked_environment(composed, environ) if unknown else environ,
        cwd=Path.cwd() if cwd is None else cwd,
        preset=preset,
        keyless=keyless,
        agent=agent,
        youtu=youtu,
        unknown=unknown,
    )
    for rewrite in _AS_WRITTEN:
        rewrite(draft)
    draft.tree = resolve(composed, draft.environ)
    for rewrite in _AS_RESOLVED:
        rewrite(draft)
    return _validate(draft, _env_file_notes(youtu, draft.origins, outer))


def _validate(draft: _Draft, notes: Sequence[str]) -> LoadedRun:
    composed = draft.composed
    try:
        config = RunConfig.model_validate(draft.tree)
    except ValidationError as error:
        raise explain_error(composed, error) from error
    config.origins.update(draft.origins)
    doubts = _doubtful_settings(config)
    return LoadedRun(
        config,
        composed.path,
        draft.preset,
        draft.data_roots,
        (*composed.warnings, *doubts, *notes, *left_out_notes(draft.unknown)),
        lambda key: composed.place(tuple(key.split("."))).text,
        draft.secrets,
    )


def _use_our_names(draft: _Draft) -> None:
    if draft.youtu:
        translate(draft.composed, draft.youtu, draft.environ)
        return
    apply_aliases(draft.composed)
    for role in (*((name,) for name in ROLES), ("agent", "model")):
        flatten(draft.composed, role, draft.environ)


def _mount_agent(draft: _Draft) -> None:
    if draft.agent is not None:
        mount_agent(draft.composed, draft.agent)


def _leave_out_unknown(draft: _Draft) -> None:
    if draft.unknown:
        leave_out(draft.tree)


def _find_secrets(draft: _Draft) -> None:
    draft.origins = {
        dotted_name(key): text
        for key, text in walk(draft.composed.tree)
        if isinstance(text, str) and "${" in text and is_kept_as_written(key, text)
    }
    draft.secrets = known_secrets(walk(draft.tree), draft.origins, draft.environ)
    remember(draft.secrets)


def _note_common_secrets(draft: _Draft) -> None:
    """A reader would wonder at the gaps that a masked word leaves in ordinary text."""
    draft.composed.warnings += [
        f"{dotted_name(key)} is a common word: it is masked wherever it occurs."
        for key, value in walk(draft.tree)
        if isinstance(value, str) and is_secret(key, value) and is_common(value)
    ]


def _refuse_masked(draft: _Draft) -> None:
    for key, value in walk(draft.tree):
        if is_masked(key, value) and not draft.keyless:
            name = dotted_name(key)
            raise draft.composed.error(
                key,
                f'"{name}" is masked: it was once written as its value, which is never stored.',
                f"Set it again: {name}=${{oc.env:NAME}}, or start with the original file.",
            )


def _name_experiment(draft: _Draft) -> None:
    """After the file, unless it gives a name itself."""
    places, tree = draft.composed.places, draft.tree
    written = draft.composed.place(("exp_id",)).text
    if written.startswith(str(presets_folder())) and not draft.preset:
        # What builds on a preset is another experiment than the preset itself.
        tree.pop("exp_id", None)
        places.pop(("exp_id",), None)
    stem = draft.composed.path.stem
    tree.setdefault("exp_id", re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-"))


def _drop_empty_sections(draft: _Draft) -> None:
    """`evaluation:` with nothing below it is an empty section."""
    for name in [key for key, value in draft.tree.items() if value is None and section_of((key,))]:
        del draft.tree[name]


def _pin_paths(draft: _Draft) -> None:
    """Make names of files absolute, so that `run.yaml` means the same anywhere."""
    composed, tree, workspace, cwd = draft.composed, draft.tree, draft.workspace, draft.cwd
    own = (workspace / "datasets", _BUNDLED)
    pin_data(composed, tree, draft.data_roots, own, cwd)
    pin_models(composed, tree, composed.path.parent, workspace, cwd)
    own = (workspace / "verifiers", _BUNDLED / "verifiers")
    pin_verifiers(composed, tree, draft.verifier_roots, own, cwd)


_AS_WRITTEN: tuple[Callable[[_Draft], None], ...] = (
    _use_our_names,  # so that the passes below know one name for each setting
    lambda draft: normalise_verifier(draft.composed),
    _mount_agent,
    lambda draft: expand_roles(draft.composed),  # the mounted agent may bring the policy
)
"""Passes over the text with its `${…}`, in order."""

_AS_RESOLVED: tuple[Callable[[_Draft], None], ...] = (
    _leave_out_unknown,
    _find_secrets,  # before any refusal can quote the file
    lambda draft: check_plain_values(draft.composed, walk(draft.tree)),
    _note_common_secrets,  # before the environment's own keys join
    _refuse_masked,
    _name_experiment,
    lambda draft: read_endpoints(draft.tree, draft.origins, draft.environ),
    lambda draft: share_temperature(draft.composed, draft.tree),
    _drop_empty_sections,
    _pin_paths,  # last: roles may have taken over a path from each other
)
"""Passes over the values, in order."""


def _doubtful_settings(config: RunConfig) -> tuple[str, ...]:
    notes = []
    if config.evaluation.do_eval and config.evaluation.k > 1 and config.evaluation.temperature == 0:
        notes.append("evaluation.k is above 1 at temperature 0: its tries may all be the same.")
    if config.practice.group_size == 1 and config.data.practice is not None:
        notes.append(
            "practice.group_size is 1: a single try shows no contrast, so nothing can be "
            "learned from it."
        )
    usual = AgentConfig.model_fields["max_turns"].default
    if config.agent.kind == "single_turn" and config.agent.max_turns != usual:
        notes.append("agent.max_turns has no effect: an agent of kind single_turn replies once.")
    return tuple(notes)


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
