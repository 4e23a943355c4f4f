"""What a command line asks for: a new run, a resumed one, a fork, or nothing to do.

Owns the refusals of a resume: steps that do not exist, and settings, problems or weights that would
silently be others.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from engines.core.codec import JsonMapping, JsonObject, digest
from engines.core.errors import ConfigError, ConflictError, StudioError
from engines.core.frozen import frozen
from engines.core.library_notes import NotesMark
from engines.core.state.run_state import RunState
from engines.core.types import Problem, Tell
from engines.data.dataset import check_rows, doubts_line, read_problems
from engines.data.sampler import Sampler
from engines.grpo.checkpoint.folders import ADAPTER, check_seal
from engines.pipeline import replay_training, reviewers
from engines.record import cassette, seal, yaml_text
from engines.record.run_dir import RunDir, Workspace
from engines.verifiers.open import needs_answer
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import differences
from studio.config.settings.base import NAME_LENGTH, NAME_PATTERN
from studio.config.settings.run import RunConfig
from studio.config.source import Source
from studio.render.lines import to_stderr
from studio.run.models import fingerprint_of, masked_answers_warning

if TYPE_CHECKING:
    from engines.policies.hf_local.model import LocalModel


_ALWAYS = ("seed", "practice.algorithm", "policy.model", "policy.adapter", "grpo.lora.")
_GRPO = ("policy.local.", "policy.temperature", "policy.max_tokens", "grpo.")
_BY_ALGORITHM = {
    "grpo": _GRPO,
    "both": (*_GRPO, "practice.weight_steps"),
    "sft": ("policy.local.", "sft.", "agent.instructions"),
}
_DECIDE_NOTHING = ("grpo.reject_",)  # they decide whether an update passes, not what it is


def check_fork(parent: str, state: RunState, steps: int, total_steps: int) -> None:
    """Refuse to adopt steps that a run does not have, or that leave nothing to do."""
    place = f"restart_step={steps}"
    if steps > state.steps_finished:
        raise ConfigError(
            place,
            f"run {parent} has finished {state.steps_finished} steps.",
            f"Choose 1 to {state.steps_finished}, 0 to start afresh, or null to resume it.",
        )
    if steps >= total_steps:
        raise ConfigError(
            place,
            f"the run has {total_steps} steps in all, so none would be left.",
            "Give more epochs or adopt fewer steps.",
        )
    started = state.started
    if started is not None and steps < started.forked_steps:
        raise ConflictError(
            place,
            f"run {parent} itself adopted {started.forked_steps} steps of {started.forked_from}.",
            f"Fork that run: --resume {started.forked_from} --restart-step {steps}.",
        )


def check_problems_unchanged(
    run: str, state: RunState, problems: tuple[Problem, ...], sampler: Sampler
) -> None:
    """Refuse other problems for a step that has begun, also where changes are accepted."""
    if (now := state.current) is None:
        return
    known = now.step <= sampler.total_steps
    if known and now.problems == tuple(problems[at].id for at in sampler.batch(now.step)):
        return
    raise ConfigError(
        f"run {run}, step {now.step}",
        "it has begun with problems that are not the batch of these settings.",
        f"Finish it with the settings it began with, or start after the step before it with "
        f"--restart-step {now.step - 1}.",
    )


def check_settings_unchanged(run: str, state: RunState, fingerprint: JsonObject) -> None:
    """Refuse settings that change the results of a run that has begun with others."""
    changed = list(differences(state.settings, fingerprint))
    if changed:
        shown = "; ".join(change_text(*change) for change in changed[:5])
        raise ConfigError(
            f"run {run}",
            f"settings that change its results differ from those it began with: {shown}.",
            "Undo them, accept them with --accept-changes, or start a new run with "
            "--restart-step 0 or another --name.",
        )


def change_text(name: str, old: object, new: object) -> str:
    """A changed setting; of the fields of a request only the names, since any may hold a key."""
    if isinstance(old, dict) and isinstance(new, dict):
        fields = [f for f in sorted({*old, *new}) if old.get(f) != new.get(f)]
        if name.endswith(".extra_body"):
            return f"{name} (in {', '.join(fields)})"
        old, new = ({f: value.get(f) for f in fields} for value in (old, new))
    elif name.endswith(".extra_body"):
        return name
    return f"{name}: {old!r} → {new!r}"[:160]


def check_recomputable(
    segments: tuple[replay_training.HistorySegment, ...], fingerprint: JsonMapping, place: str
) -> None:
    """Refuse to compute updates again under other settings than they were made with.

    `segments` are the history that the run continues; `place` names what was asked for. A
    checkpoint at the last step makes all of it right.
    """
    made: dict[int, tuple[str, ...]] = {}
    saved: dict[int, Path] = {}
    for segment in segments:
        history = segment.history()
        saved |= segment.checkpoints(history)
        for number, step in history.steps.items():
            if step.lesson is not None:
                before = step.lesson_settings
                trained = before.get("practice.algorithm") in _BY_ALGORITHM
                made[number] = tuple(_training_changes(before, fingerprint)) if trained else ()
    if not any(made.values()):
        return
    newest = max((step for step, folder in saved.items() if _is_intact(folder)), default=0)
    # Steps up to a checkpoint are restored from it and not computed again.
    names = {name for step, changed in made.items() if step > newest for name in changed}
    if names:
        last = max(step for step, changed in made.items() if changed)
        raise ConfigError(
            place,
            f"steps {newest + 1} to {last} would be computed again under other settings "
            f"({', '.join(sorted(names))}), which gives other weights; the newest checkpoint is "
            f"of step {newest}.",
            f"Go on from there (--restart-step {newest}), leave those settings as they were, or "
            "finish the run as it is up to its next checkpoint first.",
        )


def check_weights(
    run: str, state: RunState | None, fingerprint: JsonMapping, local: "LocalModel"
) -> None:
    """Refuse a model or an adapter other than the one a run began with.

    `state` is that of the run which is resumed or forked; None: there is none.
    """
    if state is None or not state.engine_facts:
        return
    began, now = state.engine_facts, weight_facts(local)
    accepted = set(_training_changes(state.settings, fingerprint))
    loaded_as = {"policy.local.dtype", "policy.local.quantise"}
    decided_by = {"dtype": loaded_as, "base": loaded_as, "adapter": {"policy.adapter"}}
    for fact, settings in decided_by.items():
        if began[fact] != now[fact] and not accepted & settings:
            raise ConfigError(
                f"run {run}",
                f"the {fact} of {local.name} is not the one it began with ({began[fact]}, and "
                f"here {now[fact]}).",
                "Put it back, or begin anew with --restart-step 0 or another --name.",
            )


def weight_facts(local: "LocalModel") -> JsonObject:
    """How a model was loaded, with a digest of the adapter that it began with."""
    return {**local.facts(), "adapter": _adapter_digest(local.settings.adapter)}


def _training_changes(old: JsonMapping, new: JsonMapping) -> Iterator[str]:
    """Settings that decide what an update is and differ."""
    decide = (*_ALWAYS, *_BY_ALGORITHM.get(str(new.get("practice.algorithm")), ()))
    for name, _, _ in differences(old, new):
        if name.startswith(_DECIDE_NOTHING) or not name.startswith(decide):
            continue
        # Dr. GRPO alone divides its loss by the token limit.
        if name != "policy.max_tokens" or new.get("grpo.aggregation") == "dr_grpo":
            yield name


def _is_intact(folder: Path) -> bool:
    try:
        check_seal(folder)
    except StudioError:
        return False
    return True


def _adapter_digest(adapter: Path | None) -> str | None:
    if adapter is None or not (adapter / ADAPTER).is_file():
        return None
    with (adapter / ADAPTER).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def removed_budget_limits(run_file: Path, config: RunConfig) -> list[str]:
    """A sentence for each limit that a run file had and the config of the next process lacks."""
    before = read_run_yaml(run_file)
    budget = before.get("budget") if before is not None else None
    if not isinstance(budget, dict):
        return []
    return [
        f"the run had budget.{name}={limit}, which is no longer set: it may spend without that "
        "limit. Give it again, or take the run up with --resume, which keeps it."
        for name, limit in budget.items()
        if isinstance(limit, int | float) and getattr(config.budget, name, limit) is None
    ]


def read_run_yaml(run_file: Path) -> JsonObject | None:
    """None where it cannot be read, was altered or is no mapping."""
    try:
        data = run_file.read_bytes()
        tree = None if seal.seal_fits(data) is False else yaml_text.load_yaml(data.decode())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return tree if isinstance(tree, dict) else None


Mode = Literal["new", "resume", "fork", "finished"]


@frozen
class RunPlan:
    """One run to be opened. `state` is what its journal holds (resume, finished)."""

    mode: Mode
    run: RunDir
    workspace: Workspace
    loaded: LoadedRun
    problems: tuple[Problem, ...]
    sampler: Sampler
    fingerprint: JsonObject
    reviewer: str
    state: RunState | None = None
    parent: RunDir | None = None
    adopted_steps: int = 0

    @property
    def origin(self) -> tuple[str, RunState | None]:
        """Run-id and state of the run that this one continues or forks; None: it is new."""
        if self.parent is not None:
            return self.parent.run, self.parent.state()
        return self.run.run, self.state


def check_run_name(name: str) -> None:
    """Refuse it as what was typed; the run file would know it as exp_id."""
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > NAME_LENGTH:
        raise ConfigError(
            f'--name "{name}"',
            f"it must be letters, digits, . _ -, at most {NAME_LENGTH}, the first no sign.",
            "Choose another name.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a command line says of a run."""

    workspace: Workspace
    source: Source
    name: str | None = None
    restart_step: str | None = None  # null resumes the newest run of the name, 0 starts afresh
    review: str | None = None
    accept_changes: bool = False  # resume although settings that change results differ
    default_review: str = "auto"  # the reviewer where nothing names one
    keyless: bool = False  # no model can be asked, see `load_run`
    tape: cassette.Tape | None = None

    def load(self) -> LoadedRun:
        """The run file with all overrides; that of the run where one is resumed by its id."""
        if self.name is not None:
            check_run_name(self.name)
        source, named = self.source, [] if self.name is None else [f"exp_id={self.name}"]
        loaded = load_run(
            str(self.resumed_run.run_file) if self.resumed_run else source.runfile or "",
            [*source.overrides, *named],
            self.workspace.path,
            youtu=source.youtu,
            keyless=self.keyless or cassette.is_played(self.tape),
        )
        return replace(loaded, tape=self.tape)

    @property
    def resumed_run(self) -> RunDir | None:
        """The run that is named by its id; None: the newest of the name is looked for."""
        return None if self.source.resume is None else self.workspace.run(self.source.resume)

    def with_overrides(self, name: str | None, *overrides: str) -> "RunRequest":
        """The same with another name and further overrides, which win."""
        source = replace(self.source, overrides=(*self.source.overrides, *overrides))
        return replace(self, source=source, name=name)


