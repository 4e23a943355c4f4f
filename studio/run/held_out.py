"""Held-out sets of a run file, what their results depend on, and the linter that guards them.

The linter compares operations with problems, outputs of tools, and by an embedding model.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from engines.core.codec import JsonMapping, digest, question_of
from engines.core.errors import ConfigError, DamagedError, DataError, StudioError
from engines.core.library import Library
from engines.core.protocols import Embedder, Linter, Verifier
from engines.core.settings import LEAST_TRIED
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, Flag, Operation, Problem, Tell, Usage, rollout_id
from engines.data.dataset import read_problems
from engines.pipeline import control, worsened
from engines.pipeline.budget import Budget
from engines.pipeline.effect.effect_gate import EffectGate
from engines.pipeline.evaluation.evaluate import Evaluation, HeldOutSet, MeasurementSetup
from engines.pipeline.evaluation.statistics import minimum_detectable_effect
from engines.pipeline.guidance import PromptWriter
from engines.policies.limits import Slots
from engines.record.cassette import Cassette
from engines.record.ledger import RecordLedger, read_trajectory
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import ScoreBook
from engines.training_free.lint import OperationLinter
from engines.verifiers.open import asks_judge, needs_answer
from studio.config.loading import LoadedRun, load_run
from studio.config.run_yaml import ACTING_FIELDS
from studio.config.settings.policy import Role
from studio.config.settings.run import RunConfig
from studio.run import models, new_or_resume

TRIED_PROBLEMS = 40
"""On which an operation is tried that somebody asks about, where `review.gate` says no number."""
_MEASURED_BY = (
    "seed",
    *(f"policy.{name}" for name in ("model", "top_p", "max_tokens", "extra_body")),
    *("agent.instructions", "verifier"),
)


_LEAST_APART = 8
"""Questions of a set of which a quarter can go, so that six are left for a verdict."""


def held_out_sets(loaded: LoadedRun) -> tuple[HeldOutSet, ...]:
    """The held-out sets that a run file names, read."""
    config = loaded.config
    limit = config.evaluation.limit
    found: dict[str, HeldOutSet] = {}
    for named in dict.fromkeys(config.evaluation.data):
        source = loaded.data_path(named, "evaluation.data")
        problems = read_problems(
            source, fields=config.data.fields, needs_answer=needs_answer(config.verifier.spec)
        )
        # Two files of one name in different folders are two sets.
        called = source.stem
        name = called if called not in found else f"{source.path.parent.name}-{called}"
        while name in found:
            name += "-2"
        kept = problems if limit is None else problems[:limit]
        found[name] = HeldOutSet(name, kept, len(problems) - len(kept))
    return tuple(found.values())


def evaluated_sets(loaded: LoadedRun) -> tuple[HeldOutSet, ...]:
    return held_out_sets(loaded) if loaded.config.evaluation.do_eval else ()


def measurement_settings(config: RunConfig, fingerprint: JsonMapping) -> dict[str, Any]:
    """All settings that a held-out result depends on, besides library, problem and try."""
    depends: dict[str, Any] = {name: fingerprint[name] for name in _MEASURED_BY}
    depends["evaluation.temperature"] = config.evaluation.temperature
    if asks_judge(config.verifier.spec):
        depends |= {name: v for name, v in fingerprint.items() if name.startswith("judge.")}
    if config.agent.kind != "single_turn":
        depends |= {name: fingerprint[name] for name in ("agent.kind", "agent.max_turns")}
    if config.agent.kind not in ("single_turn", "calculator"):
        depends |= {name: fingerprint[name] for name in ACTING_FIELDS}
    if config.agent.models:
        depends["agent.models"] = fingerprint["agent.models"]
    return depends


def score_book_opener(
    folder: Path, measured: JsonMapping, loaded: LoadedRun
) -> Callable[[str, str], ScoreBook]:
    """Opens the scores of a library's text in the prompt, and of a digest of weights.

    What is recorded on a cassette must play anywhere: what is known here does not count then.

    They belong to the endpoint as well: two servers may give one model name to different models.
    Within a run the endpoint may move, and its evaluations are still compared.
    """
    config, tape = loaded.config, loaded.tape
    passed_over = None if tape is None or tape.plays else tape.passed_over
    roles: list[Role] = ["policy", "judge"] if asks_judge(config.verifier.spec) else ["policy"]
    asked = {role: config.role(role) for role in roles}
    addresses = {
        f"{role}.base_url": models.endpoint_of(settings).url if settings.base_url else None
        for role, settings in asked.items()
    }

    def open_score_book(guidance: str, weights: str) -> ScoreBook:
        about = {**measured, **addresses, "experiences": guidance}
        if weights:  # else scores from before weights were part of the key would not be found
            about["weights"] = weights
        return ScoreBook(folder, about, loaded.mask, passed_over=passed_over)

    return open_score_book


def measuring_setup(
    config: RunConfig,
    roles: models.Roles,
    ledger: RecordLedger,
    shared: Slots,
    verifier: Verifier,
    *,
    outage: control.Outage,
    wait: Callable[[], Awaitable[None]] | None = None,
    temperature: float | None = None,
) -> MeasurementSetup:
    """How held-out rollouts are made: as in practice, at the evaluation's `temperature`.

    `wait` is awaited before each, so that a paused run rolls out nothing.
    """
    evaluation = config.evaluation
    slots = models.slots_for(evaluation, shared)
    temperature = evaluation.temperature if temperature is None else temperature
    rollouts = models.make_rollouts(
        config, roles, ledger, slots, wait=wait, temperature=temperature
    )
    return MeasurementSetup(rollouts, verifier, config.seed, evaluation.k, outage)


def prompt_writer(config: RunConfig) -> PromptWriter:
    """What writes the experiences into a prompt, in practice and on held-out problems alike."""
    chosen = config.library
    return PromptWriter(config.agent.cite, chosen.select_above, chosen.select_most)


def open_evaluation(
    plan: new_or_resume.RunPlan,
    sets: tuple[HeldOutSet, ...],
    setup: MeasurementSetup,
    writer: PromptWriter,
) -> Evaluation | None:
    """What a run evaluates, and when; None without a held-out set.

    Raises ConfigError: worsened problems are to be read, and too few are there to set some apart.
    """
    if not sets:
        return None
    loaded, evaluation = plan.loaded, plan.loaded.config.evaluation
    if loaded.config.practice.reflect_on_worsened:
        if sets[0].questions < _LEAST_APART:
            cause = f"a quarter of {sets[0].name} is set apart for it, of {_LEAST_APART} questions "
            cause += f"or more; it has {sets[0].questions}."
            place = loaded.place("practice.reflect_on_worsened")
            raise ConfigError(place, cause, "Leave it out, or hold out more.")
        sets = (worsened.set_apart(sets[0], loaded.config.seed), *sets[1:])
    facts = measurement_settings(loaded.config, plan.fingerprint)
    return Evaluation(
        sets=sets,
        measuring=setup,
        folder=plan.run.path / "evals",
        book=score_book_opener(plan.workspace.evaluations, facts, loaded),
        fingerprint=digest(facts),
        account=plan.run.account,
        strategy=evaluation.strategy,
        every_steps=evaluation.every_steps,
        mask=loaded.mask,
        writer=writer,
    )


def tried_pool(
    loaded: LoadedRun, practised: tuple[Problem, ...], sets: Sequence[HeldOutSet]
) -> tuple[Problem, ...]:
    """The problems that operations may be tried on: none of a held-out set, and each once.

    Raises ConfigError: `review.gate` is on, and too few are left.
    """
    config, gate = loaded.config, loaded.config.review.gate
    problems, batch = practised, config.practice.batch_size
    if gate.data is not None:
        path, batch = loaded.data_path(gate.data, "review.gate.data"), 0
        asks = needs_answer(config.verifier.spec)
        problems = read_problems(path, fields=config.data.fields, needs_answer=asks)
    held_out = {question_of(problem.id) for one in sets for problem in one.problems}
    questions = {question_of(problem.id): problem for problem in reversed(problems)}
    pool = tuple(problem for name, problem in questions.items() if name not in held_out)
    # Where one of several lessons is chosen, that takes others than its verdict.
    least = LEAST_TRIED * (2 if config.practice.proposals > 1 else 1)
    if gate.problems is not None and len(pool) - batch < least:
        raise ConfigError(
            loaded.place("review.gate.problems"),
            f"only {max(0, len(pool) - batch)} problems are left to try operations on, without "
            f"those of a batch and of the held-out sets; it takes {least}.",
            "Name a larger set in review.gate.data, or leave review.gate out.",
        )
    return pool


def open_effect_gate(
    plan: new_or_resume.RunPlan,
    pool: tuple[Problem, ...],
    setup: MeasurementSetup | None,
    writer: PromptWriter,
    weights: Callable[[], str] | None,
) -> EffectGate | None:
    """How proposed operations are tried; None where that is not possible in this run."""
    loaded, config = plan.loaded, plan.loaded.config
    gate = config.review.gate
    own = 0 if gate.data is not None else config.practice.batch_size
    practice = config.practice
    if len(pool) - own < LEAST_TRIED or not practice.reflects or not practice.given_ground_truth:
        return None
    temperature = config.practice.temperature
    facts = measurement_settings(config, plan.fingerprint) | {"evaluation.temperature": temperature}
    return EffectGate(
        pool=pool,
        problems=gate.problems or TRIED_PROBLEMS,
        k=gate.k if temperature else 1,
        error=gate.error,
        by_lesson=gate.unit == "lesson",
        by_itself=gate.problems is not None,
        held_back=gate.data is None,
        seed=config.seed,
        measuring=setup,
        book=score_book_opener(plan.workspace.evaluations, facts, loaded),
        account=plan.run.account,
        writer=writer,
        weights=weights,
        measured=digest(facts),
    )


def trial_text(facts: JsonMapping) -> str:
    """What trying operations takes at most and could show, as `EffectGate.describe` has it."""
    n, smallest = facts["operations"], facts["smallest_effect"]
    if not n:
        return "nothing to try: what is asked about was tried already, or does not fit the library"
    more = facts["problems_wanted"] > facts["problems"]
    wanted = f" (of {facts['problems_wanted']} wanted, no more are left)" if more else ""
    price = f", about {facts['tokens']:,} tokens" if facts.get("tokens") else ""
    price += f", ${facts['cost_usd']:.4f}" if facts.get("cost_usd") is not None else ""
    shown = "too few to show any effect"
    if smallest is not None:
        shown = f"would likely show {smallest:.2f} or more, and miss smaller ones"
    return (
        f"{n} {'operation' if n == 1 else 'operations'} on {facts['problems']} problems{wanted}, "
        f"{facts['k']} tries each at most: {facts['most_rollouts']} rollouts or fewer{price}; "
        f"{shown}"
    )


def set_power_lines(sets: tuple[HeldOutSet, ...], k: int) -> list[str]:
    """How large each set is, and which difference it can show at all."""
    lines: list[str] = []
    for held_out in sets:
        effect = detectable_effect(held_out, k)
        power = "  too few to show any difference"
        if effect is not None:
            power = (
                f"  would likely show a difference of {effect:.2f} or more, and miss smaller ones"
            )
        lines += [set_size_line(held_out, k), power]
    return lines


def set_size_line(held_out: HeldOutSet, k: int) -> str:
    """`aime: 30 of 60 problems (28 different), 8 tries each`."""
    n = len(held_out.problems)
    of = f" of {n + held_out.left_out}" if held_out.left_out else ""
    s = "" if n + held_out.left_out == 1 else "s"
    different = "" if held_out.questions == n else f" ({held_out.questions} different)"
    tries = "1 try each" if k == 1 else f"{k} tries each"
    return f"{held_out.name}: {n}{of} problem{s}{different}, {tries}"


def detectable_effect(held_out: HeldOutSet, k: int) -> float | None:
    """The smallest effect that such a set would likely show; None where it shows none."""
    if not held_out.questions:
        return None
    tries = k * len(held_out.problems) // held_out.questions
    effect = minimum_detectable_effect(held_out.questions, tries)
    return effect if effect <= 1 else None


async def open_run_embedder(
    loaded: LoadedRun,
    workspace: Workspace,
    stack: AsyncExitStack,
    budget: Budget | None = None,
    ledger: RecordLedger | None = None,
    cassette: Cassette | None = None,
) -> Embedder | None:
    """The embedding model of a run file, once it has answered; closed with the stack.

    Requests come out of the budget. The ledger records what each has cost, so that a resumed run
    counts it too.
    """
    config = loaded.config
    if (wanted := config.lint.embedding) is None:
        return None

    reserve = models.count_vectors(wanted, budget, ledger)
    embedder = models.open_vectors(config, wanted, workspace.path, reserve, cassette)
    stack.push_async_callback(embedder.aclose)
    await embedder.ping()
    return embedder


def tool_output_reader(state: RunState, records: Path) -> Callable[[str], Sequence[str]]:
    """Reads what tools returned to a rollout of the current step; of earlier ones nothing."""

    def read_outputs(rollout: str) -> Sequence[str]:
        step = state.current
        # A copy: this runs in a thread while rollouts come in.
        for place, done in tuple(step.rollouts.items()) if step else ():
            # A rollout of a single reply called no tool.
            if rollout_id(done.step, *place) == rollout and len(done.refs) > 1:
                try:
                    messages = read_trajectory(records, done.refs)
                except DamagedError:  # a resume reports it; a missing flag stops nothing
                    return ()
                return tuple(m.content for m in messages if m.role == "tool")
        return ()

    return read_outputs


def open_run_linter(
    plan: new_or_resume.RunPlan,
    sets: Sequence[HeldOutSet],
    state: RunState,
    embedder: Embedder | None,
) -> OperationLinter:
    loaded = plan.loaded
    if not sets and not loaded.config.evaluation.do_eval:
        # Also where the run does not evaluate: `studio eval` may do so later.
        with suppress(DataError):
            sets = held_out_sets(loaded)
    return OperationLinter(
        loaded.config.lint,
        practised=plan.problems,
        held_out=[problem for held_out in sets for problem in held_out.problems],
        tool_output=tool_output_reader(state, plan.run.records),
        embedder=embedder,
    )


class LazyLinter:
    """Implements `engines.core.protocols.Linter` from a run's own run file and data.

    It is opened when it is first needed, since most reviews edit nothing. Without the data it
    finds no leaks, without the run file nothing at all; `tell` gets a note of either, once.
    """

    def __init__(self, workspace: Workspace, run: RunDir, tell: Tell) -> None:
        self._workspace, self._run, self._tell = workspace, run, tell
        self._linter: Linter | None = None
        self._tried = False

    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        if not self._tried:
            self._linter, self._tried = self._open(), True
        if self._linter is None:
            return ((),) * len(operations)
        return await self._linter.flags_of(operations, library, others)

    def take_usage(self) -> Usage:
        return NO_USAGE

    def _open(self) -> Linter | None:
        try:
            # Keys may be masked or not set here: no model is asked.
            loaded = load_run(str(self._run.run_file), [], self._workspace.path, keyless=True)
        except StudioError as error:
            self._tell(f"note: nothing is linted, since the run file cannot be read: {error}")
            return None
        config = loaded.config
        practised: tuple[Problem, ...] = ()
        held_out: tuple[Problem, ...] = ()
        try:
            if config.data.practice is not None:
                path = loaded.data_path(config.data.practice)
                practised = read_problems(path, fields=config.data.fields, needs_answer=False)
            held_out = tuple(p for found in held_out_sets(loaded) for p in found.problems)
        except StudioError as error:
            self._tell(f"note: leaks are not looked for as the run did: {error}")
        if config.lint.embedding is not None:
            self._tell("note: edits are compared by their wording; no embedding model is asked")
        return OperationLinter(config.lint, practised=practised, held_out=held_out)
