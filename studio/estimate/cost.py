"""What a run would cost, computed before anything is asked: calls, tokens and money by stage.

"At most" means: every group has contrast, every reply is as long as its limit and has to be
repaired, every verdict that can ask a judge does. Retries of failed calls are not counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import orjson

from engines.core import codec, errors, settings
from engines.core.library import Library
from engines.core.text.prompts import load_prompt
from engines.core.types import Problem
from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from engines.pipeline.effect.effect_gate import choice_size
from engines.record import lines, scores
from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.config.scripted import rehearsal_note
from studio.config.settings.policy import Role
from studio.config.settings.run import PracticeConfig, RunConfig
from studio.facts.estimate import Estimate, Range, Stage
from studio.render import estimate_lines
from studio.render.json import json_data, print_result
from studio.render.lines import tell_next, to_stderr
from studio.run import assemble, models
from studio.run.held_out import evaluated_sets, prompt_writer
from studio.run.library import choose_library
from studio.run.new_or_resume import RunPlan, forked_library

ROLES: tuple[Role, ...] = ("policy", "reflector", "judge")


class StageKind(NamedTuple):
    """The role that a stage asks, and the purpose by which records know how long it replies."""

    role: Role
    purpose: str


_STAGES = {
    "rollouts": StageKind("policy", "rollout"),
    "judging": StageKind("judge", "judge"),
    "summaries": StageKind("reflector", "summary"),
    "extraction": StageKind("reflector", "extraction"),
    "consolidation": StageKind("reflector", "consolidation"),
    "gate": StageKind("policy", "rollout"),
    "evaluation": StageKind("policy", "evaluation"),
}
_REPAIRED = ("judging", "extraction", "consolidation")
"""Stages whose replies have a form, so that one that lacks it is asked for once more."""
BYTES_A_TOKEN = 4.0
TOKENS_AT_MOST = 4 / 3
"""How many times the likely tokens the same text may have: a budget reserves by 3 bytes a token."""
HEADING_TOKENS = 16
"""Of what stands round a request, an attempt or a proposal."""
REPAIR_TOKENS = 80
"""Of the message that says what was wrong with a reply."""
EXPERIENCE_TOKENS = Range(40, 120)
"""Of one experience: the prompts want one sentence."""
SHOWN = Range(2.5, 4)
"""Rollouts of a group that the reflector reads, of those with known rewards: of each side two with
different answers, and the better ones mostly agree."""
TOOL_RESULT = Range(50, 500)
"""Tokens of what a tool returns."""
GROWTH = 2.0
"""Experiences that a step adds, likely."""
READ_AT_MOST = 4000
"""Records of an earlier run that lengths are taken from: more hardly change a mean."""
ASSUMED = {
    "rollout": 400.0,
    "judge": 120.0,
    "summary": 200.0,
    "extraction": 150.0,
    "consolidation": 300.0,
}
"""Tokens of a reply where no run of the model was measured: short chains of thought."""
_PROGRAM_CALLS = 10
"""Of one rollout at most, where a program decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInput:
    """The input of the arithmetic. Lengths are tokens."""

    sampler: Sampler
    practice: PracticeConfig
    group_size: int
    terms: Mapping[Role, CallPricing]
    replies: Mapping[str, float]  # likely length of a reply, by purpose
    prompts: Mapping[str, float]  # of the prompt without what is put into it, by purpose
    question: float  # mean of the problems'
    truth: float
    judged: Range  # calls of judges a verdict takes
    turns: Range  # replies of a rollout
    contrast: float | None = None  # share of groups with contrast, measured; None: assumed
    guidance: float = 0.0  # of the library as it stands
    experiences: int = 0
    growth: float = GROWTH  # experiences a step adds
    steps_done: int = 0
    held_out: int = 0  # rollouts of one evaluation
    held_out_question: float = 0.0
    evaluated_first: bool = True  # the evaluation before the first step is due
    evaluated_every: int | None = None  # steps; None: after each epoch
    tried: int = 0  # rollouts of an operation before it is decided, at most; 0: it is not tried
    choice: int = 0  # rollouts of each of several lessons, to choose one
    replayed: bool = False  # rollouts come from a log and cost nothing
    most: bool = False  # computed is the most that may come, not the likely

    @property
    def contrast_share(self) -> float:
        """The share of groups that show a difference.

        Where nothing was measured, the chance to solve a problem is assumed to be uniform from 0
        to 1, so all G rollouts agree in 2 of G + 1 cases.
        """
        if not self.practice.given_ground_truth:
            return 1.0
        if self.contrast is not None:
            return self.contrast
        return (self.group_size - 1) / (self.group_size + 1)

    def pick(self, of: Range) -> float:
        return of.pick(self.most)

    def reply_tokens(self, stage: str) -> float:
        kind = _STAGES[stage]
        longest = self.terms[kind.role].reply_tokens()
        return longest if self.most else min(self.replies[kind.purpose], longest)

    def library_tokens(self, lessons: int) -> float:
        """Return the tokens of the library in a prompt.

        As it is half way through so many lessons, or at their end where the most is asked for.
        """
        added = self.sampler.batch_size * float(self.practice.experiences_per_query)
        if not self.most:
            added = min(self.growth, added) / 2
        added *= lessons
        if self.practice.library_limit is not None:
            added = min(added, max(0, self.practice.library_limit - self.experiences))
        return self.guidance + added * self.pick(EXPERIENCE_TOKENS)


