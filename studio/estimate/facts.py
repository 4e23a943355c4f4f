"""What an estimate is computed from: the plan, its prompts, and earlier runs.

Owns what is assumed where nothing was measured, and says so in notes. Asks no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import StudioError
from engines.core.ids import digest
from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.core.text.prompts import load_prompt
from engines.core.types import Problem
from engines.data.sampler import Sampler
from engines.pipeline.context import fewest_tries
from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.record import lines
from engines.record.run_dir import RunDir, Workspace
from engines.record.scores import problem_digest
from studio.config.settings.policy import Role
from studio.config.settings.run import RunConfig
from studio.estimate.cost import Facts, Range
from studio.run.budget import embedding_terms, terms_of
from studio.run.held_out import (
    evaluated_sets,
    measurement_settings,
    prompt_writer,
    score_book_opener,
)
from studio.run.library_start import choose_library
from studio.run.models import weights_digest
from studio.run.new_or_resume import RunPlan, forked_library

READ_AT_MOST = 4000
"""Records of an earlier run that lengths are taken from: more hardly change a mean."""
BYTES_A_TOKEN = 4.0
BYTES_AT_LEAST = 3.0
"""Of a token, for "at most": what a budget reserves by."""
_LESSONS: Mapping[str, float] = {"summary": 200, "extraction": 150, "consolidation": 300}
ASSUMED: Mapping[str, float] = {"rollout": 400, "judge": 120, **_LESSONS}
"""Tokens of a reply where no run of the model was measured: short chains of thought."""
_ROLES: Mapping[str, Role] = {"rollout": "policy", "judge": "judge"}
"""Who replies; all else is the reflector's."""
_PROGRAM_CALLS = 10
"""Of one try at most, where a program decides."""
SCAFFOLD_TOKENS = 16
"""What a chat template adds to a request."""
LINE_TOKENS = 4
"""What the prompt adds to each experience: its id and a line break."""


@dataclass(slots=True)
class MeasuredUsage:
    """What the records of one run add up to. Lengths are tokens."""

    run: str = ""
    n: Counter[str] = field(default_factory=Counter)
    reply: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    prompt_bytes: int = 0
    groups: int = 0
    with_contrast: int = 0
    group_size: int = 2
    growth: float | None = None
    turns: float | None = None  # of a try, on average

    @property
    def bytes_a_token(self) -> float:
        known = self.prompt_tokens and self.prompt_bytes
        return self.prompt_bytes / self.prompt_tokens if known else BYTES_A_TOKEN

    def mean(self, purpose: str) -> float | None:
        return self.reply[purpose] / self.n[purpose] if self.n[purpose] else None


def gather_facts(plan: RunPlan) -> tuple[Facts, tuple[str, ...]]:
    """Gather everything; the notes say where lengths come from. Raises StudioError as it reads."""
    config = plan.loaded.config
    measured = _measure_earlier_run(plan.workspace, plan.fingerprint, ("policy", "reflector"))
    replies, notes = _reply_lengths(measured, config)
    facts = _prompt_facts(config, plan.problems, plan.sampler, replies, measured)
    library = _next_library(plan)
    writer = prompt_writer(config)
    guidance = writer.describe(library)
    texts = [experience.text for experience in library.experiences] if library is not None else []
    per = measured.bytes_a_token
    facts = replace(
        facts,
        guidance=_tokens(per, writer.write(library, "")[0]),
        experiences=len(texts),
        experience=_tokens(per, *texts) / len(texts) + LINE_TOKENS if texts else facts.experience,
        contrast=measured.with_contrast / measured.groups if measured.groups else None,
        contrast_of=measured.group_size,
        growth=2.0 if measured.growth is None else measured.growth,
        citing=_tokens(per, load_prompt("engines.core", "cite").body) * config.agent.cite,
    )
    facts = _with_evaluation(_with_progress(facts, plan), plan, guidance, per)
    if not facts.lessons:
        return facts, tuple(notes)
    if facts.contrast is None and facts.truth_given:
        share = facts.contrast_share(facts.group_size)
        notes.append(f"assumed: {share:.0%} of groups of {facts.group_size} show a difference")
    if measured.growth is None:
        notes.append("assumed: a step adds 2 experiences")
    if config.practice.sampling == "learnable":
        few, most = fewest_tries(facts.group_size), 2 * facts.group_size
        notes.append(
            f"practice.sampling=learnable: {few} rollouts of a problem that was right twice, and "
            f"up to {most} where all failed; never more in a step than are counted here"
        )
    if "function" in _verifier_names(config.verifier.spec):
        notes.append("a verifier function may ask the judge: counted at most once a try")
    return facts, tuple(notes)


