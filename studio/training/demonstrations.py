"""Demonstrations of a fine-tuning stage: from a file or from a run, as one data set.

A library in the prompts of a run is left out, so that the policy learns to do without it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.core.codec import digest_bytes, dumps
from engines.core.errors import ConflictError
from engines.core.library import Library
from engines.core.state.run_state import RolloutHistory, StepHistory
from engines.core.types import Message, Problem
from engines.data.dataset import read_problems
from engines.grpo.loss import sft_data
from engines.pipeline.replay_training import HistorySegment, load_history
from engines.policies.tool_use import as_text, spell_calls
from engines.record import appender, ledger
from engines.record.run_dir import RunDir, Workspace
from studio.config.loading import LoadedRun, load_run
from studio.render.lines import to_stderr

_ID_CHARS = 8
FULL_REWARD = 1.0
"""Of the rollouts that are learnt from."""


def write_demonstrations(
    workspace: Workspace, loaded: LoadedRun, name: str, *, with_library: bool = False
) -> str:
    """Write what `sft.data` names below `datasets/`, and return the data set's name.

    The name begins with `name` and ends with a digest of the content, so that a run that is
    resumed finds the same data. With `with_library` only rollouts of a run are taken whose prompts
    held experiences.

    Raises DataError: a row cannot be used, by file and line. ConflictError: no rollout of the run
    is good enough. StudioError: the run or the file cannot be found or read.
    """
    data, names = loaded.config.sft.data or "", loaded.config.data.fields
    kind, _, run = data.partition(":")
    if kind == "run":
        source = workspace.run(run)
        found, about = _run_demonstrations(workspace, loaded, source, with_library=with_library)
    else:
        file = loaded.data_path(data, "sft.data")
        found = list(sft_data.read_demonstrations(file))
        about = f"{len(found)} from {file}"
    rows = (
        {names.get(key, key): value for key, value in sft_data.demonstration_row(shown).items()}
        for shown in found
    )
    text = b"".join(loaded.mask.line(dumps(row)) + b"\n" for row in rows)
    name = f"{name}-{digest_bytes(text)[:_ID_CHARS]}"
    path = workspace.datasets / f"{name}.jsonl"
    appender.make_folder(path.parent)
    if not path.exists():
        appender.write_atomic(path, text)
    to_stderr(f"demonstrations: {about} ({path})")
    if all(one.reply == one.answer for one in found):
        to_stderr(
            "warning: their replies are bare answers without steps, so bare answers are learnt"
        )
    return name


def _run_demonstrations(
    workspace: Workspace, loaded: LoadedRun, run: RunDir, *, with_library: bool
) -> tuple[list[sft_data.Demonstration], str]:
    """Every reply of the verified rollouts of a run, and a line that counts them."""
    theirs = load_run(str(run.run_file), [], workspace.path, keyless=True)
    exact = theirs.config.policy.model == loaded.config.policy.model
    data = theirs.config.data
    if data.practice is None:
        raise ConflictError(
            f"run {run.run}", "it practised on nothing.", "Name another run in sft.data."
        )
    read = read_problems(theirs.data_path(data.practice), fields=data.fields, needs_answer=False)
    problems = {problem.id: problem for problem in read}
    least = FULL_REWARD
    found: dict[tuple[Any, ...], sft_data.Demonstration] = {}
    right = judged = 0
    for segment in load_history(run, workspace):
        for step, library, cite in _read_steps(workspace, segment):
            if with_library and not library.experiences:
                continue
            judged += sum(reward is not None for reward in step.rewards.values())
            for rollout, problem in _verified_rollouts(step, problems, least):
                right += 1
                guidance = library.guidance(cite, rollout.finished.shown)
                for shown in _read_replies(segment.records, guidance, rollout, problem, exact):
                    # One prompt and reply counts once, however often it was drawn.
                    asked = tuple((m.role, m.content) for m in shown.messages)
                    found.setdefault((asked, shown.reply), shown)
    what = "rollouts with a library in their prompt" if with_library else "rollouts"
    if not found:
        none = f"none of its {judged} judged {what} has a reward of {least:g} or more."
        raise ConflictError(
            f"run {run.run}",
            none if judged else f"it has no judged {what}.",
            "Practise longer, or name another run in sft.data.",
        )
    verified = f"{right} of {judged} judged {what} of run {run.run} (reward {least:g} or more)"
    as_text = "" if exact else f", as text: their tokens are those of {theirs.config.policy.model}"
    return list(found.values()), f"{len(found)} different replies of {verified}{as_text}"


def _verified_rollouts(
    step: StepHistory, problems: Mapping[str, Problem], least: float
) -> Iterator[tuple[RolloutHistory, Problem]]:
    """Rollouts that ended by themselves with a reward of `least` or more, with their problem."""
    for (position, _), rollout in sorted(step.rollouts.items()):
        if rollout.reward is None:
            continue
        name = step.problems[position]
        if name not in problems:
            raise ConflictError(
                f"step {step.step}",
                f"it practised on problem {name}, which is not in the data any more.",
                "Put the run's data set back as it was.",
            )
        if rollout.reward >= least and rollout.finished.status == "ok":
            yield rollout, problems[name]


def _read_replies(
    records: Path, guidance: str, rollout: RolloutHistory, problem: Problem, exact: bool
) -> Iterator[sft_data.Demonstration]:
    """Each reply of a rollout, with the prompt that it would have had without a library."""
    messages: tuple[Message, ...] = ()
    for ref in rollout.finished.refs:
        record = ledger.read_record(records, ref)
        messages = record.extend(messages)
        if record.is_tool_result:
            continue
        asked = messages[:-1]
        try:
            bare = sft_data.without_guidance(asked, guidance)
        except ValueError:
            raise ConflictError(
                f"rollout {rollout.id}",
                "its prompt does not hold the library's text as it is now, so it cannot be "
                "taken out.",
                "Name another run in sft.data.",
            ) from None
        reply = record.reply
        text, ids = reply.text, reply.token_ids if exact else ()
        if tools := record.sampling.tools:  # as a model whose weights are here is asked
            bare, text = as_text(bare, tools), spell_calls(text, reply.tool_calls)
        yield sft_data.Demonstration(problem.question, text, bare, ids, problem.answer, rollout.id)


def _read_steps(
    workspace: Workspace, segment: HistorySegment
) -> Iterator[tuple[StepHistory, Library, bool]]:
    """The steps of a run's own journal, with their library and whether prompts ask to cite it."""
    history = segment.history()
    for _, step in sorted(history.steps.items()):
        if step.started is not None and history.started is not None:
            library = workspace.library(history.started.library)
            cite = bool(history.settings.get("agent.cite"))
            yield step, library.at(step.started.library_version), cite