class _Calls(NamedTuple):
    """Calls of one stage that each have this prompt."""

    stage: str
    n: float
    prompt: float


_CallsOf = Callable[[CostInput], Iterator[_Calls]]


def estimate(facts: CostInput) -> Estimate:
    return _add_stages(facts, _run_calls)


def _add_stages(facts: CostInput, calls_of: _CallsOf) -> Estimate:
    most = replace(facts, most=True)
    likely_sums = _sum_by_stage(facts, calls_of(facts))
    most_sums = _sum_by_stage(most, calls_of(most))
    stages = []
    for name, kind in _STAGES.items():
        calls, sent, received = map(Range, likely_sums[name], most_sums[name])
        if not calls.at_most:
            continue
        cost, price = None, facts.terms[kind.role]
        if price.has_price:
            cost = Range(
                price.cost_usd(int(sent.likely), int(received.likely)),
                price.cost_usd(int(sent.at_most), int(received.at_most)),
            )
        stages.append(Stage(name, calls, sent, received, cost))
    return Estimate(tuple(stages))


def _sum_by_stage(facts: CostInput, every: Iterator[_Calls]) -> dict[str, list[int]]:
    """Return calls, prompt tokens and reply tokens of each stage.

    Whole numbers, so that shown stages add up to their sum; what is above 0 is 1 or more.
    """
    sums = {stage: [0.0, 0.0, 0.0] for stage in _STAGES}
    for stage, n, prompt in every:
        reply = facts.reply_tokens(stage)
        if facts.most:
            if stage in _REPAIRED:
                n *= 2
                prompt += (reply + REPAIR_TOKENS) / 2
            prompt *= TOKENS_AT_MOST
        amounts = sums[stage]
        amounts[0] += n
        amounts[1] += n * prompt
        amounts[2] += n * reply
    return {stage: [round(max(n, n > 0)) for n in amounts] for stage, amounts in sums.items()}


def _run_calls(facts: CostInput) -> Iterator[_Calls]:
    sampler, practice = facts.sampler, facts.practice
    done, total = facts.steps_done, sampler.total_steps
    lessons = practice.library_steps(total) - practice.library_steps(done)
    if total > done:
        yield from _practice_calls(facts, total - done, lessons)
    if facts.held_out:
        every = facts.evaluated_every or sampler.steps_per_epoch
        first = int(facts.evaluated_first)  # a fork begins with one too
        evaluations = first + total // every - done // every
        if practice.algorithm == "both":  # two of four cells are new
            evaluations += 2
        guidance = facts.library_tokens(lessons)
        yield from _evaluation_calls(facts, evaluations * facts.held_out, guidance)


