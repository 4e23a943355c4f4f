"""One problem from prompt to verdict: what `studio try` does.

Its records go to a temporary folder, so that a try leaves no trace in the workspace.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engines.agents.loops import first_messages
from engines.core.codec import call_seed, digest, fix_surrogates, to_dict
from engines.core.errors import ConfigError
from engines.core.library import Library
from engines.core.text.tool_text import count_acts
from engines.core.types import CallKey, Job, Message, Problem, Rollout, Verdict
from engines.data import dataset, fields
from engines.pipeline.evaluation.evaluate import add_own_figures
from engines.policies.limits import Slots
from engines.record.cassette import is_played, open_cassette
from engines.record.ledger import RecordLedger
from engines.record.run_dir import RunDir, Workspace
from engines.verifiers.open import asks_judge, needs_answer
from studio import exit_codes
from studio.config.loading import LoadedRun, load_run
from studio.config.scripted import is_rehearsal, played_note, rehearsal_note
from studio.config.settings.run import RunConfig
from studio.render import run_lines, words
from studio.render.json import print_result
from studio.render.lines import to_stderr
from studio.run.held_out import prompt_writer
from studio.run.library import choose_library
from studio.run.models import make_rollouts, open_roles, open_run_verifier
from studio.secrets.sanitize import sanitize

KEY = CallKey("rollout", epoch=1, step=1, position=0, index=0)
"""The first rollout that a run makes, so that a try has the same seed."""


@dataclass(frozen=True)  # without slots, for what is worked out once
class Trial:
    """What is to be tried. `library` None: no experiences are in the prompt."""

    loaded: LoadedRun
    problem: Problem
    library: Library | None
    called: str  # a label for where the experiences come from

    @cached_property
    def job(self) -> Job:
        writer = prompt_writer(self.loaded.config)
        guidance, shown = writer.write(self.library, self.problem.question)
        version = self.library.version if self.library else 0
        return Job(self.problem, guidance, KEY, 0, version, shown)

    @property
    def messages(self) -> tuple[Message, ...]:
        instructions = self.loaded.config.agent.instructions
        return first_messages(instructions, self.job)

    @property
    def rehearsal(self) -> bool:
        """Whether the reply is scripted; the reflector does not matter, since it is not asked."""
        return is_rehearsal(without_lessons(self.loaded.config))


@dataclass(frozen=True, slots=True)
class TrialResult:
    rollout: Rollout
    verdict: Verdict
    streamed: str

    @property
    def has_failed(self) -> bool:
        return self.rollout.attempt.status == "failed"


def choose_problem(
    loaded: LoadedRun, problem_id: str | None, question: str | None, answer: str | None
) -> Problem:
    """The problem to try: the typed one, the one of an id, else the first of the data.

    Raises ConfigError: the options contradict each other, or no problem has the id. DataError: the
    data cannot be read.
    """
    if question is not None:
        if problem_id is not None:
            raise ConfigError("--problem", "--question gives another one.", "Leave one out.")
        if not question.strip():
            raise ConfigError("--question", "it is empty.", "Write the question.")
        for option, text in (("--question", question), ("--answer", answer or "")):
            if text != fix_surrogates(text):
                raise ConfigError(option, "it holds bytes that are not UTF-8.", "Write it anew.")
        truth = (answer or "").strip() or None
        return Problem(digest([question, truth], fields.ID_BYTES), question.strip(), truth, "typed")
    if answer is not None:
        raise ConfigError("--answer", "it belongs to --question.", "Give both, or neither.")
    config = loaded.config
    if config.data.practice is None:
        move = "Set it, or give --question."
        raise ConfigError(loaded.place("data.practice"), "no data set is named.", move)
    problems = dataset.read_problems(
        loaded.data_path(config.data.practice),
        fields=config.data.fields,
        needs_answer=config.practice.given_ground_truth and needs_answer(config.verifier.spec),
        limit=1 if problem_id is None else None,
    )
    return problems[0] if problem_id is None else _find_problem(loaded, problems, problem_id)


async def run_trial(
    trial: Trial,
    workspace: Workspace,
    on_text: Callable[[str], None] = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
) -> TrialResult:
    """Roll out and judge; `on_start` is called once model and verifier have answered.

    Raises PolicyError: the model, or the judge where one is asked, does not answer at all.
    VerifierError: the verifier cannot be loaded; nothing has been spent.
    """
    config = without_lessons(trial.loaded.config)
    streamed: list[str] = []

    def on_piece(text: str) -> None:
        streamed.append(text)
        on_text(text)

    async with AsyncExitStack() as stack:
        tape = open_cassette(
            *(trial.loaded.tape, "a try", stack, trial.loaded.mask, to_stderr), resumes=False
        )
        roles = open_roles(config, stack, cassette=tape)
        stack.callback(roles.tell_strays, to_stderr)
        folder = stack.enter_context(TemporaryDirectory(prefix="studio-try-"))
        roles.acting.folder = Path(folder) / "programs"
        ledger = RecordLedger(Path(folder), config.seed, mask=trial.loaded.mask)
        stack.push_async_callback(ledger.aclose)
        slots, judged = Slots(1), ((trial.problem,),)
        verifier = open_run_verifier(
            trial.loaded, workspace, roles, ledger, slots, sets=judged, stack=stack
        )
        await verifier.check()
        await roles.ping()
        for said in (await roles.acting.check()).get("absent", ()):
            to_stderr(said)
        on_start()
        attempt, _ = await make_rollouts(config, roles, ledger, slots).roll_out(trial.job, on_piece)
        rollout = Rollout.from_job(trial.job, attempt, call_seed(config.seed, KEY))
        (verdict,) = await verifier.verify(trial.problem, (rollout,))
    return TrialResult(rollout, add_own_figures(verdict, rollout), "".join(streamed))


def without_lessons(config: RunConfig) -> RunConfig:
    """Without the roles that neither a try nor an evaluation asks."""
    asked = asks_judge(config.verifier.spec)
    return config.model_copy(
        update={
            "reflector": None,
            "judge": config.judge if asked else None,
            "lint": replace(config.lint, embedding=None),
        }
    )


def _find_problem(loaded: LoadedRun, practised: Sequence[Problem], problem_id: str) -> Problem:
    """By id, among what is practised on and then what is held out."""
    config = loaded.config
    paths = (loaded.data_path(name, "evaluation.data") for name in config.evaluation.data)
    held_out = (dataset.read_problems(path, fields=config.data.fields) for path in paths)
    found = next((p for p in chain(practised, *held_out) if p.id == problem_id), None)
    if found is None:
        cause = f"no problem of {config.data.practice} has this id."
        move = f"See `studio data preview {config.data.practice}` for ids."
        raise ConfigError(f"--problem {problem_id}", cause, move)
    return found


def exit_code(tried: TrialResult) -> int:
    """A problem without an answer has no verdict, which is no loss."""
    return exit_codes.WITH_LOSSES if tried.has_failed or tried.verdict.error else exit_codes.DONE


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
        f"library  {sanitize(trial.called)} ({words.count_text(count, 'experience')})",
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
    if acted := words.try_acts_text(*count_acts(attempt.messages)):
        lines.append(f"acted    {acted}")
    spent = attempt.usage + tried.verdict.usage
    lines += [
        f"truth    {sanitize(' or '.join(trial.problem.accepted_answers)) or '(none)'}",
        f"verdict  {verdict_text(trial, tried)}",
        f"spent    {words.usage_text(spent)} in {attempt.elapsed_s:.2f} s",
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
    return f"reward {verdict.reward:g}{words.metrics_text(verdict.metrics)}{critique}"


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
    print(run_lines.streamed_text(text), end="", flush=True)


def suggest_problem(
    loaded: LoadedRun, workspace: Workspace, given: str | None, name: str
) -> str | None:
    """Of the problems of the data one that an experience was drawn from; None: none is known."""
    library, _ = choose_library(loaded, workspace, given)
    experience = library.get(name) if library is not None else None
    if experience is None or not experience.history or loaded.config.data.practice is None:
        return None
    mark = experience.history[0]
    run = workspace.runs_folder / mark.run
    if not mark.run or not run.is_dir():
        return None
    step = RunDir(run).state().steps.get(mark.step)
    here = {p.id for p in dataset.read_problems(loaded.data_path(loaded.config.data.practice))}
    if step is None:
        return None
    for rollout in mark.evidence:
        # `s1p5r0`: the position of the problem in its batch
        problem = step.problems[int(rollout.partition("p")[2].partition("r")[0])]
        if problem in here:
            return problem
    return None


def trials_of(
    loaded: LoadedRun,
    run: RunDir | None,
    problem: Problem,
    workspace: Workspace,
    library: str | None,
    left: str | None,
    runfile: str,
    overrides: Sequence[str],
) -> dict[str, Trial]:
    """The problem with the library; before and after a run; or with and without an experience.

    Raises ConfigError: both were asked for, or the library does not hold the one to be `left` out.
    """
    if run is not None:
        if left is not None:
            cause = "--versus compares before and after, and not with and without an experience."
            raise ConfigError("--without", cause, "Give one of the two.")
        return _before_and_after(loaded, run, problem, workspace, library, runfile, overrides)
    found, called = choose_library(loaded, workspace, library)
    whole = Trial(loaded, problem, found, called)
    if left is None:
        return {"": whole}
    if found is None or found.get(left) is None:
        move = "Give an id of it, or name another --library."
        cause = "no library is in the prompt." if found is None else f"{called} does not hold it."
        raise ConfigError(f"--without {left}", cause, move)
    kept = replace(found, experiences=tuple(e for e in found.experiences if e.id != left))
    without = Trial(loaded, problem, kept, f"{called} without {left}")
    return {f"with {left}": whole, f"without {left}": without}


def _before_and_after(
    loaded: LoadedRun,
    run: RunDir,
    problem: Problem,
    workspace: Workspace,
    library: str | None,
    runfile: str,
    overrides: Sequence[str],
) -> dict[str, Trial]:
    """The problem as the run began, and with what it has learned: weights, or a library.

    The run file is read again with more settings.
    """

    def load(more: str) -> LoadedRun:
        again = load_run(
            runfile, [*overrides, more], workspace.path, keyless=is_played(loaded.tape)
        )
        return replace(again, tape=loaded.tape)

    first, last, learned = loaded, loaded, library
    if loaded.config.trains:
        began = load_run(str(run.run_file), [], workspace.path, keyless=True).config.policy.adapter
        if began is not None:  # as after fine-tuning, which another run did
            first = load(f"policy.adapter={began}")
        last = load(f"policy.adapter=run:{run.run}")
    if loaded.config.practice.reflects:
        learned = f"{run.run}@last"
    return {
        "before": Trial(first, problem, *choose_library(first, workspace, library)),
        "after": Trial(last, problem, *choose_library(last, workspace, learned)),
    }
