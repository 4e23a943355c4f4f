"""Held-out sets of a run file, and what their results depend on: the same in `studio eval`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.core.codec import digest, question_of
from engines.core.errors import ConfigError
from engines.core.protocols import Ledger, Verifier
from engines.core.settings import LEAST_TRIED
from engines.core.types import Problem
from engines.data.dataset import read_problems
from engines.pipeline.control import Outage
from engines.pipeline.effect.effect_gate import EffectGate, choice_size
from engines.pipeline.evaluation.evaluate import Evaluation, HeldOutSet, MeasurementSetup
from engines.pipeline.evaluation.statistics import minimum_detectable_effect
from engines.pipeline.guidance import PromptWriter
from engines.pipeline.worsened import set_apart
from engines.policies.limits import Slots
from engines.record.scores import ScoreBook
from engines.verifiers.open import asks_judge, needs_answer
from studio.config.loading import LoadedRun
from studio.config.run_yaml import ACTING_FIELDS
from studio.config.settings.policy import Role
from studio.config.settings.run import RunConfig
from studio.run.models import Roles, endpoint_of, make_rollouts, slots_for
from studio.run.new_or_resume import RunPlan

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


def measurement_settings(config: RunConfig, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
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
    folder: Path, measured: Mapping[str, Any], loaded: LoadedRun
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
        f"{role}.base_url": endpoint_of(settings).url if settings.base_url else None
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
    roles: Roles,
    ledger: Ledger,
    shared: Slots,
    verifier: Verifier,
    *,
    outage: Outage,
    wait: Callable[[], Awaitable[None]] | None = None,
    temperature: float | None = None,
) -> MeasurementSetup:
    """How held-out rollouts are made: as in practice, at the evaluation's `temperature`.

    `wait` is awaited before each, so that a paused run rolls out nothing.
    """
    evaluation = config.evaluation
    slots = slots_for(evaluation, shared)
    temperature = evaluation.temperature if temperature is None else temperature
    rollouts = make_rollouts(config, roles, ledger, slots, wait=wait, temperature=temperature)
    return MeasurementSetup(rollouts, verifier, config.seed, evaluation.k, outage)


def prompt_writer(config: RunConfig) -> PromptWriter:
    """What writes the experiences into a prompt, in practice and on held-out problems alike."""
    chosen = config.library
    return PromptWriter(config.agent.cite, chosen.select_above, chosen.select_most)


def open_evaluation(
    plan: RunPlan, sets: tuple[HeldOutSet, ...], setup: MeasurementSetup, writer: PromptWriter
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
        sets = (set_apart(sets[0], loaded.config.seed), *sets[1:])
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
    plan: RunPlan,
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


def trial_text(facts: Mapping[str, Any]) -> str:
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


def choice_text(gate: EffectGate, lessons: int, problems: int) -> str:
    """What choosing one of several lessons takes at most."""
    k = choice_size(gate.problems, gate.k, 0)[1]
    each = "1 try" if k == 1 else f"{k} tries"
    return (
        f"the best of {lessons} lessons of each batch, on {problems} problems apart from its "
        f"verdict's, {each} each: {problems * k * (lessons + 1)} rollouts or fewer a step"
    )


def set_power_lines(sets: tuple[HeldOutSet, ...], k: int) -> list[str]:
    """How large each set is, and which difference it can show at all."""
    lines = (set_size_line, detectable_effect_line)
    return [line(held_out, k) for held_out in sets for line in lines]


def set_size_line(held_out: HeldOutSet, k: int) -> str:
    """`aime: 30 of 60 problems (28 different), 8 tries each`."""
    n = len(held_out.problems)
    of = f" of {n + held_out.left_out}" if held_out.left_out else ""
    s = "" if n + held_out.left_out == 1 else "s"
    different = "" if held_out.questions == n else f" ({held_out.questions} different)"
    tries = "1 try each" if k == 1 else f"{k} tries each"
    return f"{held_out.name}: {n}{of} problem{s}{different}, {tries}"


def detectable_effect_line(held_out: HeldOutSet, k: int) -> str:
    effect = detectable_effect(held_out, k)
    if effect is None:
        return "  too few to show any difference"
    return f"  would likely show a difference of {effect:.2f} or more, and miss smaller ones"


def detectable_effect(held_out: HeldOutSet, k: int) -> float | None:
    """The smallest effect that such a set would likely show; None where it shows none."""
    if not held_out.questions:
        return None
    tries = k * len(held_out.problems) // held_out.questions
    effect = minimum_detectable_effect(held_out.questions, tries)
    return effect if effect <= 1 else None