def _practice_calls(facts: CostInput, steps: int, lessons: int) -> Iterator[_Calls]:
    """The practice of so many steps, `lessons` of which draw lessons."""
    sampler, practice, size, most = facts.sampler, facts.practice, facts.group_size, facts.most
    epochs, in_epoch = divmod(facts.steps_done, sampler.steps_per_epoch)
    problems = sampler.problems_per_epoch * (sampler.epochs - epochs)
    problems -= in_epoch * sampler.batch_size
    library = facts.library_tokens(lessons)
    rollout = facts.reply_tokens("rollouts")
    asked = facts.prompts["rollout"] + facts.question + library
    for calls in _rollout_calls(facts, "rollouts", problems * size, asked):
        if not (facts.replayed and calls.stage == "rollouts"):
            yield calls
    if not lessons or size < 2:
        return  # no reflector is asked, or there is no other rollout to compare one with

    batch, share = problems / steps, facts.contrast_share
    # Of the groups without contrast half are taken to be all wrong.
    unlike = min(practice.read_without_contrast, batch * (1 - share) / 2)
    read = batch if most else batch * share + unlike
    # Without a truth all that is known is how often an answer was said, so all are shown.
    shown = min(size, facts.pick(SHOWN)) if practice.given_ground_truth else size
    budget = practice.read_chars / BYTES_A_TOKEN
    is_long = rollout * shown > budget
    attempt = min(rollout, budget)
    if most or (is_long and rollout > practice.summarise_above_chars / BYTES_A_TOKEN):
        prompt = facts.prompts["summary"] + facts.question + rollout
        yield _Calls("summaries", lessons * read * shown, prompt)
        if not most:
            attempt = facts.reply_tokens("summaries")

    prompt = facts.prompts["extraction"] + facts.question + facts.truth + library
    prompt += attempt * shown + HEADING_TOKENS * size
    drafts = lessons * practice.proposals
    yield _Calls("extraction", read * drafts, prompt)

    # A step consolidates, if any of its groups shows a difference, in as many calls as it takes.
    asks = 1.0 if most else 1 - (1 - share) ** batch
    lessons_read = practice.experiences_per_query * read
    calls_a_step = max(1, math.ceil(lessons_read / practice.proposals_per_call))
    sent = (facts.reply_tokens("extraction") + HEADING_TOKENS) * lessons_read / calls_a_step
    prompt = facts.prompts["consolidation"] + sent + library
    yield _Calls("consolidation", asks * calls_a_step * drafts, prompt)

    if facts.tried:  # on average half of the rollouts tell; the library without any is tried once
        proposed = batch * practice.experiences_per_query
        wordings = proposed if most else min(facts.growth, proposed) / 2
        tries = facts.tried * (1 + wordings)
        if practice.proposals > 1:
            tries += facts.choice * (practice.proposals + 1)
        yield from _rollout_calls(facts, "gate", lessons * tries, asked)


def _evaluation_calls(facts: CostInput, rollouts: int, guidance: float) -> Iterator[_Calls]:
    asked = facts.prompts["rollout"] + facts.held_out_question + guidance
    return _rollout_calls(facts, "evaluation", max(0, rollouts), asked)


def _rollout_calls(facts: CostInput, stage: str, rollouts: float, asked: float) -> Iterator[_Calls]:
    """Rollouts of one or more turns, and what judges them.

    Each later prompt of a rollout holds the replies and results before it.
    """
    turns, reply = facts.pick(facts.turns), facts.reply_tokens(stage)
    before = (reply + facts.pick(TOOL_RESULT)) * (turns - 1) / 2
    yield _Calls(stage, rollouts * turns, asked + before)
    prompt = facts.prompts["judge"] + facts.question + facts.truth + reply
    yield _Calls("judging", rollouts * facts.pick(facts.judged), prompt)


@dataclass(slots=True)
class MeasuredUsage:
    """What the records of one run add up to. Lengths are tokens."""

    run: str = ""
    n: Counter[str] = field(default_factory=Counter)
    reply: Counter[str] = field(default_factory=Counter)
    contrast: float | None = None  # share of groups that had it
    turns: float | None = None  # of a rollout, on average
    growth: float | None = None  # experiences a step added