def gather_eval_facts(
    config: RunConfig,
    workspace: Workspace,
    fingerprint: Mapping[str, Any],
    problems: tuple[Problem, ...],
    missing: Sequence[tuple[str, int]],
) -> tuple[Facts, tuple[tuple[float, int], ...], tuple[str, ...]]:
    """The same of an evaluation alone: rollouts of held-out `problems` and what judges them.

    `missing` are the rollouts to make with each guidance; what comes back has its tokens instead.
    """
    measured = _measure_earlier_run(workspace, fingerprint, ("policy",))
    replies, notes = _reply_lengths(measured, config, ("rollout", "judge"))
    per = measured.bytes_a_token
    sampler = Sampler(max(1, len(problems)), 1, 1, config.seed)
    facts = _prompt_facts(config, problems, sampler, replies, measured)
    facts = replace(facts, held_out_question=facts.question)
    return facts, tuple((_tokens(per, text), n) for text, n in missing), tuple(notes)


def _prompt_facts(
    config: RunConfig,
    problems: tuple[Problem, ...],
    sampler: Sampler,
    replies: Mapping[str, float],
    measured: MeasuredUsage,
) -> Facts:
    """What the run file says, with the lengths of its prompts."""
    practice, per = config.practice, measured.bytes_a_token

    def prompt(name: str, *more: str) -> float:
        body = load_prompt("engines.training_free", name).body
        return _tokens(per, body, *more) + SCAFFOLD_TOKENS

    objectives = (practice.agent_objective, practice.learning_objective)
    judge, form = (load_prompt("engines.verifiers", n).body for n in ("judge", "form_binary"))
    wanted = config.lint.embedding
    return Facts(
        sampler=sampler,
        group_size=config.rollouts_a_problem,
        policy=terms_of(config.role("policy")),
        reflector=terms_of(config.role("reflector")),
        judge=terms_of(config.role("judge")),
        replies=replies,
        instructions=_tokens(per, config.agent.instructions) + SCAFFOLD_TOKENS,
        question=_question_tokens(per, problems),
        truth=_tokens(per, *(p.answer or "" for p in problems)) / max(1, len(problems)),
        # With its longer question: which of the two a group gets is not known before.
        extract=prompt("extract", *objectives) + prompt("critique"),
        consolidate=prompt("consolidate", *objectives),
        summarise=prompt("summarise"),
        judging=_tokens(per, judge, form),
        judged=judge_questions(config.verifier.spec),
        turns=_turns(config, measured),
        summaries=practice.summarise,
        summarise_above=practice.summarise_above_chars / per,
        group_budget=practice.read_chars / per,
        unlike_read=practice.read_without_contrast,
        per_group=practice.experiences_per_query,
        per_call=practice.proposals_per_call,
        truth_given=practice.given_ground_truth,
        lessons=not config.trains,
        limit=practice.library_limit,
        replayed=config.policy.model.startswith("replay:"),
        embedding=embedding_terms(wanted) if wanted and wanted.model != "rehearsal" else None,
        at_most=max(1.0, per / BYTES_AT_LEAST),
    )


def _with_progress(facts: Facts, plan: RunPlan) -> Facts:
    """What of the run is done already."""
    if plan.mode in ("resume", "finished"):
        facts = replace(facts, done=_count_replies(plan.run))
    state = plan.state
    if state is None:
        return replace(facts, steps_done=plan.adopted_steps)
    facts = replace(facts, steps_done=state.steps_finished)
    if state.current is None:
        return facts
    known = state.current.lesson is not None or state.current.committed
    begun = _count_replies(plan.run, f"step-{state.step:04d}.jsonl")
    return replace(facts, under_way=begun, lesson_known=known)


