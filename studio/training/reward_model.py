"""Stage `reward`: a reward model from the verdicts of a run, kept in the run's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engines.core.errors import ConfigError, ConflictError
from engines.record.ledger import read_trajectory
from engines.record.run_dir import RunDir, Workspace
from engines.record.step_history import read_history
from studio import exit_codes
from studio.config.loading import LoadedRun
from studio.render.json import print_result
from studio.render.lines import to_stderr
from studio.run.models import LocalModels, is_local
from studio.run.verifier import REWARD_MODEL

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


def _judged_answers(run: RunDir) -> list[JudgedAnswer]:
    from engines.policies.hf_local.reward_head import JudgedAnswer

    numbers: dict[tuple[int, int], int] = {}
    found = []
    for rollout in read_history(run).rollouts:
        done, verdict = rollout.finished, rollout.verdict
        if verdict is None or verdict.reward is None or done.status == "failed":
            continue
        messages = read_trajectory(run.records, done.refs)
        group = numbers.setdefault((done.step, done.position), len(numbers))
        asked = next((m.content for m in messages if m.role == "user" and not m.speaker), "")
        answer = next((m.content for m in reversed(messages) if m.role == "assistant"), "")
        found.append(JudgedAnswer(asked, answer, verdict.reward, group))
    return found
