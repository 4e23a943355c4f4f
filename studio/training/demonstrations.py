"""Demonstrations of a fine-tuning stage: from a file or from a run, as one data set.

Owns which rollouts of a run are taken. A library in their prompts is left out, so that the policy
learns to do without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.core import events as ev
from engines.core.codec import dumps
from engines.core.errors import ConflictError
from engines.core.ids import digest_bytes
from engines.core.types import Message, Problem, rollout_id
from engines.data.dataset import read_problems
from engines.grpo.loss.sft_data import (
    Demonstration,
    demonstration_row,
    read_demonstrations,
    without_guidance,
)
from engines.pipeline.replay_training import HistorySegment, load_history
from engines.record.appender import make_folder, write_atomic
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir, Workspace
from studio.config.loading import LoadedRun, load_run
from studio.report.progress import to_stderr

_ID_CHARS = 8


@dataclass(slots=True)
class _Step:
    number: int
    problems: tuple[str, ...]
    guidance: str  # of the library in its prompts; "" without one
    finished: dict[tuple[int, int], ev.RolloutFinished] = field(default_factory=dict)
    rewards: dict[tuple[int, int], float] = field(default_factory=dict)


def write_demonstrations(
    workspace: Workspace, loaded: LoadedRun, name: str, *, with_library: bool = False
) -> str:
    """Write what `sft.data` names below `datasets/`, and return the data set's name.

    The name begins with `name` and ends with a digest of the content, so that a run that is
    resumed finds the same data. With `with_library` only rollouts of a run are taken whose prompts
    held experiences.

    Raises:
        DataError: a row cannot be used, by file and line.
        ConflictError: no rollout of the run is good enough.
        StudioError: the run or the file cannot be found or read.
    """
    data = loaded.config.sft.data or ""
    kind, _, run = data.partition(":")
    if kind == "run":
        found, about = _run_demonstrations(
            workspace, loaded, workspace.run(run), with_library=with_library
        )
    else:
        source = loaded.data_path(data, "sft.data")
        found = list(read_demonstrations(source))
        about = f"{len(found)} from {source}"
    question = loaded.config.data.fields.get("question", "question")
    answer = loaded.config.data.fields.get("answer", "answer")
    rows = []
    for row in map(demonstration_row, found):
        named = {{"question": question, "answer": answer}.get(key, key): row[key] for key in row}
        rows.append(loaded.mask.line(dumps(named)) + b"\n")
    text = b"".join(rows)
    name = f"{name}-{digest_bytes(text)[:_ID_CHARS]}"
    path = workspace.datasets / f"{name}.jsonl"
    make_folder(path.parent)
    if not path.exists():
        write_atomic(path, text)
    to_stderr(f"demonstrations: {about} ({path})")
    if all(one.reply == one.answer for one in found):
        to_stderr(
            "warning: their replies are bare answers without steps, so bare answers are learnt"
        )
    return name


def _run_demonstrations(
    workspace: Workspace, loaded: LoadedRun, run: RunDir, *, with_library: bool
) -> tuple[list[Demonstration], str]:
    """Every reply of the verified rollouts of a run, and a line that counts them."""
    theirs = load_run(str(run.run_file), [], workspace.path, keyless=True)
    exact = theirs.config.policy.model == loaded.config.policy.model
    if theirs.config.data.practice is None:
        raise ConflictError(
            f"run {run.run}", "it practised on nothing.", "Name another run in sft.data."
        )
    problems = {
        problem.id: problem
        for problem in read_problems(
            theirs.data_path(theirs.config.data.practice),
            fields=theirs.config.data.fields,
            needs_answer=False,
        )
    }
    least = loaded.config.sft.min_reward
    found: dict[tuple[Any, ...], Demonstration] = {}
    right = judged = 0
    for segment in load_history(run, workspace):
        for step in _read_steps(workspace, segment):
            if with_library and not step.guidance:
                continue
            judged += len(step.rewards)
            for place, done, problem in _verified_rollouts(step, problems, least):
                right += 1
                for shown in _read_replies(
                    segment.records, step.guidance, place, done, problem, exact=exact
                ):
                    # One prompt and reply counts once, however often it was drawn.
                    asked = tuple((m.role, m.content) for m in shown.messages)
                    found.setdefault((asked, shown.reply), shown)
    what = "rollouts with a library in their prompt" if with_library else "rollouts"
    if not found:
        none = f"none of its {judged} judged {what} has a reward of {least:g} or more."
        raise ConflictError(
            f"run {run.run}",
            none if judged else f"it has no judged {what}.",
            "Practise longer, lower sft.min_reward, or name another run in sft.data.",
        )
    about = (
        f"{len(found)} different replies of {right} of {judged} judged {what} of run {run.run} "
        f"(reward {least:g} or more)"
    )
    if not exact:
        about += f", as text: their tokens are those of {theirs.config.policy.model}"
    return list(found.values()), about


def _verified_rollouts(
    step: _Step, problems: Mapping[str, Problem], least: float
) -> Iterator[tuple[str, ev.RolloutFinished, Problem]]:
    """Rollouts that ended by themselves with a reward of `least` or more, by id."""
    for (position, index), reward in sorted(step.rewards.items()):
        done = step.finished.get((position, index))
        problem = problems.get(step.problems[position])
        if problem is None:
            raise ConflictError(
                f"step {step.number}",
                f"it practised on problem {step.problems[position]}, which is not in the data any "
                "more.",
                "Put the run's data set back as it was.",
            )
        if reward >= least and done is not None and done.status == "ok":
            yield rollout_id(step.number, position, index), done, problem


def _read_replies(
    records: Path,
    guidance: str,
    place: str,
    done: ev.RolloutFinished,
    problem: Problem,
    *,
    exact: bool,
) -> Iterator[Demonstration]:
    """Each reply of a rollout, with the prompt that it would have had without a library."""
    messages: tuple[Message, ...] = ()
    for ref in done.refs:
        record = read_record(records, ref)
        asked = (*messages[: record.base], *record.messages)
        messages = (*asked, record.reply.as_message())
        yield Demonstration(
            problem.question,
            record.reply.text,
            _strip_guidance(asked, guidance, place),
            record.reply.token_ids if exact else (),
            problem.answer,
            place,
        )


def _strip_guidance(messages: Sequence[Message], guidance: str, place: str) -> tuple[Message, ...]:
    try:
        return without_guidance(messages, guidance)
    except ValueError:
        raise ConflictError(
            f"rollout {place}",
            "its prompt does not hold the library's text as it is now, so it cannot be taken out.",
            "Name another run in sft.data.",
        ) from None


def _read_steps(workspace: Workspace, segment: HistorySegment) -> list[_Step]:
    """The steps of a run's own journal, in order."""
    steps: dict[int, _Step] = {}
    library = ""
    for event in segment.own_events():
        match event:
            case ev.RunStarted():
                library = event.library
            case ev.StepStarted():
                guidance = workspace.library(library).at(event.library_version).guidance()
                steps[event.step] = _Step(event.step, event.problems, guidance)
            case ev.RolloutFinished():
                steps[event.step].finished[event.position, event.index] = event
            case ev.RolloutJudged(verdict=verdict) if verdict.reward is not None:
                steps[event.step].rewards[event.position, event.index] = verdict.reward
    return [steps[number] for number in sorted(steps)]