def _turns(config: RunConfig, measured: MeasuredUsage) -> Range:
    """Replies of a try. How many calls a program makes, only a run of it tells."""
    agent = config.agent
    if agent.kind == "single_turn":
        return Range(1.0, 1.0)
    likely = measured.turns or (2.0 if agent.kind in ("tools", "calculator") else 1.0)
    if agent.kind == "team":  # an analysis, three replies a step, an answer; each repaired once
        return Range(measured.turns or 8.0, 2.0 * (2 + 3 * agent.max_turns))
    own = agent.kind in ("command", "function")
    return Range(likely, max(likely, float(_PROGRAM_CALLS if own else agent.max_turns)))


def _with_evaluation(facts: Facts, plan: RunPlan, guidance: str, per: float) -> Facts:
    config = plan.loaded.config
    sets, k = evaluated_sets(plan.loaded), config.evaluation.k
    problems = tuple(problem for held_out in sets for problem in held_out.problems)
    contents = {problem_digest(problem) for problem in problems}
    open_book = score_book_opener(
        plan.workspace.evaluations, measurement_settings(config, plan.fingerprint), config
    )
    # Weights that are trained are known by their content, and those of a later step by nobody.
    weights = "" if config.trains else weights_digest(config.policy)
    missing = open_book(guidance, weights).count_missing(contents, k)
    if config.trains and not guidance and _is_start_known(plan, sets):
        missing = 0
    return replace(
        facts,
        held_out=len(contents) * k,
        held_out_question=_question_tokens(per, problems),
        evaluated_after=_evaluation_steps(plan, len(sets)) if sets else (),
        known=len(contents) * k - missing,
    )


def _is_start_known(plan: RunPlan, sets: Sequence[HeldOutSet]) -> bool:
    """Whether a run measured the weights that training begins with, before its first step."""
    fingerprint = digest(measurement_settings(plan.loaded.config, plan.fingerprint))
    k = plan.loaded.config.evaluation.k
    wanted = {(held_out.name, len(held_out.problems) * k) for held_out in sets}
    for run in plan.workspace.runs():
        with suppress(StudioError, OSError):  # reported when it is opened
            start = (e for e in run.state().evaluations if (e.step, e.policy_version) == (0, 0))
            if wanted <= {(e.data, e.n) for e in start if e.fingerprint == fingerprint}:
                return True
    return False


