"""The stages of `studio train`: fine-tuning, practice, both, distilling, and a reward model.

Each stage is a run of its own, so that it is resumed, shown and measured like any other. Of several
one that is done is not repeated, and the next begins only after it. A reward model is kept in the
folder of the run whose verdicts it learned.
"""

from typing import TYPE_CHECKING, Any, Literal

from engines.core.errors import ConfigError, ConflictError
from engines.record.derived.run_state import read_history
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir, Workspace
from studio import exit_codes
from studio.config.loading import LoadedRun
from studio.estimate.cost import tell_estimate
from studio.exit_codes import run_exit_code
from studio.facts.next_command import command_after_run
from studio.render.json import print_result
from studio.render.lines import tell_next, to_stderr
from studio.run.assemble import training_warnings
from studio.run.headless import run_headless
from studio.run.models import REWARD_MODEL, LocalModels, is_local
from studio.run.new_or_resume import RunPlan, RunRequest, load_plan
from studio.training.demonstrations import write_demonstrations
from studio.training.distillation import tell_effect_left

if TYPE_CHECKING:
    from engines.policies.hf_local.reward_head import JudgedAnswer


LEAST_GROUPS = 10
"""In which one try was better: with fewer nothing would be left to measure on."""


def train_reward_model(loaded: LoadedRun, workspace: Workspace, run: RunDir, *, json: bool) -> int:
    """Fit, measure on groups that were held back, fit to all, and keep.

    Raises ConflictError: the run has too few groups in which one try was better.
    """
    if not is_local(loaded.config.policy.model):
        cause = "a reward model is a head on a model whose weights are here."
        move = "Add policy.model=hf:PATH_OR_NAME; hf:tiny is bundled."
        raise ConfigError(loaded.place("policy.model"), cause, move)
    rows = [row for row in _judged_answers(run) if row.answer]
    rewards: dict[int, set[float]] = {}
    for row in rows:
        rewards.setdefault(row.group, set()).add(row.reward)
    contrasts = sum(len(different) > 1 for different in rewards.values())
    if contrasts < LEAST_GROUPS:
        cause = f"{contrasts} of its groups have a try that was better than another."
        move = f"Practise until there are {LEAST_GROUPS}, or name another run with --name."
        raise ConflictError(f"run {run.run}", cause, move)
    local = LocalModels(loaded.config, to_stderr).open(loaded.config.policy).local
    from engines.policies.hf_local.reward_head import learn

    head, agrees, pairs = learn(local, rows)
    card: dict[str, Any] = {
        "run": run.run,
        "model": loaded.config.policy.model,
        "answers": len(rows),
        "groups": contrasts,
        "held_out_pairs": pairs,
        "held_out_agreement": round(agrees, 4),
    }
    folder = run.path / REWARD_MODEL
    head.save(folder, card)
    text = (
        f"reward model of run {run.run}: {len(rows)} answers, {contrasts} groups with a "
        f"better one\nordered right, of pairs held back: {agrees:.3f} (n={pairs})\n"
        f"folder   {folder}\nuse it: verifier.name=reward_model verifier.folder=run:{run.run}"
    )
    print_result({**card, "folder": str(folder)}, text, json=json)
    return exit_codes.DONE


def _judged_answers(run: RunDir) -> "list[JudgedAnswer]":
    from engines.policies.hf_local.reward_head import JudgedAnswer

    numbers: dict[tuple[int, int], int] = {}
    found = []
    for rollout in read_history(run.journal).rollouts:
        done, verdict = rollout.finished, rollout.verdict
        if verdict is None or verdict.reward is None or done.status == "failed":
            continue
        messages = read_trajectory(run.records, done.refs)
        group = numbers.setdefault((done.step, done.position), len(numbers))
        asked = next((m.content for m in messages if m.role == "user" and not m.speaker), "")
        answer = next((m.content for m in reversed(messages) if m.role == "assistant"), "")
        found.append(JudgedAnswer(asked, answer, verdict.reward, group))
    return found


Stage = Literal["grpo", "sft", "all", "distil", "reward"]


async def train(asked: RunRequest, stage: Stage, *, json: bool) -> int:
    """Carry out one stage, or fine-tuning and then practice; returns the exit code.

    Raises StudioError: the run file says nothing that can be trained, or a stage cannot begin.
    """
    loaded = asked.load()
    match stage:
        case "grpo":
            _check_trains(loaded)
            return await _run_plan(load_plan(asked, loaded=loaded), json)
        case "sft":
            tuning = tuning_request(asked, loaded, "sft")
            return await _run_plan(load_plan(tuning), json)
        case "distil":
            return await _distil(asked, loaded, json)
        case "reward":
            named = asked.name or loaded.config.exp_id
            run = asked.workspace.newest_run(named)
            if run is None:
                move = "Practise first: studio headless, or studio train."
                raise ConflictError(f"--stage reward {named}", "there is no such run.", move)
            return train_reward_model(loaded, asked.workspace, run, json=json)
        case "all":
            return await _train_all(asked, loaded, json)