def estimate_run(plan: RunPlan) -> Estimate:
    """Estimate what is left of a planned run. Raises StudioError as it reads."""
    config = plan.loaded.config
    measured = _measure_earlier_run(plan.workspace, plan.fingerprint, ("policy", "reflector"))
    facts = _prompt_facts(config, plan.problems, plan.sampler, measured)
    library = _next_library(plan)
    facts = replace(
        facts,
        experiences=len(library.experiences) if library is not None else 0,
        guidance=_tokens(prompt_writer(config).write(library, "")[0]),
        contrast=measured.contrast,
        growth=GROWTH if measured.growth is None else measured.growth,
        steps_done=plan.state.steps_finished if plan.state else plan.adopted_steps,
    )
    result = estimate(_with_evaluation(facts, plan))
    notes = _length_notes(facts, measured, result)
    if facts.practice.reflects:
        if facts.practice.given_ground_truth and facts.contrast is None:
            share = facts.contrast_share
            notes.append(f"assumed: {share:.0%} of groups of {facts.group_size} show a difference")
        if measured.growth is None:
            notes.append(f"assumed: a step adds {GROWTH:g} experiences")
    return replace(result, notes=tuple(notes))


def estimate_eval(
    config: RunConfig,
    workspace: Workspace,
    fingerprint: codec.JsonMapping,
    problems: tuple[Problem, ...],
    missing: Sequence[tuple[str, int]],
) -> Estimate:
    """Estimate an evaluation alone: rollouts of held-out `problems` and what judges them.

    `missing` are the rollouts to make with each guidance.
    """
    measured = _measure_earlier_run(workspace, fingerprint, ("policy",))
    sampler = Sampler(max(1, len(problems)), 1, 1, config.seed)
    facts = _prompt_facts(config, problems, sampler, measured)

    def calls_of(facts: CostInput) -> Iterator[_Calls]:
        for guidance, rollouts in missing:
            yield from _evaluation_calls(facts, rollouts, _tokens(guidance))

    result = _add_stages(replace(facts, held_out_question=facts.question), calls_of)
    return replace(result, notes=tuple(_length_notes(facts, measured, result)))


def _prompt_facts(
    config: RunConfig, problems: tuple[Problem, ...], sampler: Sampler, measured: MeasuredUsage
) -> CostInput:
    """What the run file says, with the lengths of its prompts and of measured replies."""
    practice = config.practice

    def length(package: str, *names: str) -> float:
        bodies = (load_prompt(f"engines.{package}", name).body for name in names)
        return _tokens(*bodies) + HEADING_TOKENS

    objectives = _tokens(practice.agent_objective, practice.learning_objective)
    replies = ASSUMED | {name: measured.reply[name] / n for name, n in measured.n.items()}
    replies.setdefault("evaluation", replies["rollout"])
    gate = config.review.gate
    left = len(problems) - practice.batch_size if gate.data is None else settings.MAX_COUNT
    return CostInput(
        sampler=sampler,
        group_size=config.rollouts_a_problem,
        terms={role: models.terms_of(config.role(role)) for role in ROLES},
        replies=replies,
        prompts={
            "rollout": _tokens(config.agent.instructions) + HEADING_TOKENS,
            "judge": length("verifiers", "judge", "form_binary"),
            "summary": length("training_free", "summarise"),
            # With its longer question: which of the two a group gets is not known before.
            "extraction": length("training_free", "extract", "critique") + objectives,
            "consolidation": length("training_free", "consolidate") + objectives,
        },
        question=_question_tokens(problems),
        truth=_tokens(*(p.answer or "" for p in problems)) / max(1, len(problems)),
        judged=judge_questions(config.verifier.spec),
        turns=_turns(config, measured),
        practice=practice,
        tried=(gate.problems or 0) * gate.k,
        choice=math.prod(choice_size(gate.problems or 0, gate.k, left)),
        replayed=config.policy.model.startswith("replay:"),
    )