def load_plan(
    request: RunRequest, tell: Tell = to_stderr, *, loaded: LoadedRun | None = None
) -> RunPlan:
    """Read the run file and decide what to open; `tell` gets a note on what was assumed.

    `loaded` is what the request's `load` gave already; None reads the file now.
    """
    if request.review is not None:
        reviewers.open_reviewers(request.review, None)  # a finished run would never open it
    loaded = loaded or request.load()
    plan = plan_run(request, loaded, tell=tell)
    notes = [*loaded.warnings]
    if plan.mode == "resume" and request.source.resume is None:  # else its own file was read
        notes += removed_budget_limits(plan.run.run_file, loaded.config)
    for note in (*notes, *_problem_notes(plan)):
        tell(f"note: {note}")
    return plan


def plan_run(
    request: RunRequest,
    loaded: LoadedRun,
    *,
    practises: bool = True,
    tell: Tell = to_stderr,
) -> RunPlan:
    """Decide what to do with a run file that was loaded; `tell` hears of what takes long.

    Raises ConfigError: it `practises`, and the run is one of curation.
    """
    resumed = request.resumed_run
    # Named before the runs are looked at: of two starts at the same moment both name this one.
    unused = request.workspace.new_run_dir(loaded.config.exp_id)
    newest = resumed or request.workspace.newest_run(loaded.config.exp_id)
    state = newest.state(tell) if newest is not None else None
    # The file of a run that is resumed may still say how that run once began.
    restart_step = None if resumed else loaded.config.practice.restart_step
    if request.restart_step is not None:
        restart_step = _parse_restart_step(request.restart_step)
    if practises and newest and state and state.curates and (resumed or restart_step != 0):
        raise ConfigError(
            f"run {newest.run}",
            f"it is the {state.curates}.",
            f"Decide it: studio review {newest.run}. Practise under another --name.",
        )
    workspace = replace(request.workspace, mask=loaded.mask)
    review = _absolute_rules(request.review)
    config = loaded.config
    reviewer = review or config.review.by or request.default_review
    new = _plan_new(loaded, workspace, unused, reviewer)
    if newest is None and restart_step:
        raise ConfigError(
            f"restart_step={restart_step}",
            f"there is no run named {config.exp_id} to take steps from.",
            "Leave --restart-step out for a first run.",
        )
    if newest is None or state is None or restart_step == 0:
        return new
    if state.curates:
        return replace(new, mode="finished", run=newest, state=state)
    if state.started is None:  # cut before its first event was whole
        return replace(new, run=newest)
    if restart_step:
        return _plan_fork(new, newest, state, restart_step)
    # A resumed run keeps its reviewer unless the command line names another.
    plan = replace(new, run=newest, state=state, reviewer=review or state.reviewer)
    return _plan_resume(plan, state, request.accept_changes)


