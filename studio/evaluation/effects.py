"""What single changes are worth: `studio gate`, and `studio library utility`.

The gate tries open operations of a run before anybody decides about them: a living run itself, of
another one the models are opened here, under its lock. Utility is of every experience of a library,
from random halves, or from practice for free. Owns which rollouts are looked at;
`engines.pipeline.effect` says what they tell.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import Any

from engines.core import events, library_notes
from engines.core.codec import question_of, seed_for
from engines.core.errors import ConfigError, ConflictError
from engines.core.frozen import frozen
from engines.core.library import Experience, Library
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, Names, Operation, Problem, Usage
from engines.data.dataset import read_problems
from engines.pipeline.effect.effect_gate import EffectGate, open_trials
from engines.pipeline.effect.worth import Effects, Observation, regress, smallest_effect
from engines.pipeline.evaluation.evaluate import HeldOutSet, MeasurementSetup
from engines.record.derived.run_state import read_history
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import problem_digest
from engines.verifiers.open import needs_answer
from studio import exit_codes, process
from studio.config.loading import LoadedRun, load_run
from studio.evaluation import evaluate
from studio.facts import worth as worth_facts
from studio.facts.library import CurationFacts
from studio.library import curation, references
from studio.render.json import print_json, print_result
from studio.render.lines import tell_next, to_stderr
from studio.render.words import count_text
from studio.render.worth_lines import tried_lines, utility_lines
from studio.run import models, new_or_resume
from studio.run.held_out import (
    LazyLinter,
    evaluated_sets,
    held_out_sets,
    measurement_settings,
    open_effect_gate,
    prompt_writer,
    trial_text,
    tried_pool,
)
from studio.secrets.sanitize import one_line
from studio.session import control_socket, live, offline, requests

POLL_S = 1.0
"""Between two looks at what a living run has tried."""


def gate_run(
    request: new_or_resume.RunRequest,
    run: RunDir,
    names: Sequence[str],
    *,
    dry_run: bool,
    json: bool,
) -> int:
    """Try operations, and print what came of each; returns the exit code."""
    wanted = open_trials(run.state(), tuple(dict.fromkeys(names)))
    if not wanted:
        print_result([], f"run {run.run}: no open operation changes a wording", json=json)
        return exit_codes.DONE
    if control_socket.is_alive(run) and not dry_run:
        if request.source.overrides:
            raise ConflictError(
                "--problems, --k or --data",
                "a process of the run goes on, which tries by the settings it began with.",
                f"Leave it out, or stop the run first: studio ctl stop {quote(run.run)}",
            )
        tried = asyncio.run(_have_tried(run, [op.id for op in wanted]))
        return _print_effects(run, wanted, json=json, paid_before=not tried)
    plan = new_or_resume.plan_run(request, request.load(), practises=False)
    gate = _describe_gate(plan)
    state = run.state()
    assert state.started is not None
    head = plan.workspace.library(state.started.library).head()
    draft = replace(head.commit(state.reviewed_operations).library, version=head.version)
    facts = gate.describe_asked(state, draft, wanted)
    if dry_run:
        print_result(facts, trial_text(facts), json=json)
        return exit_codes.DONE
    to_stderr(trial_text(facts))
    if not facts["operations"]:
        return _print_effects(run, wanted, json=json, paid_before=True)
    early, workspace = evaluate.EarlyEnd(), plan.workspace
    linter = LazyLinter(workspace, run, to_stderr)
    with offline.lock_run(workspace, run, linter, holder="`studio gate`") as locked:
        locked.gate.recorder.listen(_tell_trials(locked.state))
        try:
            locked.runner.run(_try_offline(plan, locked, [op.id for op in wanted], early))
        except asyncio.CancelledError:
            to_stderr(f"{early.reason}; the tries are kept, and the same command goes on")
    code = _print_effects(run, wanted, json=json)
    return early.exit_code if early.ended else code


async def _have_tried(run: RunDir, names: Sequence[str]) -> bool:
    """Ask the run's process, and wait until it has tried them; False: it had a verdict on each."""
    session = live.LiveSession(run, "studio gate", as_screen=False)
    listening = asyncio.create_task(_drain(session))
    try:
        facts = await session.send(requests.TryOperations(tuple(names)))
        to_stderr(trial_text(facts))
        status: dict[str, Any] = {"trying": True}
        while control_socket.is_alive(run) and status.get("trying"):
            status = await session.status()
            await asyncio.sleep(POLL_S if status.get("trying") else 0)
    finally:
        await session.close()
        await listening
    if failure := status.get("trial_failure"):
        raise ConflictError(
            f"run {run.run}",
            f"operations could not be tried: {failure}.",
            "Mend it, and give the command again: what was tried is kept.",
        )
    if not control_socket.is_alive(run) and not all(map(run.state().effect_of, names)):
        raise ConflictError(
            f"run {run.run}",
            "its process ended before all was tried.",
            "Give the command again: what was tried is kept.",
        )
    return bool(facts["operations"])