def _turns(config: RunConfig, measured: MeasuredUsage) -> Range:
    """Replies of a rollout. How many calls a program makes, only a run of it tells."""
    agent = config.agent
    # At most and likely; a team: an analysis, three replies a step, an answer, each repaired once.
    most, likely = {
        "single_turn": (1, 1.0),
        "team": (2 * (2 + 3 * agent.max_turns), 8.0),
        "command": (_PROGRAM_CALLS, 1.0),
        "function": (_PROGRAM_CALLS, 1.0),
    }.get(agent.kind, (agent.max_turns, 2.0))
    likely = measured.turns or likely
    return Range(likely, max(likely, float(most)))


def _with_evaluation(facts: CostInput, plan: RunPlan) -> CostInput:
    """When the library is evaluated: a fork first with the result of the adopted steps."""
    config, state = plan.loaded.config, plan.state
    if not (sets := evaluated_sets(plan.loaded)):
        return facts
    problems = tuple(problem for held_out in sets for problem in held_out.problems)
    evaluation, is_first = config.evaluation, state is None
    if state is not None and state.started is not None:
        begun_with = state.started.forked_steps
        done = any(result.step == begun_with for result in state.evaluations)
        is_first = state.step == begun_with and not done
    return replace(
        facts,
        held_out=len(set(map(scores.problem_digest, problems))) * evaluation.k,
        held_out_question=_question_tokens(problems),
        evaluated_first=is_first,
        evaluated_every=None if evaluation.strategy == "epoch" else evaluation.every_steps,
    )


def _tokens(*texts: str) -> float:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) / BYTES_A_TOKEN


def _question_tokens(problems: tuple[Problem, ...]) -> float:
    return _tokens(*(p.question for p in problems)) / max(1, len(problems))


def judge_questions(spec: object) -> Range:
    """Questions put to a judge for one verdict; a function may ask one."""
    if not isinstance(spec, Mapping):
        judges = int(spec == "judge")
        return Range(judges, judges + (spec == "function"))
    # A verifier that shapes the reward of one other has a single inner one.
    inner = spec.get("of", spec.get("name"))
    every = inner if isinstance(inner, list | tuple) else [inner]
    return sum(map(judge_questions, every), Range())


def _length_notes(facts: CostInput, measured: MeasuredUsage, result: Estimate) -> list[str]:
    """Where the likely lengths of replies come from, and what they are."""
    sources = {f" as in run {measured.run}": list[str](), ", assumed": list[str]()}
    in_run, assumed = sources.values()
    for stage in result.stages:
        purpose = _STAGES[stage.stage].purpose
        lengths = in_run if measured.n[purpose] else assumed
        length = f"{purpose} {facts.reply_tokens(stage.stage):.0f}"
        if length not in lengths:  # the gate makes rollouts, too
            lengths.append(length)
    return [
        f"tokens of a reply{source}: {', '.join(lengths)}"
        for source, lengths in sources.items()
        if lengths
    ]


def _measure_earlier_run(
    workspace: Workspace, fingerprint: codec.JsonMapping, roles: Sequence[Role]
) -> MeasuredUsage:
    """The newest finished run of the same models that recorded something.

    What was cut short has more of the long replies.
    """
    names = [f"{role}.model" for role in roles]
    # The newest first: its data and prompts are most like those of the run to come.
    for run in reversed(workspace.runs()):
        try:
            state = run.state()
            same = all(state.settings.get(name) == fingerprint[name] for name in names)
            if state.status != "finished" or not same:
                continue
            measured = MeasuredUsage(run.run)
            for path in sorted(run.records.glob("*.jsonl")):
                for line in islice(lines.read(path, chained=False).lines, READ_AT_MOST):
                    _add_record(measured, orjson.loads(line.body))
        except (errors.StudioError, OSError):
            continue  # a damaged run is of no use here, and is reported when it is opened
        if not measured.n:
            continue
        if groups := state.group_outcomes():
            measured.contrast = groups["used"] / sum(groups.values())
        if rollouts := sum(step.rollouts_done for step in state.steps.values()):
            turns = sum(step.turns for step in state.steps.values())
            measured.turns = turns / rollouts or None
        if state.started and state.steps_finished:
            versions = workspace.library(state.started.library).versions()
            last, first = versions[state.library_version], versions[state.started.library_version]
            added = len(last.experiences) - len(first.experiences)
            measured.growth = max(0, added) / state.steps_finished
        return measured
    return MeasuredUsage()