def _tokens(per: float, *texts: str) -> float:
    """Tokens of texts at so many bytes each."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts) / per


def _question_tokens(per: float, problems: tuple[Problem, ...]) -> float:
    return _tokens(per, *(p.question for p in problems)) / max(1, len(problems))


def judge_questions(spec: object) -> Range:
    """Questions put to a judge for one verdict."""
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


def _reply_lengths(
    measured: MeasuredUsage, config: RunConfig, only: Sequence[str] = tuple(ASSUMED)
) -> tuple[dict[str, float], list[str]]:
    """The likely length of a reply by purpose, and notes on where those asked for come from.

    What the run file expects of a role goes before what was measured.
    """
    never = {"summary"} if config.practice.summarise == "never" else set()
    never |= set(_LESSONS) if config.trains else set()
    never |= set() if judge_questions(config.verifier.spec).most else {"judge"}
    asked_for = set(only) - never
    roles = {p: config.role(_ROLES.get(p, "reflector")) for p in ASSUMED}
    given = {p: role.expected_tokens for p, role in roles.items()}
    expected = {p: float(tokens) for p, tokens in given.items() if tokens is not None}
    found = {p: mean for p in ASSUMED if (mean := measured.mean(p)) is not None}
    means = {p: mean for p, mean in found.items() if p not in expected}
    usual = {p: min(n, terms_of(roles[p]).reply_tokens()) for p, n in ASSUMED.items()}
    replies = {**usual, **means, **expected}
    held_out = None if "rollout" in expected else measured.mean("evaluation")
    replies["evaluation"] = replies["rollout"] if held_out is None else held_out
    known = [f"{p} {means[p]:.0f} (n={measured.n[p]})" for p in means if p in asked_for]
    if held_out is not None:
        known.append(f"evaluation {held_out:.0f} (n={measured.n['evaluation']})")
    unknown = [p for p in ASSUMED if p in asked_for and p not in {**means, **expected}]
    assumed = [f"{p} {usual[p]:.0f}" for p in unknown]
    wanted = [f"{p} {expected[p]:.0f}" for p in expected if p in asked_for]
    sources = {" by expected_tokens": wanted, f" as in run {measured.run}": known}
    sources |= {", assumed": assumed}
    notes = [f"tokens of a reply{how}: {', '.join(n)}" for how, n in sources.items() if n]
    return replies, notes


def _measure_earlier_run(
    workspace: Workspace, fingerprint: Mapping[str, Any], roles: Sequence[Role]
) -> MeasuredUsage:
    """The newest finished run of the same models that recorded something, else any that did.

    What was cut short has more of the long replies, and fewer steps to tell the growth by.
    """
    names = [f"{role}.model" for role in roles]
    cut_short = None
    # The newest first: its data and prompts are most like those of the run to come.
    for run in reversed(workspace.runs()):
        try:
            state = run.state()
            if any(state.settings.get(name) != fingerprint[name] for name in names):
                continue
            found = _measure_run(run, state, workspace)
        except (StudioError, OSError):
            continue  # a damaged run is of no use here, and is reported when it is opened
        if found.n and state.status == "finished":
            return found
        cut_short = cut_short or (found if found.n else None)
    return cut_short or MeasuredUsage()


def _measure_run(run: RunDir, state: RunState, workspace: Workspace) -> MeasuredUsage:
    found = MeasuredUsage(run.run)
    for record in islice(_read_records(run.records), READ_AT_MOST):
        usage, purpose = record["reply"]["usage"], record["key"]["purpose"]
        if record.get("lost") or not usage["calls"]:
            continue
        found.n[purpose] += 1
        found.reply[purpose] += usage["completion_tokens"]
        # A later turn records only the messages that it adds to the first ones.
        if not record["base"] and usage["prompt_tokens"]:
            found.prompt_tokens += usage["prompt_tokens"]
            found.prompt_bytes += sum(len(m["content"].encode()) for m in record["messages"])
    groups = state.group_outcomes()
    found.groups, found.with_contrast = sum(groups.values()), groups["used"]
    if tries := sum(step.rollouts_done for step in state.steps.values()):
        found.turns = sum(step.turns for step in state.steps.values()) / tries or None
    started = state.started
    if started is not None:
        found.group_size = started.group_size
        steps = state.steps_finished - started.forked_steps
        if steps > 0:
            folder = workspace.library(started.library)
            before = folder.at(started.library_version).experiences
            after = folder.at(state.library_version).experiences
            found.growth = max(0.0, (len(after) - len(before)) / steps)
    return found


def _read_records(folder: Path, pattern: str = "*.jsonl") -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        for line in lines.read(path, chained=False).lines:
            yield orjson.loads(line.body)


def _count_replies(run: RunDir, pattern: str = "*.jsonl") -> Counter[str]:
    """Replies on record by purpose."""
    records = _read_records(run.records, pattern)
    return Counter(str(found["key"]["purpose"]) for found in records if not found.get("lost"))


def _evaluation_steps(plan: RunPlan, sets: int) -> tuple[int, ...]:
    """The steps after which the library is evaluated; 0 while that before the first is due.

    The first is the run's own: a fork is evaluated with the result of the adopted steps.
    """
    evaluation, sampler = plan.loaded.config.evaluation, plan.sampler
    by_epoch = evaluation.strategy == "epoch"
    after = tuple(
        step
        for step in range(1, sampler.total_steps + 1)
        if (sampler.ends_epoch(step) if by_epoch else step % evaluation.every_steps == 0)
    )
    state = plan.state
    if state is None:
        return (0, *after)
    begun_with = state.started.forked_steps if state.started else 0
    done = sum(found.step == begun_with for found in state.evaluations)
    return (0, *after) if state.step == begun_with and done < sets else after


def _next_library(plan: RunPlan) -> Library | None:
    """The library that the next step begins with."""
    if plan.state is not None and plan.state.started is not None:
        folder = plan.workspace.library(plan.state.started.library)
        return folder.at(plan.state.library_version)
    if plan.parent is not None:
        name, version, *_ = forked_library(plan.parent, plan.adopted_steps)
        return plan.workspace.library(name).at(version)
    return choose_library(plan.loaded, plan.workspace, None)[0]