async def _drain(session: live.LiveSession) -> None:
    async for _ in session.messages():
        pass


def _describe_gate(plan: new_or_resume.RunPlan) -> EffectGate:
    """What would be tried on what, with nothing opened."""
    gate = _open_gate(plan, None)
    if gate is None or plan.loaded.config.trains:  # its weights are with the run's process
        raise requests.no_trials_error(plan.run.run)
    return gate


def _open_gate(plan: new_or_resume.RunPlan, setup: MeasurementSetup | None) -> EffectGate | None:
    config = plan.loaded.config
    pool = tried_pool(plan.loaded, plan.problems, evaluated_sets(plan.loaded))
    return open_effect_gate(
        plan, pool, setup, prompt_writer(config), lambda: models.weights_digest(config.policy)
    )


async def _try_offline(
    plan: new_or_resume.RunPlan,
    locked: offline.LockedRun,
    names: Sequence[str],
    early: evaluate.EarlyEnd,
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(early.cancel_on_signal())
        loaded = plan.loaded
        setup, _, _ = await evaluate.open_measuring(
            loaded,
            plan.workspace,
            plan.run.records,
            stack,
            to_stderr,
            early,
            judged=(plan.problems,),
            temperature=loaded.config.practice.temperature,
        )
        gate = _open_gate(plan, setup)
        assert gate is not None
        base = replace(locked.gate.draft(), version=locked.gate.library.version)
        await gate.try_asked(locked.gate.recorder, base, open_trials(locked.state, names))


def _tell_trials(state: RunState) -> Callable[[object], None]:
    """Return a listener that tells how far the tries are, and each verdict."""
    last_stage: events.StageEntered | None = None
    told = len(state.effects)

    def tell(_: object) -> None:
        nonlocal last_stage, told
        stage = state.live.stage
        if stage is not None and stage is not last_stage and stage.stage == "gate":
            last_stage = stage
            if stage.detail["made"]:
                to_stderr(f"  {stage.detail['made']} of at most {stage.detail['most']} tries")
        for measured in state.effects[told:]:
            to_stderr(f"{', '.join(measured.operations)}: {measured.effect.verdict}")
        told = len(state.effects)

    return tell


def _print_effects(
    run: RunDir, wanted: Sequence[Operation], *, json: bool, paid_before: bool = False
) -> int:
    state = run.state()
    operations = [worth_facts.tried_operation(state, op) for op in wanted]
    lines = tried_lines(operations, known_before=paid_before)
    print_result(operations, "\n".join(lines), json=json)
    if not json:
        tell_next(f"studio review {quote(run.run)}", run.path.parents[1])
    return exit_codes.DONE


ROLLOUTS = 1024
"""That are made unless another number is given: effects of 9 points show among 20."""
MARGIN = 0.05
"""An experience that surely gains less than this is offered to be deleted."""


@frozen
class Priced:
    """A library whose experiences are to be priced, and the run that it belongs to."""

    label: str
    library: Library  # with the additions that wait, as if they were entries
    pending: Names  # those additions
    run: RunDir | None  # the newest that used it; None: there is none

    @property
    def names(self) -> Names:
        return tuple(e.id for e in self.library.experiences)


@frozen
class Utility:
    """What was found, and what was paid for it by this command."""

    priced: Priced
    effects: Effects
    paid: Usage = NO_USAGE
    unjudged: int = 0

    @property
    def dispensable(self) -> dict[str, library_notes.Effect]:
        """What surely gains less than `MARGIN`, or hurts; a pinned experience is never offered."""
        kept = {*self.priced.library.pinned_ids, *self.priced.pending}
        found = self.effects.single.items()
        return {n: e for n, e in found if n not in kept and e.high <= MARGIN}


def find_priced(reference: str, workspace: Workspace) -> Priced:
    """Raises ConflictError: there is no such library, or it is empty."""
    found = references.find_version(reference, workspace)
    library, states = found.library, ((run, run.state()) for run in reversed(workspace.runs()))
    used = ((r, s) for r, s in states if s.started and s.started.library == library.name)
    run, state = next(used, (None, RunState()))
    is_head = run is not None and workspace.library(library.name).head() == library
    waiting = state.open_operations if is_head else ()
    pending = tuple(op for op in waiting if op.kind == "add" and not library.objection(op))
    added = tuple(Experience(op.id, op.text) for op in pending)
    library = replace(library, experiences=(*library.experiences, *added))
    if not library.experiences:
        raise ConflictError(f"library {reference}", "it holds no experience.", "Practise first.")
    return Priced(found.label, library, tuple(op.id for op in pending), run)


def plan_utility(
    priced: Priced,
    workspace: Workspace,
    *,
    run: str | None,
    problems: str | None,
    rollouts: int,
    k: int | None,
    keyless: bool,
) -> tuple[evaluate.EvalPlan, tuple[Problem, ...]]:
    """The tries to make, each with a random half of the library, and all problems to choose from.

    `run` is a run, a run file or a preset, whose settings hold; None: the run of the library.
    Tries go to all problems alike, `k` each, or to as many as `rollouts` are enough for.

    Raises ConfigError: nothing says how to try, or no problem is left that is not held out.
    """
    if run is None and priced.run is None:
        raise ConfigError(
            "--run",
            f"no run of this workspace used library {priced.library.name}.",
            "Name a run file or preset: --run rehearsal.",
        )
    maker = priced.run if run is None else RunDir(workspace.runs_folder / run)
    named = str(maker.run_file) if maker and maker.run_file.is_file() else run or ""
    loaded = load_run(named, [], workspace.path, keyless=keyless)
    source, kept, left_out = _read_problems(loaded, problems)
    if k is None:
        k = max(2, 2 * round(rollouts / len(kept) / 2))
    config = loaded.config
    # Any part of a file may be of one kind; the same problems come first whatever their number.
    kept = sorted(kept, key=lambda problem: seed_for(config.seed, "utility", problem.id))
    chosen = HeldOutSet(source, tuple(kept[: max(1, rollouts // k)]), left_out)
    loaded = _with_evaluation(loaded, k=k)
    label = f"{priced.label}, a random half in each try"
    subject = evaluate.Subject(label, priced.library, prompt_writer(config), halves=config.seed)
    facts = measurement_settings(config, models.fingerprint_of(loaded, workspace))
    weights = models.weights_digest(config.policy)
    plan = evaluate.EvalPlan(loaded, workspace, (chosen,), (subject,), facts, weights=weights)
    return plan, tuple(kept)


def _with_evaluation(loaded: LoadedRun, **more: int | None) -> LoadedRun:
    evaluation = loaded.config.evaluation.model_copy(update=more)
    return replace(loaded, config=loaded.config.model_copy(update={"evaluation": evaluation}))


def _read_problems(loaded: LoadedRun, named: str | None) -> tuple[str, list[Problem], int]:
    """The set's name, its problems that are not held out, and how many are."""
    config, place = loaded.config, "--problems"
    if (name := named or config.data.practice) is None:
        raise ConfigError(loaded.place("data.practice"), "no data set is named.", f"Give {place}.")
    path, truths = loaded.data_path(name), needs_answer(config.verifier.spec)
    found = read_problems(path, fields=config.data.fields, needs_answer=truths)
    sets = held_out_sets(_with_evaluation(loaded, limit=None))
    held_out = {question_of(problem.id) for one in sets for problem in one.problems}
    kept = [problem for problem in found if question_of(problem.id) not in held_out]
    if not kept:
        raise ConfigError(
            place,
            f"every problem of {name} is held out by the run file.",
            "Name other problems: those would be held out no longer.",
        )
    return path.stem, kept, len(found) - len(kept)


def read_utility(
    priced: Priced,
    plan: evaluate.EvalPlan,
    pool: Sequence[Problem],
    found: evaluate.EvaluationResult,
) -> Utility:
    """What all tries tell that were ever made so, whichever of them a plan asked for.

    Else one could ask for other numbers of them until one says what was hoped for.
    """
    (subject,), (book,) = plan.subjects, plan.score_books().values()
    known, spent = book.by_problem(), NO_USAGE
    tries = []
    for problem in pool:
        question = question_of(problem.id)
        for score in known.get(problem_digest(problem), ()):
            shown = subject.write(problem, score.index)[1]
            kept = priced.names if shown is None else shown
            tries.append(Observation(question, question, frozenset(kept), score.reward))
            spent += score.usage
    effects = regress(tries, priced.names, "inclusion")
    single = {n: replace(e, usage=spent) for n, e in effects.single.items()}
    ((_, measured),) = found.sets[0].results
    return Utility(priced, replace(effects, single=single), found.paid, measured.unjudged_count)


def read_practice(priced: Priced, workspace: Workspace) -> Utility | None:
    """What practice with dropout tells of wordings that still stand; None without any.

    Tries are compared that had the same problem, run, library version and weights.
    """
    texts = {e.id: e.text for e in priced.library.experiences}
    folder, tries = workspace.library(priced.library.name), list[Observation]()
    for run in workspace.runs() if folder.exists() else ():
        history = read_history(run.journal)
        if history.started is None or history.started.library != folder.name:
            continue
        for step in history.steps.values():
            if step.started is None:
                continue
            versions = step.started.library_version, step.started.policy_version
            here = {e.id: e.text for e in folder.at(versions[0]).experiences}
            for (position, _), one in step.rollouts.items():
                if one.reward is not None:
                    question = question_of(step.problems[position])
                    shown = here if one.finished.shown is None else one.finished.shown
                    same = frozenset(n for n in shown if here.get(n) == texts.get(n, ""))
                    unit = (run.run, question, *versions)
                    tries.append(Observation(question, unit, same, one.reward))
    effects = regress(tries, priced.names, "practice")
    return Utility(priced, effects) if effects.single else None


def offer_deletes(found: Utility, workspace: Workspace) -> CurationFacts:
    """Ask whether what is dispensable may go, in a run of its own that waits for a reviewer.

    Raises ConflictError: the workspace has no such library.
    """
    head, operations = workspace.library(found.priced.library.name).head(), list[Operation]()
    now = {e.id: e.text for e in head.experiences}
    texts = {e.id: e.text for e in found.priced.library.experiences}
    for name, effect in found.dispensable.items():
        what = "it hurts" if effect.verdict == "hurts" else f"it gains less than {MARGIN:g}"
        why = f"{what}: reward {effect.worth}"
        if effect.verdict == "hurts":  # the bound is of being worth anything, not of so little
            why += f"; false discoveries at most {effect.false_discovery or 0.0:.1%}"
        if now.get(name) == texts[name]:
            operations.append(Operation("", "delete", name, rationale=why))
    about = f"offer of {found.priced.label}"
    linter_of = partial(LazyLinter, workspace, tell=to_stderr)
    return curation.open_curation(
        workspace, head, operations, about, person=process.login_name(), linter_of=linter_of
    )


def measure_utility(
    priced: Priced, plan: evaluate.EvalPlan, pool: Sequence[Problem], *, json: bool, dry_run: bool
) -> Utility | int:
    """Make the tries and read them, or tell what they would cost; an exit code where that is all.

    Raises ConfigError: a budget cannot be kept.
    """
    power = power_lines(priced, plan)
    if dry_run:
        return evaluate.print_eval_dry_run(plan, json=json, power=power)
    evaluate.tell_eval_notes(plan)
    for line in power:
        to_stderr(line)
    missing, early = plan.count_missing(), evaluate.EarlyEnd()
    if missing:
        tokens = evaluate.estimate_missing(plan).tokens
        to_stderr(f"likely {tokens.likely:,.0f} tokens, {tokens.at_most:,.0f} at most")
    found = evaluate.measure_or_end(plan, early, missing, "rollouts")
    if found is None:
        if json:
            print_json({"kind": "Utility", "ended": early.cause, "reason": early.reason})
        return early.exit_code
    return read_utility(priced, plan, pool, found)


def power_lines(priced: Priced, plan: evaluate.EvalPlan) -> list[str]:
    """How many tries of what, and which effect they can show."""
    held = plan.sets[0]
    n, total = len(held.problems), len(held.problems) * plan.k
    least = smallest_effect(total, held.questions, len(priced.names))
    shows = f"would likely show an effect of {least:.2f} or more, and miss smaller ones"
    left = f"; {held.left_out} that are held out are left out" if held.left_out else ""
    waiting = f", {len(priced.pending)} of them wait for review" if priced.pending else ""
    return [
        f"{count_text(len(priced.names), 'experience')}{waiting}",
        one_line(f"{held.name}: {count_text(n, 'problem')}, {plan.k} tries each{left}", 400),
        f"  {shows if least <= 1 else 'too few to show any effect'}",
    ]


def print_utility(found: Utility, workspace: Workspace, *, offer: bool, json: bool) -> int:
    """Keep what was found, offer what can go where that is asked, print all; the exit code."""
    opened = offer_deletes(found, workspace) if offer and found.dispensable else None
    library, folder = found.priced.library, workspace.library(found.priced.library.name)
    facts = worth_facts.UtilityFacts(
        library=library.name,
        version=library.version,
        label=found.priced.label,
        texts={entry.id: entry.text for entry in library.experiences},
        pending=found.priced.pending,
        effects=found.effects,
        dispensable=tuple(found.dispensable),
        margin=MARGIN,
        offered=tuple(op.target or "" for op in opened.operations) if opened else (),
        offered_in=(opened.run or "") if opened else "",
        unjudged=found.unjudged,
        paid=found.paid,
    )
    kept = folder.exists()
    if kept:
        with folder.lock_for_commit() as locked:
            locked.measure(library, found.effects.single)
    lines = utility_lines(facts, kept=kept, offer=offer)
    print_result(facts, "\n".join(lines), json=json)
    if not json and facts.offered_in:
        tell_next(f"studio review {quote(facts.offered_in)}", workspace.path)
    return exit_codes.WITH_LOSSES if found.unjudged else exit_codes.DONE
