"""What a run would cost, computed before anything is asked: calls, tokens and money by stage.

"At most" means: every group has contrast, every reply is as long as its limit and has to be
repaired, every verdict that can ask a judge does. Retries of failed calls are not counted.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.settings import MAX_COUNT
from engines.core.text.prompts import load_prompt
from engines.core.types import Problem
from engines.data.sampler import Sampler
from engines.pipeline.budget import CallPricing
from engines.pipeline.effect.effect_gate import choice_size
from engines.record import lines
from engines.record.run_dir import Workspace
from engines.record.scores import problem_digest
from studio import exit_codes
from studio.config.scripted import rehearsal_note
from studio.config.settings.policy import Role
from studio.config.settings.run import PracticeConfig, RunConfig
from studio.facts.estimate import Estimate, Range, Stage
from studio.render.estimate_lines import (
    estimate_line,
    estimate_table,
    exceeded_limits_text,
    limits_text,
)
from studio.render.json import json_data, print_result
from studio.render.lines import tell_next, to_stderr
from studio.run.assemble import check_verifier
from studio.run.held_out import evaluated_sets, prompt_writer
from studio.run.library import choose_library
from studio.run.models import check_budget, limits_of, open_budget, terms_of
from studio.run.new_or_resume import RunPlan, forked_library

_PURPOSES = {
    "rollouts": "rollout",
    "judging": "judge",
    "summaries": "summary",
    "extraction": "extraction",
    "consolidation": "consolidation",
    "gate": "gate",
    "evaluation": "evaluation",
}
"""The stages, and the purpose that their calls have in the records."""
BYTES_A_TOKEN = 4.0
TOKENS_AT_MOST = 4 / 3
"""How many times the likely tokens the same text may have: a budget reserves by 3 bytes a token."""
HEADING_TOKENS = 16
"""Of what stands round a request, an attempt or a proposal."""
REPAIR_TOKENS = 80
"""Of the message that says what was wrong with a reply."""
LONGEST_EXPERIENCE = 120
"""Tokens of one experience, where the most is asked for: the prompts want one sentence."""
SHOWN = Range(2.5, 4)
"""Rollouts of a group that the reflector reads, of those with known rewards: of each side two with
different answers, and the better ones mostly agree."""
TOOL_RESULT = Range(50, 500)
"""Tokens of what a tool returns."""
GROWTH = 2.0
"""Experiences that a step adds, likely."""
READ_AT_MOST = 4000
"""Records of an earlier run that lengths are taken from: more hardly change a mean."""
_LESSONS: Mapping[str, float] = {"summary": 200, "extraction": 150, "consolidation": 300}
ASSUMED: Mapping[str, float] = {"rollout": 400, "judge": 120, **_LESSONS}
"""Tokens of a reply where no run of the model was measured: short chains of thought."""
_PROGRAM_CALLS = 10
"""Of one rollout at most, where a program decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInput:
    """The input of the arithmetic. Lengths are tokens."""

    sampler: Sampler
    practice: PracticeConfig
    group_size: int
    policy: CallPricing
    reflector: CallPricing
    judge: CallPricing
    replies: Mapping[str, float]  # likely length of a reply, by purpose
    prompts: Mapping[str, float]  # of the prompt without what is put into it, by purpose
    question: float  # mean of the problems'
    truth: float
    judged: Range  # calls of judges a verdict takes
    turns: Range  # replies of a rollout
    contrast: float | None = None  # share of groups with contrast, measured; None: assumed
    guidance: float = 0.0  # of the library as it stands
    experiences: int = 0
    experience: float = 40.0  # length of one
    growth: float = GROWTH  # experiences a step adds
    steps_done: int = 0
    held_out: int = 0  # rollouts of one evaluation
    held_out_question: float = 0.0
    evaluated_first: bool = True  # the evaluation before the first step is due
    evaluated_every: int | None = None  # steps; None: after each epoch
    tried: int = 0  # rollouts of an operation before it is decided, at most; 0: it is not tried
    choice: int = 0  # rollouts of each of several lessons, to choose one
    replayed: bool = False  # rollouts come from a log and cost nothing
    done: Mapping[str, int] = field(default_factory=dict)  # recorded of the whole run

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


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of one stage that each have this prompt and reply."""

    stage: str
    n: float
    prompt: float
    reply: float


def estimate(facts: CostInput) -> Estimate:
    return _sum_stages(facts, _run_calls(facts, most=False), _run_calls(facts, most=True))


def _sum_stages(facts: CostInput, likely: Iterable[_Calls], most: Iterable[_Calls]) -> Estimate:
    terms = dict.fromkeys(_PURPOSES, facts.reflector)
    terms |= dict.fromkeys(("rollouts", "gate", "evaluation"), facts.policy)
    terms["judging"] = facts.judge
    sums = defaultdict[tuple[str, bool], list[float]](lambda: [0.0, 0.0, 0.0])
    for calls, is_most in [(likely, False), (most, True)]:
        for made in calls:
            amounts = sums[made.stage, is_most]
            amounts[0] += made.n
            amounts[1] += made.n * made.prompt * (TOKENS_AT_MOST if is_most else 1)
            amounts[2] += made.n * made.reply
    stages = []
    for name, purpose in _PURPOSES.items():
        pairs = zip(sums[name, False], sums[name, True], strict=True)
        # Whole numbers, so that shown stages add up to their sum; above 0 is 1 or more.
        count, sent, got = (
            Range(round(max(low, low > 0)), round(max(high, high > 0))) for low, high in pairs
        )
        done, price = facts.done.get(purpose, 0), terms[name]
        if count.at_most or done:
            likely_cost = price.cost_usd(round(sent.likely), round(got.likely))
            cost = Range(likely_cost, price.cost_usd(round(sent.at_most), round(got.at_most)))
            stages.append(Stage(name, count, sent, got, cost if price.has_price else None, done))
    return Estimate(tuple(stages))


def _run_calls(facts: CostInput, most: bool) -> Iterator[_Calls]:
    sampler, practice = facts.sampler, facts.practice
    done, total = facts.steps_done, sampler.total_steps
    steps = total - done
    lessons = practice.library_steps(total) - practice.library_steps(done)
    if steps:
        yield from _practice_calls(facts, most, steps, lessons)
    if facts.held_out:
        every = facts.evaluated_every or sampler.steps_per_epoch
        first = int(facts.evaluated_first)  # a fork begins with one too
        rollouts = (first + total // every - done // every) * facts.held_out
        if practice.algorithm == "both":  # two of four cells are new
            rollouts += 2 * facts.held_out
        guidance = _library_tokens(facts, most, lessons if most else lessons / 2)
        yield from _evaluation_calls(facts, most, rollouts, guidance)


def _practice_calls(facts: CostInput, most: bool, steps: int, lessons: int) -> Iterator[_Calls]:
    """The practice of so many steps, `lessons` of which draw lessons."""
    sampler, practice, size = facts.sampler, facts.practice, facts.group_size
    epochs, in_epoch = divmod(facts.steps_done, sampler.steps_per_epoch)
    problems = sampler.problems_per_epoch * (sampler.epochs - epochs)
    problems -= in_epoch * sampler.batch_size
    # As it is half way, or at its end where the most is asked for.
    library = _library_tokens(facts, most, lessons if most else lessons / 2)
    rollout = _reply_tokens(facts, "rollout", facts.policy, most)
    asked = facts.prompts["rollout"] + facts.question + library
    for calls in _rollout_calls(facts, most, "rollouts", problems * size, asked, rollout):
        if not (facts.replayed and calls.stage == "rollouts"):
            yield calls
    if not lessons or size < 2:
        return  # no reflector is asked, or there is no other rollout to compare one with

    batch, share = problems / steps, facts.contrast_share
    # Of the groups without contrast half are taken to be all wrong.
    unlike = min(practice.read_without_contrast, batch * (1 - share) / 2)
    read = batch if most else batch * share + unlike
    # Without a truth all that is known is how often an answer was said, so all are shown.
    shown = min(size, SHOWN.pick(most)) if practice.given_ground_truth else size
    budget = practice.read_chars / BYTES_A_TOKEN
    is_long = rollout * shown > budget
    retold = most or (is_long and rollout > practice.summarise_above_chars / BYTES_A_TOKEN)
    summary = _reply_tokens(facts, "summary", facts.reflector, most)
    if retold:
        prompt = facts.prompts["summary"] + facts.question + rollout
        yield _Calls("summaries", lessons * read * shown, prompt, summary)

    attempt = min(rollout, budget) if most or not retold else summary
    prompt = facts.prompts["extraction"] + facts.question + facts.truth + library
    prompt += attempt * shown + HEADING_TOKENS * size
    extraction = _reply_tokens(facts, "extraction", facts.reflector, most)
    drafts = lessons * practice.proposals
    yield _with_repeat("extraction", read * drafts, prompt, extraction, most)

    # A step consolidates, if any of its groups shows a difference, in as many calls as it takes.
    asks = 1.0 if most else 1 - (1 - share) ** batch
    lessons_read = practice.experiences_per_query * read
    calls_a_step = max(1, math.ceil(lessons_read / practice.proposals_per_call))
    sent = (extraction + HEADING_TOKENS) * lessons_read / calls_a_step
    prompt = facts.prompts["consolidation"] + sent + library
    reply = _reply_tokens(facts, "consolidation", facts.reflector, most)
    yield _with_repeat("consolidation", asks * calls_a_step * drafts, prompt, reply, most)

    proposed = batch * practice.experiences_per_query
    wordings = proposed if most else min(facts.growth, proposed)
    if facts.tried:  # on average half of the rollouts tell; the library without any is tried once
        tries = facts.tried * (1 + wordings * (1 if most else 0.5))
        if practice.proposals > 1:
            tries += facts.choice * (practice.proposals + 1)
        yield from _rollout_calls(facts, most, "gate", lessons * tries, asked, rollout)


def _evaluation_calls(
    facts: CostInput, most: bool, rollouts: int, guidance: float
) -> Iterator[_Calls]:
    reply = _reply_tokens(facts, "evaluation", facts.policy, most)
    asked = facts.prompts["rollout"] + facts.held_out_question + guidance
    return _rollout_calls(facts, most, "evaluation", max(0, rollouts), asked, reply)


def _rollout_calls(
    facts: CostInput, most: bool, stage: str, rollouts: float, asked: float, reply: float
) -> Iterator[_Calls]:
    """Rollouts of one or more turns, and what judges them.

    Each later prompt of a rollout holds the replies and results before it.
    """
    turns = facts.turns.pick(most)
    before = (reply + TOOL_RESULT.pick(most)) * (turns - 1) / 2
    yield _Calls(stage, rollouts * turns, asked + before, reply)
    prompt = facts.prompts["judge"] + facts.question + facts.truth + reply
    verdict = _reply_tokens(facts, "judge", facts.judge, most)
    yield _with_repeat("judging", rollouts * facts.judged.pick(most), prompt, verdict, most)


def _with_repeat(stage: str, n: float, prompt: float, reply: float, most: bool) -> _Calls:
    """Questions that are at most asked again once, with the reply that could not be read."""
    if not most:
        return _Calls(stage, n, prompt, reply)
    return _Calls(stage, 2 * n, prompt + (reply + REPAIR_TOKENS) / 2, reply)


def _library_tokens(facts: CostInput, most: bool, lessons: float) -> float:
    """The tokens of the library in a prompt after so many lessons."""
    a_step = facts.sampler.batch_size * facts.practice.experiences_per_query
    added = lessons * (a_step if most else min(facts.growth, a_step))
    limit = facts.practice.library_limit
    if limit is not None:
        added = min(added, max(0, limit - facts.experiences))
    longest = max(LONGEST_EXPERIENCE, facts.experience) if most else facts.experience
    return facts.guidance + added * longest


def _reply_tokens(facts: CostInput, purpose: str, terms: CallPricing, most: bool) -> float:
    longest = terms.reply_tokens()
    return longest if most else min(facts.replies[purpose], longest)


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
    texts = [experience.text for experience in library.experiences] if library is not None else []
    if texts:
        facts = replace(facts, experiences=len(texts), experience=_tokens(*texts) / len(texts))
    facts = replace(
        facts,
        guidance=_tokens(prompt_writer(config).write(library, "")[0]),
        contrast=measured.contrast,
        growth=GROWTH if measured.growth is None else measured.growth,
        steps_done=plan.state.steps_finished if plan.state else plan.adopted_steps,
    )
    if plan.mode in ("resume", "finished"):
        kinds = (record["key"]["purpose"] for record in _read_replies(plan.run.records))
        facts = replace(facts, done=Counter(kinds))
    facts = _with_evaluation(facts, plan)
    notes = _length_notes(facts, measured)
    if facts.practice.reflects and facts.practice.given_ground_truth and facts.contrast is None:
        share = facts.contrast_share
        notes.append(f"assumed: {share:.0%} of groups of {facts.group_size} show a difference")
    if facts.practice.reflects and measured.growth is None:
        notes.append(f"assumed: a step adds {GROWTH:g} experiences")
    return replace(estimate(facts), notes=tuple(notes))


def estimate_eval(
    config: RunConfig,
    workspace: Workspace,
    fingerprint: Mapping[str, Any],
    problems: tuple[Problem, ...],
    missing: Sequence[tuple[str, int]],
) -> Estimate:
    """Estimate an evaluation alone: rollouts of held-out `problems` and what judges them.

    `missing` are the rollouts to make with each guidance.
    """
    measured = _measure_earlier_run(workspace, fingerprint, ("policy",))
    sampler = Sampler(max(1, len(problems)), 1, 1, config.seed)
    facts = _prompt_facts(config, problems, sampler, measured)
    facts = replace(facts, held_out_question=facts.question)

    def calls(most: bool) -> Iterator[_Calls]:
        for guidance, rollouts in missing:
            yield from _evaluation_calls(facts, most, rollouts, _tokens(guidance))

    notes = tuple(_length_notes(facts, measured))
    return replace(_sum_stages(facts, calls(False), calls(True)), notes=notes)


def _prompt_facts(
    config: RunConfig, problems: tuple[Problem, ...], sampler: Sampler, measured: MeasuredUsage
) -> CostInput:
    """What the run file says, with the lengths of its prompts and of measured replies."""
    practice = config.practice

    def length(package: str, *names: str) -> float:
        bodies = (load_prompt(f"engines.{package}", name).body for name in names)
        return _tokens(*bodies) + HEADING_TOKENS

    objectives = _tokens(practice.agent_objective, practice.learning_objective)
    replies = {name: measured.reply[name] / n for name, n in measured.n.items()}
    replies = {**ASSUMED, **replies}
    replies.setdefault("evaluation", replies["rollout"])
    gate = config.review.gate
    left = len(problems) - practice.batch_size if gate.data is None else MAX_COUNT
    return CostInput(
        sampler=sampler,
        group_size=config.rollouts_a_problem,
        policy=terms_of(config.role("policy")),
        reflector=terms_of(config.role("reflector")),
        judge=terms_of(config.role("judge")),
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
        held_out=len(set(map(problem_digest, problems))) * evaluation.k,
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
    names = _verifier_names(spec)
    sure = names.count("judge")
    return Range(sure, sure + names.count("function"))


def _verifier_names(spec: object) -> list[str]:
    if not isinstance(spec, Mapping):
        return [str(spec)]
    inner = spec.get("of")
    if isinstance(inner, list | tuple):
        return [name for entry in inner for name in _verifier_names(entry)]
    # A verifier that shapes the reward of one other has a single inner one.
    return [str(spec.get("name"))] if inner is None else _verifier_names(inner)


def _length_notes(facts: CostInput, measured: MeasuredUsage) -> list[str]:
    """Where the likely lengths of replies come from, and what they are."""
    never = set() if facts.practice.reflects else set(_LESSONS)
    if not facts.judged.at_most:
        never.add("judge")
    terms = {"rollout": facts.policy, "judge": facts.judge}
    notes = []
    for source, is_measured in ((f" as in run {measured.run}", True), (", assumed", False)):
        lengths = [
            f"{name} {_reply_tokens(facts, name, terms.get(name, facts.reflector), False):.0f}"
            for name in ASSUMED
            if name not in never and bool(measured.n[name]) is is_measured
        ]
        if lengths:
            notes.append(f"tokens of a reply{source}: {', '.join(lengths)}")
    return notes


def _measure_earlier_run(
    workspace: Workspace, fingerprint: Mapping[str, Any], roles: Sequence[Role]
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
            for record in islice(_read_replies(run.records), READ_AT_MOST):
                usage, purpose = record["reply"]["usage"], record["key"]["purpose"]
                if usage["calls"]:
                    measured.n[purpose] += 1
                    measured.reply[purpose] += usage["completion_tokens"]
        except (StudioError, OSError):
            continue  # a damaged run is of no use here, and is reported when it is opened
        if not measured.n:
            continue
        groups = state.group_outcomes()
        if groups:
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


def _read_replies(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in lines.read(path, chained=False).lines:
            record = orjson.loads(line.body)
            if not record.get("lost"):
                yield record


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


async def print_dry_run(plan: RunPlan, *, json: bool) -> int:
    """Check everything that can be checked without asking a model, and print what it would cost.

    Raises StudioError: something could not be opened.
    """
    config = plan.loaded.config
    if note := rehearsal_note(config):
        to_stderr(note)
    check_budget(plan.loaded, config)
    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)
    estimate = estimate_run(plan)
    is_paid = costs_money(config, estimate)
    if estimate.cost_usd is None and is_paid:
        estimate = replace(estimate, notes=(*estimate.notes, NO_PRICE))
    budget = open_budget(plan.loaded, config, plan.run.records, lambda _: None)
    left = budget.remaining if budget is not None else {}
    total = plan.sampler.total_steps
    done = plan.state.steps_finished if plan.state else plan.adopted_steps
    lines = [
        f"run {plan.run.run}: {plan.mode}, {total - done} of {total} steps to be done",
        estimate_table(estimate, costs_money=is_paid),
        "",
        *(f"note: {note}" for note in estimate.notes),
    ]
    if limits := limits_of(config):
        lines.append(f"budget: {limits_text(limits)}")
        if short := exceeded_limits_text(estimate, left):
            lines.append(f"the budget will likely not do: {short}")
    planned = {"run": plan.run.run, "mode": plan.mode, "steps_left": total - done,
               "steps": total, "budget": limits.amounts, "budget_left": left}  # fmt: skip
    print_result(planned | json_data(estimate), "\n".join(lines), json=json)
    if not json:
        after = "the same without --dry-run begins it"
        if done == total:
            after = "nothing is left: --name NAME begins another run, more practice.epochs go on"
        tell_next(after, plan.workspace.path)
    return exit_codes.DONE


def costs_money(config: RunConfig, found: Estimate) -> bool:
    """Whether an endpoint is asked, or a price is rehearsed; what runs here has no price."""
    roles: tuple[Role, ...] = ("policy", "reflector", "judge")
    asks = any(config.role(role).model.startswith("openai:") for role in roles)
    return asks or any(stage.cost_usd and stage.cost_usd.at_most for stage in found.stages)


def tell_estimate(plan: RunPlan, left: dict[str, float]) -> None:
    """Print what a run will likely cost beside what is left of its budget."""
    found = estimate_run(plan)
    to_stderr(f"budget: {limits_text(limits_of(plan.loaded.config))}")
    to_stderr(f"estimate: {estimate_line(found)}")
    if short := exceeded_limits_text(found, left):
        to_stderr(f"warning: the budget will likely not do: {short}; the run then ends with exit 5")