def _plan_new(loaded: LoadedRun, workspace: Workspace, run: RunDir, reviewer: str) -> RunPlan:
    config, problems = loaded.config, _read_problems(loaded)
    practice, data, n = config.practice, config.data, len(problems)
    sampler = Sampler(
        n, practice.batch_size, practice.epochs, config.seed, data.shuffle, data.truncate
    )
    fingerprint = fingerprint_of(loaded, workspace, digest([p.id for p in problems]))
    return RunPlan(
        mode="new",
        run=run,
        workspace=workspace,
        loaded=loaded,
        problems=problems,
        sampler=sampler,
        # As it will be journalled, so that a resume compares like with like.
        fingerprint=loaded.mask.tree(fingerprint),
        reviewer=reviewer,
    )


def _plan_fork(new: RunPlan, parent: RunDir, state: RunState, steps: int) -> RunPlan:
    check_fork(parent.run, state, steps, new.sampler.total_steps)
    if new.loaded.config.trains:
        adopted = replay_training.load_history(parent, new.workspace, steps, to_restore=True)
        check_recomputable(adopted, new.fingerprint, f"restart_step={steps}")
    return replace(new, mode="fork", parent=parent, adopted_steps=steps)


def _plan_resume(plan: RunPlan, state: RunState, accept_changes: bool) -> RunPlan:
    run, sampler = plan.run, plan.sampler
    if not accept_changes:
        check_settings_unchanged(run.run, state, plan.fingerprint)
    check_problems_unchanged(run.run, state, plan.problems, sampler)
    if plan.loaded.config.trains and accept_changes:
        whole = replay_training.load_history(run, plan.workspace, to_restore=True)
        check_recomputable(whole, plan.fingerprint, f"run {run.run}")
    if state.steps_finished > sampler.total_steps:
        raise ConfigError(
            f"practice.epochs={sampler.epochs}",
            f"run {run.run} has finished {state.steps_finished} steps, more than these "
            f"{sampler.total_steps}.",
            "Give at least as many epochs, or --restart-step 0 for a new run.",
        )
    # A run that lacks only its last event is resumed, to record that.
    over = state.steps_finished == sampler.total_steps and state.status == "finished"
    return replace(plan, mode="finished" if over else "resume")


