"""What starting something would mean, found out before anything is spent.

It asks no model and writes nothing. All of it blocks: it belongs into a thread, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.errors import ConfigError, StudioError
from engines.record.run_dir import Workspace
from studio.render.words import count_text

if TYPE_CHECKING:
    from studio.config.source import Source
    from studio.run.new_or_resume import RunPlan

_READ_AT_MOST = 65_536
_REVIEWERS = {
    "wait": "by you: a run holds until every operation is decided",
    "auto": "auto: every operation that fits is approved by itself",
}
_RUN_FILE_KEYS = ("policy:", "exp_id:", "practice:", "agent:")


@dataclass(frozen=True, slots=True)
class RunFacts:
    run: str
    mode: str  # "new", "resume", "fork", "finished"; "beside": only as a new one, see `notes`
    costs: bool  # a model is asked that may cost money
    rows: tuple[tuple[str, str], ...]  # data, model and so on, each in words
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `ok` False where somebody should know of it."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checks of a run that could be started, and what it would take."""

    facts: RunFacts
    checks: tuple[Check, ...]
    likely: str
    most: str
    notes: tuple[str, ...] = ()


def find_run_files(workspace: Workspace, folder: Path) -> tuple[Path, ...]:
    """Run files in a folder and in the workspace's `configs/`: YAML that names a policy, say."""
    found = []
    for place in (folder, workspace.configs):
        for path in sorted((*place.glob("*.yaml"), *place.glob("*.yml"))):
            try:
                with path.open(encoding="utf-8") as file:
                    text = file.read(_READ_AT_MOST)
            except (OSError, UnicodeDecodeError):
                continue
            if any(row.startswith(_RUN_FILE_KEYS) for row in text.splitlines()):
                found.append(path)
    return tuple(found)


def load_facts(workspace: Workspace, source: Source) -> RunFacts:
    """Read the run file, the data and what there is of the run already.

    Raises StudioError: it could not be started so; the same that `studio headless` would say.
    """
    return _make_facts(*_make_plan(workspace, source))


def run_checks(workspace: Workspace, source: Source) -> CheckReport:
    """All that `--dry-run` and the doctor look at, for one run; raises as `load_facts`."""
    import asyncio

    from studio.estimate.cost import estimate_run
    from studio.render.estimate_lines import amounts_text, exceeded_limits_text, limits_text
    from studio.run.models import check_budget, limits_of, open_budget

    plan, notes, beside = _make_plan(workspace, source)
    found = _make_facts(plan, notes, beside)
    config = plan.loaded.config
    check_budget(plan.loaded, config)
    asyncio.run(_check_verifier(plan))
    total = estimate_run(plan)
    checks = [
        Check(True, f"{count_text(len(plan.problems), 'problem')} in {config.data.practice}"),
        Check(True, f"verifier {config.verifier.name} is there"),
        *(Check(False, note.removeprefix("note: ")) for note in found.notes),
    ]
    if found.costs:
        if total.cost_usd is None:
            model = config.policy.model
            checks.append(Check(False, f"no price for {model}: cost shows as tokens only"))
        checks.append(Check(False, f"{config.policy.base_url or 'the endpoint'} was not asked"))
    if limits := limits_of(config):
        kept = open_budget(plan.loaded, config, plan.run.records, lambda _: None)
        short = exceeded_limits_text(total, kept.remaining if kept is not None else {})
        text = f"not do: {short}" if short else f"do: {limits_text(limits)}"
        checks.append(Check(not short, f"the budget will likely {text}"))
    checks += _preflight_checks(workspace.path)
    likely, most = amounts_text(total, most=False), amounts_text(total, most=True)
    return CheckReport(found, tuple(checks), likely, most, total.notes)


def load_expected_answers(workspace: Workspace, run: str) -> dict[str, str]:
    """The true answers of a run's problems by their ids, as its data has them now.

    Raises StudioError: its run file or its data cannot be read.
    """
    from studio.config.source import Source

    plan, _, _ = _make_plan(workspace, Source((), resume=run))
    return {problem.id: problem.answer for problem in plan.problems if problem.answer is not None}


def _make_plan(workspace: Workspace, source: Source) -> tuple[RunPlan, tuple[str, ...], str]:
    """The plan, what was told of it, and why it is a new run where an old one is there."""
    from studio.run.new_or_resume import RunRequest, load_plan

    notes: list[str] = []
    review = None if source.resume is not None else "wait"
    request = RunRequest(workspace=workspace, source=source, review=review, keyless=True)

    def plan(restart_step: str | None) -> RunPlan:
        return load_plan(replace(request, restart_step=restart_step), notes.append)

    try:
        return plan(None), tuple(notes), ""
    except ConfigError as error:
        if source.runfile is None:
            raise
        notes.clear()
        try:
            # A run of that name may be there that this one cannot go on with.
            return plan("0"), tuple(notes), str(error)
        except StudioError:
            raise error from None


async def _check_verifier(plan: RunPlan) -> None:
    from contextlib import AsyncExitStack

    from studio.run.assemble import check_verifier

    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)


def _make_facts(plan: RunPlan, notes: tuple[str, ...], beside: str) -> RunFacts:
    from studio.render.estimate_lines import limits_text
    from studio.run.models import endpoint_roles, limits_of

    config = plan.loaded.config
    practice, limits = config.practice, limits_of(config)
    models = [config.role(role).model for role in endpoint_roles(config)]
    if config.lint.embedding is not None:
        models.append(config.lint.embedding.model)
    costs = any(name.startswith("openai:") and name != "openai:rehearsal" for name in models)
    sizes = f"batch {practice.batch_size}, groups of {practice.group_size}"
    at = f" @ {config.policy.base_url}" if config.policy.base_url else ""
    model = f"{config.policy.model}{at}, temperature {practice.temperature:g}"
    critic = f"; lessons by {config.reflector.model}" if config.reflector is not None else ""
    tested = config.evaluation.data if config.evaluation.do_eval else ()
    rows = (
        ("data", f"{config.data.practice} ({count_text(len(plan.problems), 'problem')}); {sizes}, "
                 f"epochs {practice.epochs}; {plan.sampler.total_steps} steps, seed {config.seed}"),
        ("model", f"{model}, {practice.concurrency} at a time{critic}"
                  + ("" if costs else "  (no model that costs is asked)")),
        ("judged", config.verifier.name + (f"; measured on {', '.join(tested)}" if tested else "")),
        ("review", _REVIEWERS.get(plan.reviewer, plan.reviewer)),
        ("budget", limits_text(limits) if limits else "no limit"),
    )  # fmt: skip
    mode, notes = ("beside", (beside, *notes)) if beside else (plan.mode, notes)
    return RunFacts(plan.run.run, mode, costs, rows, notes)


def _preflight_checks(path: Path) -> list[Check]:
    from studio.workspace.machine import basic_findings, machine_facts

    try:
        known = machine_facts(path)
        troubles = [t for t in basic_findings(path, known) if t.place != "process"]
    except (OSError, StudioError) as error:
        return [Check(False, str(error))]
    free = Check(True, f"{known['free_bytes'] / 1e9:.1f} GB free for the workspace")
    said = [Check(False, f"{t.place}: {t.cause} {t.move}") for t in troubles]
    return said or [free]
