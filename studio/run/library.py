"""The library of a run: what it begins with, and what is written once it is committed.

A start is an empty library, an earlier version, a mounted agent's or a fork's. A commit leaves the
agent with its experiences, and the catalogue.
"""

import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.core import errors
from engines.core import events as ev
from engines.core.library import Experience, Library
from engines.core.state.fold import fold
from engines.core.state.run_state import RunState
from engines.core.text import prompts, sanitize
from engines.pipeline.replay_training import HistorySegment, policy_version_after
from engines.record import appender, journal, libraries, seal
from engines.record.formats.rows import format_agent_body, format_agent_head
from engines.record.run_dir import RunDir, Workspace
from engines.secrets.mask import MASK
from studio.config import aliases, loading, run_yaml, scripted, tree
from studio.config.settings.run import RunConfig
from studio.library.references import find_version, follow_version
from studio.run.models import endpoint_of
from studio.run.new_or_resume import RunPlan, forked_library


def check_start(plan: RunPlan) -> None:
    """Refuse a start that is not there, before any model is asked; nothing is written."""
    if plan.state is None:
        _starting_library(plan, _library_name(plan))


def open_library(plan: RunPlan) -> libraries.LibraryFolder:
    """The library the run commits to, created for a new or forked run."""
    workspace = plan.workspace
    if plan.state is not None:
        assert plan.state.started is not None
        return workspace.library(plan.state.started.library)
    folder = workspace.library(_library_name(plan))
    start, source = _starting_library(plan, folder.name)
    if not folder.exists():
        folder.create(start, source)
        return folder
    head = folder.head()
    meant = (source or "").partition(" ")[0]  # without its label
    if plan.parent is None and meant == f"{folder.name}@{head.version}":
        return folder  # the run goes on from its newest version
    untouched = head.version == 0 and head.experiences == (start.experiences if start else ())
    if untouched:
        return folder  # a start that was killed before its first event created it
    raise errors.ConflictError(
        f"library {folder.name}",
        f"it exists already, at version {head.version}, which is not what this run starts from.",
        f"Go on from it with library.start={folder.name}@{head.version}, or choose another "
        "library.name.",
    )


def opening_event(
    plan: RunPlan,
    state: RunState,
    folder: libraries.LibraryFolder,
    past: tuple[HistorySegment, ...],
) -> ev.DurableEvent:
    """The first event of this process; `past` is the training restored before the first step."""
    config, tape, settings = plan.loaded.config, plan.loaded.tape, plan.fingerprint
    if played := tape.path.name if tape is not None and tape.plays else state.cassette:
        settings = settings | {"cassette": played}
    if state.started is not None:
        return ev.RunResumed(
            os.getpid(),
            config.practice.epochs,
            plan.reviewer,
            settings,
            steps_per_epoch=plan.sampler.steps_per_epoch,
            prompts=prompts.prompt_hashes(),
        )
    head, adopted = folder.head(), _adopted_state(plan)
    return ev.RunStarted(
        run=plan.run.run,
        exp_id=config.exp_id,
        seed=config.seed,
        epochs=config.practice.epochs,
        steps_per_epoch=plan.sampler.steps_per_epoch,
        group_size=config.rollouts_a_problem,
        library=folder.name,
        library_version=head.version,
        reviewer=plan.reviewer,
        rehearsal=scripted.is_rehearsal(config),
        settings=settings,
        forked_from=plan.parent.run if plan.parent else None,
        forked_steps=plan.adopted_steps,
        notes=head.notes.mark,
        streaks=adopted.streaks if config.practice.sampling == "learnable" else {},
        shown_questions=tuple(sorted(adopted.shown_questions)),
        policy_version=policy_version_after(past),
        prompts=prompts.prompt_hashes(),
    )


def _adopted_state(plan: RunPlan) -> RunState:
    """What the steps that a fork adopts came to; an empty one where the run is none."""
    state = RunState()
    if plan.parent is not None:
        for entry in journal.read_journal(plan.parent.journal):
            fold(state, entry.event)
            if state.steps_finished >= plan.adopted_steps:
                break
    return state


def _library_name(plan: RunPlan) -> str:
    """What the library is called; a fork never commits to its parent's."""
    named = plan.loaded.config.library.name or plan.run.run
    if plan.parent is not None and named == forked_library(plan.parent, plan.adopted_steps)[0]:
        return plan.run.run
    return named


def _starting_library(plan: RunPlan, name: str) -> tuple[Library | None, str | None]:
    """What the run begins with, and where that was copied from."""
    config, workspace = plan.loaded.config, plan.workspace
    if plan.parent is not None:
        source, version, mark = forked_library(plan.parent, plan.adopted_steps)
        start = workspace.library(source).at(version)
        return replace(start, notes=start.notes.as_of(mark)), f"{source}@{version}"
    mounted = mounted_library(config, name)
    if config.library.start == "empty":
        return mounted, None
    if mounted is not None:
        raise errors.ConfigError(
            plan.loaded.place("library.start"),
            "the run starts from a library, and its agent has experiences of its own.",
            "Leave one of them out.",
        )
    folder, read_version = follow_version(config.library.start, workspace)
    start = read_version()
    called = config.library.start.partition("@")[2]
    label = f" ({called})" if called in folder.labels() else ""
    return start, f"{folder.name}@{start.version}{label}"  # what a label meant