def _read_problems(loaded: LoadedRun) -> tuple[Problem, ...]:
    config = loaded.config
    if config.data.practice is None:
        raise ConfigError(
            loaded.place("data.practice"),
            '"data.practice" is missing: there is nothing to practise on.',
            "Set data.practice, in the file or as data.practice=NAME.",
        )
    return read_problems(
        loaded.data_path(config.data.practice),
        fields=config.data.fields,
        needs_answer=config.practice.given_ground_truth
        and needs_answer(config.verifier.spec)
        and config.rollouts_a_problem > 0,  # without a rollout nothing is judged
    )


def _problem_notes(plan: RunPlan) -> list[str]:
    config = plan.loaded.config
    hidden = masked_answers_warning(plan.problems, plan.loaded.mask)
    notes = [hidden] if hidden else []
    # In demonstrations turns of one conversation share a question.
    if config.practice.algorithm != "sft":
        rows = tuple(enumerate(plan.problems, start=1))
        if doubtful := doubts_line(check_rows(rows, unit="row")):
            data = config.data.practice
            notes.append(f"{data} has {doubtful} (studio data check {data})")
    return notes


def _absolute_rules(review: str | None) -> str | None:
    """A rule file by its absolute path: a resume may come from another folder."""
    kind, colon, file = (review or "").partition(":")
    if kind != "rules" or not file:
        return review
    return f"{kind}{colon}{Path(file).expanduser().resolve()}"


def _parse_restart_step(text: str) -> int | None:
    if text.lower() in ("null", "none"):
        return None
    if text.isdecimal() and len(text) <= 18:
        return int(text)
    raise ConfigError(
        f"--restart-step {text}", "it is neither null nor a whole number.", "Give null, 0 or N."
    )


def forked_library(parent: RunDir, steps: int) -> tuple[str, int, NotesMark]:
    """Name and version of the library as it stood after the parent's first steps.

    The third is how far its notes had come as the next step began.
    """
    state = parent.state()
    started = state.started
    assert started is not None
    version, mark = started.library_version, started.notes
    for number in range(1, steps + 1):
        found = state.steps.get(number)
        if found is not None and found.committed_version is not None:
            version, mark = found.committed_version, found.notes_after
    then = state.steps.get(steps + 1)
    if then is not None and then.library_version == version:
        mark = then.notes
    return started.library, version, mark
