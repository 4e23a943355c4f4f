"""What `studio try` prints: the prompt, the reply as it streams, the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from engines.core.codec import to_dict
from engines.core.text.tool_text import count_acts
from engines.record.cassette import is_played
from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.config.scripted import played_note, rehearsal_note
from studio.evaluation.try_problem import Trial, TrialResult, exit_code, run_trial
from studio.render.json import print_result
from studio.render.rollout_lines import streamed_text
from studio.render.words import count_text, metrics_text, try_acts_text, usage_text
from studio.secrets.sanitize import sanitize


def print_trials(trials: Mapping[str, Trial], workspace: Workspace, *, json: bool) -> int:
    """Run them in order, each under its name, and print what they come to; the worst exit code."""
    code, facts, came = exit_codes.DONE, {}, list[str]()
    for name, trial in trials.items():
        if json:
            tried = asyncio.run(run_trial(trial, workspace))
        else:
            head = f"== {name}\n" if name else ""
            shown = partial(print, head + before_text(trial), flush=True)
            tried = asyncio.run(run_trial(trial, workspace, print_piece, shown))
            print(after_text(trial, tried))
        facts[name] = trial_data(trial, tried)
        came.append(f"{name} {verdict_text(trial, tried).partition(' [')[0]}")
        code = max(code, exit_code(tried))
    if json:
        print_result(facts.get("", facts), "", json=True)
    elif len(trials) > 1:
        print("==", ", ".join(came))
    return code


def before_text(trial: Trial) -> str:
    """What is asked: the problem, the source of the experiences, every message."""
    problem = trial.problem
    note, adapter = rehearsal_note(trial.loaded.config), trial.loaded.config.policy.adapter
    lines = [note] if note and trial.rehearsal else []
    lines += filter(None, [played_note(trial.loaded.tape)])
    count = len(trial.library.experiences) if trial.library else 0
    lines += [
        f"problem  {problem.id}  {sanitize(problem.source)}".rstrip(),
        f"model    {sanitize(trial.loaded.config.policy.model)}"
        f"{f' with adapter {sanitize(adapter)}' if adapter else ''}",
        f"library  {sanitize(trial.called)} ({count_text(count, 'experience')})",
        *(f"\n[{message.role}]\n{sanitize(message.content)}" for message in trial.messages),
    ]
    return "\n".join([*lines, "", "[reply]"])


def after_text(trial: Trial, tried: TrialResult) -> str:
    """The result; the reply again only where it differs from what was streamed."""
    attempt = tried.rollout.attempt
    lines = [""]
    if attempt.answer is not None and attempt.answer != tried.streamed[-len(attempt.answer) :]:
        again = ["[whole reply]"] if tried.streamed else []
        lines += [*again, sanitize(attempt.answer), ""]
    if attempt.status != "ok":
        lines.append(f"status   {attempt.status}: {sanitize(attempt.error or 'cut at max_tokens')}")
    if acted := try_acts_text(*count_acts(attempt.messages)):
        lines.append(f"acted    {acted}")
    lines += [
        f"truth    {sanitize(' or '.join(trial.problem.accepted_answers)) or '(none)'}",
        f"verdict  {verdict_text(trial, tried)}",
        f"spent    {usage_text(attempt.usage + tried.verdict.usage)} in {attempt.elapsed_s:.2f} s",
    ]
    return "\n".join(lines)


def verdict_text(trial: Trial, tried: TrialResult) -> str:
    verdict = tried.verdict
    if verdict.reward is None:
        if verdict.error or tried.has_failed:
            return f"could not be judged: {sanitize(verdict.error or 'no reason given')}"
        if trial.problem.answer is None:
            return "not judged: the problem has no answer to compare with"
        return "not judged: the verifier has no opinion"
    critique = f"  ({sanitize(verdict.critique)})" if verdict.critique else ""
    return f"reward {verdict.reward:g}{metrics_text(verdict.metrics)}{critique}"


def trial_data(trial: Trial, tried: TrialResult) -> dict[str, Any]:
    attempt, verdict = tried.rollout.attempt, tried.verdict
    turns, calls, failed = count_acts(attempt.messages)
    return {
        "rehearsal": trial.rehearsal,
        "cassette": is_played(trial.loaded.tape),
        "model": trial.loaded.config.policy.model,
        "problem": to_dict(trial.problem),
        "library": trial.called,
        "experiences": [e.id for e in trial.library.experiences] if trial.library else [],
        "messages": [to_dict(message) for message in trial.messages],
        "reply": attempt.answer,
        "status": attempt.status,
        "error": attempt.error,
        "reward": verdict.reward,
        "critique": verdict.critique,
        "metrics": dict(verdict.metrics),
        "unjudged": verdict.error,
        "usage": to_dict(attempt.usage + verdict.usage),
        "judge_usage": to_dict(verdict.usage),
        "elapsed_s": attempt.elapsed_s,
        "turns": turns,
        "tool_calls": calls,
        "failed_calls": failed,
    }


def print_piece(text: str) -> None:
    """Print a piece of a reply as it comes, with control characters escaped."""
    print(streamed_text(text), end="", flush=True)