async def _train_all(asked: RunRequest, loaded: LoadedRun, json: bool) -> int:
    _check_trains(loaded)
    if asked.restart_step not in (None, "null", "0"):
        cause = "it would count the steps of two runs, of which each has its own."
        move = "Give 0 to start both afresh, or restart one: --stage sft or --stage grpo."
        raise ConfigError(f"--restart-step {asked.restart_step}", cause, move)
    if loaded.config.data.practice is not None:
        loaded.data_path(loaded.config.data.practice)  # else only stage grpo would miss it
    tuning = tuning_request(asked, loaded, "sft")
    plan = load_plan(tuning)
    code = await _run_stage("sft", plan, json)
    if not _is_finished(plan):
        to_stderr(f"stage sft is not done (run {plan.run.run}): practice does not begin")
        _tell_next(asked, plan, json)
        return code
    practice = asked.with_overrides(asked.name, f"policy.adapter=run:{plan.run.run}")
    to_stderr(f"stage grpo: practice begins with the adapter of run {plan.run.run}")
    return await _run_plan(load_plan(practice), json) or code


def _on_own_run(asked: RunRequest, loaded: LoadedRun) -> RunRequest:
    """Of an alternating run file that names no source: what its newest run learned, both kinds."""
    config = loaded.config
    if config.practice.algorithm != "both" or config.sft.data is not None:
        return asked
    run = asked.workspace.newest_run(config.exp_id)
    if run is None:
        move = "Train it first: studio train without a stage."
        raise ConflictError(f"--stage distil {config.exp_id}", "there is no such run.", move)
    own = f"run:{run.run}"
    return asked.with_overrides(asked.name, f"sft.data={own}", f"policy.adapter={own}")


async def _distil(asked: RunRequest, loaded: LoadedRun, json: bool) -> int:
    if not loaded.config.evaluation.data:
        cause = "nothing is held out, so what is left of the library could not be measured."
        raise ConfigError(loaded.place("evaluation.data"), cause, "Set evaluation.data=NAME.")
    asked = _on_own_run(asked, loaded)
    loaded = asked.load()
    tuning = tuning_request(asked, loaded, "distil")
    plan = load_plan(tuning)
    code = await _run_stage("distil", plan, json)
    if _is_finished(plan):
        await tell_effect_left(asked.workspace, plan.loaded, plan.run, json=json)
    _tell_next(asked, plan, json)
    return code


def _tell_next(asked: RunRequest, plan: RunPlan, json: bool) -> None:
    if not json:
        tell_next(command_after_run(plan.run.state()), asked.workspace.path)


async def _run_plan(plan: RunPlan, json: bool, *, tells_next: bool = True) -> int:
    for warning in training_warnings(plan.loaded.config):
        to_stderr(f"warning: {warning}")
    return await run_headless(plan, json=json, tell_estimate=tell_estimate, tells_next=tells_next)


async def _run_stage(stage: Stage, plan: RunPlan, json: bool) -> int:
    """Carry out a stage before the next one; prints a line where it is done already."""
    if plan.mode != "finished":
        to_stderr(f"stage {stage}: run {plan.run.run}")
        return await _run_plan(plan, json, tells_next=False)
    assert plan.state is not None
    to_stderr(f"stage {stage} is done (run {plan.run.run}): it is not repeated")
    return run_exit_code(plan.state)


def _is_finished(plan: RunPlan) -> bool:
    """Whether every step is done; a run that was stopped early has ended, but is not."""
    state = plan.run.state()
    return state.status == "finished" and state.steps_finished == plan.sampler.total_steps


def _check_trains(loaded: LoadedRun) -> None:
    algorithm = loaded.config.practice.algorithm
    if algorithm not in ("grpo", "both"):
        cause = f"practice.algorithm is {algorithm}, which this stage does not carry out."
        move = (
            "Set practice.algorithm=grpo or both; studio headless practises without weights, and "
            "--stage sft fine-tunes."
        )
        raise ConfigError(loaded.place("practice.algorithm"), cause, move)


def tuning_request(
    asked: RunRequest, loaded: LoadedRun, stage: Literal["sft", "distil"]
) -> RunRequest:
    """The fine-tuning stage as a run file: the same one, on demonstrations.

    What is distilled is learnt and measured without any library, its own included.
    """
    config = loaded.config
    if not is_local(config.policy.model):
        cause = "training needs a policy whose weights are here."
        move = "Set policy.model=hf:PATH_OR_NAME; hf:tiny is bundled."
        raise ConfigError(loaded.place("policy.model"), cause, move)
    if config.sft.data is None:
        cause = "the stage needs demonstrations, and sft.data names none."
        move = (
            "Set sft.data=NAME (a data set with a field solution), or sft.data=run:RUN for the "
            "verified rollouts of a run."
        )
        raise ConfigError(loaded.place("sft.data"), cause, move)
    if stage == "distil" and not config.sft.data.startswith("run:"):
        cause = "what a library achieved is in the rollouts of a run."
        move = "Set sft.data=run:RUN, of a run that practised with a library."
        raise ConfigError(loaded.place("sft.data"), cause, move)
    name = f"{config.exp_id}-{stage}"
    alone = []
    if stage == "distil":  # learnt and measured without any library, its own included
        alone = ["library.name=null", "library.start=empty", "evaluation.do_eval=true"]
        alone += ["agent.experiences=[]"] if config.agent.experiences else []
    data = write_demonstrations(asked.workspace, loaded, name, with_library=stage == "distil")
    return asked.with_overrides(
        name,
        "practice.algorithm=sft",
        f"practice.epochs={config.sft.epochs}",
        f"practice.batch_size={config.sft.batch_size}",
        "data.truncate=null",
        f"data.practice={data}",
        *alone,
    )