def mounted_library(config: RunConfig, name: str) -> Library | None:
    """The experiences of a mounted agent as the library that a run starts from."""
    mounted = config.agent.experiences
    if not mounted:
        return None
    # New ids go on behind the largest one, since an id is never used twice.
    numbers = [int(e.id[1:]) for e in mounted if e.id[:1] == "E" and e.id[1:].isdigit()]
    experiences = tuple(
        Experience(e.id, sanitize.one_line(e.text), pinned=e.pinned) for e in mounted
    )
    return Library(name, 0, experiences, max(numbers, default=0) + 1)


def choose_library(
    loaded: loading.LoadedRun, workspace: Workspace, reference: str | None
) -> tuple[Library | None, str]:
    """The experiences that a reference names, and a label for them.

    A reference is NAME, NAME@V, `none`, or what else `studio diff` takes; without one it is what
    a run of this file would begin with.

    Raises ConflictError: there is no such library or version.
    """
    config = loaded.config
    if reference == "none":
        return None, "none"
    if reference is None and config.library.start != "empty":
        reference = config.library.start
    if reference is not None:
        found = find_version(reference, workspace)
        return found.library, found.label
    mounted = mounted_library(config, config.agent.name)
    return (None, "none") if mounted is None else (mounted, f"agent {config.agent.name}")


def make_publisher(
    loaded: loading.LoadedRun,
    run: RunDir,
    state: RunState,
    folder: libraries.LibraryFolder,
    only: Path | None = None,
) -> Callable[[Library], None]:
    """Writes `agent.yaml`, and beside it the agent that did best on the held-out sets.

    `only` is the one of the two files to write; None: both.
    """
    config, mask = loaded.config, loaded.mask

    def adapter(step: int | None = None) -> str | None:
        """Of what was trained so far, or as it was after a step."""
        # Step 0 was measured before any training, so its weights are the base model's.
        trained = config.trains and state.policy_version and step != 0
        at = "" if step is None else f"@{step}"
        return f"run:{run.run}{at}" if trained else None

    written: dict[Path, Hashable] = {}  # most steps of a long run change nothing

    def write(file: Path, library: Library, trained: str | None, made_by: str) -> None:
        content = (trained, library.name, library.version, library.experiences)
        if written.get(file) != content and only in (None, file):
            body = format_agent_body(agent_description(config, trained), library, mask)
            appender.write_atomic(file, seal.add_seal(format_agent_head(library, made_by) + body))
            written[file] = content

    def publish(library: Library) -> None:
        write(run.agent_file, library, adapter(), run.run)
        if (step := state.best_step) is not None:
            version = next(e.library_version for e in state.evaluations if e.step == step)
            made_by = f"{run.run}, best on the held-out sets"
            write(run.best_agent_file, folder.at(version), adapter(step), made_by)

    return publish


_BROUGHT = (
    *("model", "api_key", "temperature", "top_p", "max_tokens", "timeout_s", "max_retries"),
    *("extra_body", "headers", "price_in_usd_per_mtok", "price_out_usd_per_mtok", "adapter"),
    "price_cached_usd_per_mtok",
)
"""What an agent's model keeps: all that a call of it needs, and what it costs."""


def agent_description(config: RunConfig, adapter: str | None = None) -> dict[str, Any]:
    """What `agent.yaml` holds besides the experiences, `${` in its texts escaped.

    Of a key and of a secret header it holds the reference, `${oc.env:NAME}`; one that was written
    as its value is masked, and asked for where the agent is mounted. No address has a user.
    `adapter` names the weights that the run trained; None: as the run file says.
    """
    model, agent = config.role("policy"), config.agent
    given = model.model_dump(include=set(_BROUGHT), exclude_defaults=True)
    brought = run_yaml.storable_tree(given, ("policy",), config.origins)
    for key, text in tree.walk_texts(brought):
        if not aliases.names_only_variables(text):
            tree.replace_value(brought, key, MASK)  # it names another setting of the run file
    address = {} if model.base_url is None else {"base_url": endpoint_of(model).url}
    usual = {"name", "instructions", "cite", "experiences", "model"}
    acts = agent.model_dump(exclude=usual, exclude_defaults=True)
    if acts:
        acts |= {"kind": agent.kind, "max_turns": agent.max_turns}
    named = ("name", "instructions", "cite", *acts)
    described = run_yaml.storable_tree({**agent.model_dump(include=usual), **acts}, ("agent",), {})
    weights = {} if adapter is None else {"adapter": adapter}
    first = {"model": brought.pop("model"), **address}
    return {**{n: described[n] for n in named}, "model": {**first, **brought, **weights}}