def _add_record(measured: MeasuredUsage, record: codec.JsonMapping) -> None:
    if record.get("lost"):
        return
    usage, purpose = record["reply"]["usage"], record["key"]["purpose"]
    if usage["calls"]:
        measured.n[purpose] += 1
        measured.reply[purpose] += usage["completion_tokens"]


def _next_library(plan: RunPlan) -> Library | None:
    if plan.state is not None and plan.state.started is not None:
        folder = plan.workspace.library(plan.state.started.library)
        return folder.at(plan.state.library_version)
    if plan.parent is not None:
        name, version, _ = forked_library(plan.parent, plan.adopted_steps)
        return plan.workspace.library(name).at(version)
    return choose_library(plan.loaded, plan.workspace, None)[0]


NO_PRICE = (
    "the cost is unknown without prices: set policy.price_in_usd_per_mtok and "
    "policy.price_out_usd_per_mtok, in dollars for a million tokens (reflector and judge alike)"
)


def lines_of_estimate(config: RunConfig, result: Estimate) -> list[str]:
    """Return the table with its notes and the budget that the run file sets."""
    is_paid = costs_money(config, result)
    notes = result.notes
    if result.cost_usd is None and is_paid:
        notes = (*notes, NO_PRICE)
    text = [estimate_lines.estimate_table(result, costs_money=is_paid)]
    text += [f"note: {note}" for note in notes]
    if limits := models.limits_of(config):
        text.append(f"budget: {estimate_lines.limits_text(limits)}")
    return text


async def print_dry_run(plan: RunPlan, *, json: bool) -> int:
    """Check everything that can be checked without asking a model, and print what it would cost.

    Raises StudioError: something could not be opened.
    """
    config = plan.loaded.config
    if note := rehearsal_note(config):
        to_stderr(note)
    models.check_budget(plan.loaded, config)
    async with AsyncExitStack() as stack:
        await assemble.check_verifier(plan, stack)
    result = estimate_run(plan)
    budget = models.open_budget(plan.loaded, config, plan.run.records, lambda _: None)
    left = budget.remaining if budget is not None else {}
    total = plan.sampler.total_steps
    to_do = total - (plan.state.steps_finished if plan.state else plan.adopted_steps)
    text = [f"run {plan.run.run}: {plan.mode}, {to_do} of {total} steps to be done"]
    text += lines_of_estimate(config, result)
    if short := estimate_lines.exceeded_limits_text(result, left):
        text.append(f"the budget will likely not do: {short}")
    planned = {
        "run": plan.run.run,
        "mode": plan.mode,
        "steps_left": to_do,
        "steps": total,
        "budget": models.limits_of(config).amounts,
        "budget_left": left,
    }
    print_result(planned | json_data(result), "\n".join(text), json=json)
    if not json:
        after = "the same without --dry-run begins it"
        if not to_do:
            after = "nothing is left: --name NAME begins another run, more practice.epochs go on"
        tell_next(after, plan.workspace.path)
    return exit_codes.DONE


def costs_money(config: RunConfig, result: Estimate) -> bool:
    """Whether an endpoint is asked, or a price is rehearsed; what runs here has no price."""
    asks = any(config.role(role).model.startswith("openai:") for role in ROLES)
    return asks or any(stage.cost_usd and stage.cost_usd.at_most for stage in result.stages)


def tell_estimate(plan: RunPlan, left: dict[str, float]) -> None:
    """Print what a run will likely cost beside what is left of its budget."""
    result = estimate_run(plan)
    to_stderr(f"budget: {estimate_lines.limits_text(models.limits_of(plan.loaded.config))}")
    to_stderr(f"estimate: {estimate_lines.estimate_line(result)}")
    if short := estimate_lines.exceeded_limits_text(result, left):
        to_stderr(f"warning: the budget will likely not do: {short}; the run then ends with exit 5")
