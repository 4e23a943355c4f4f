"""One problem from prompt to verdict: what `studio try` does.

Its records go to a temporary folder, so that a try leaves no trace in the workspace.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from engines.agents.loops import first_messages
from engines.core.codec import call_seed, digest, fix_surrogates, to_dict
from engines.core.errors import ConfigError
from engines.core.frozen import frozen
from engines.core.library import Library
from engines.core.text.tool_text import count_acts
from engines.core.types import CallKey, Job, Message, Problem, Rollout, Tell, Verdict
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
from studio.facts.trial import TrialFacts
from studio.render import run_lines, trial_lines
from studio.render.json import print_json
from studio.render.lines import to_stderr
from studio.run.held_out import prompt_writer
from studio.run.library import choose_library
from studio.run.models import make_rollouts, open_roles, open_run_verifier

KEY = CallKey("rollout", epoch=1, step=1, position=0, index=0)
"""The first rollout that a run makes, so that a try has the same seed."""


@frozen
class Trial:
    """What is to be tried. `library` None: no experiences are in the prompt."""

    loaded: LoadedRun
    problem: Problem
    library: Library | None
    called: str  # a label for where the experiences come from

    @property
    def job(self) -> Job:
        writer = prompt_writer(self.loaded.config)
        guidance, shown = writer.write(self.library, self.problem.question)
        version = self.library.version if self.library else 0
        return Job(self.problem, guidance, KEY, 0, version, shown)

    @property
    def messages(self) -> tuple[Message, ...]:
        return first_messages(self.loaded.config.agent.instructions, self.job)

    @property
    def rehearsal(self) -> bool:
        """Whether the reply is scripted; the reflector does not matter, since it is not asked."""
        return is_rehearsal(without_lessons(self.loaded.config))


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
        question, truth = question.strip(), (answer or "").strip() or None
        if not question:
            raise ConfigError("--question", "it is empty.", "Write the question.")
        typed = question + (truth or "")
        if typed != fix_surrogates(typed):
            raise ConfigError("--question, --answer", "they are not UTF-8.", "Write them again.")
        return Problem(digest([question, truth], fields.ID_BYTES), question, truth, "typed")
    if answer is not None:
        raise ConfigError("--answer", "it belongs to --question.", "Give both, or neither.")
    config = loaded.config
    name = config.data.practice
    if name is None:
        raise ConfigError(
            loaded.place("data.practice"), "no data set is named.", "Set it, or give --question."
        )
    problems = dataset.read_problems(
        loaded.data_path(name),
        fields=config.data.fields,
        needs_answer=config.practice.given_ground_truth and needs_answer(config.verifier.spec),
        limit=1 if problem_id is None else None,
    )
    if problem_id is None:
        return problems[0]
    paths = (loaded.data_path(held_out, "evaluation.data") for held_out in config.evaluation.data)
    held_out = (dataset.read_problems(path, fields=config.data.fields) for path in paths)
    for problem in chain(problems, *held_out):
        if problem.id == problem_id:
            return problem
    raise ConfigError(
        f"--problem {problem_id}",
        f"no problem of {name} has this id.",
        f"See `studio data preview {name}` for ids.",
    )


async def run_trial(
    trial: Trial, workspace: Workspace, on_text: Tell = lambda _: None
) -> tuple[Rollout, Verdict]:
    """Roll out and judge. `on_text` gets "" once model and verifier have answered.

    Raises PolicyError: the model, or the judge where one is asked, does not answer at all.
    VerifierError: the verifier cannot be loaded; nothing has been spent.
    """
    loaded, slots = trial.loaded, Slots(1)
    config, mask = without_lessons(loaded.config), loaded.mask
    async with AsyncExitStack() as stack:
        tape = open_cassette(loaded.tape, "a try", stack, mask, to_stderr, resumes=False)
        roles = open_roles(config, stack, cassette=tape)
        stack.callback(roles.tell_strays, to_stderr)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="studio-try-")))
        roles.acting.folder = folder / "programs"
        ledger = RecordLedger(folder, config.seed, mask=mask)
        stack.push_async_callback(ledger.aclose)
        sets = ((trial.problem,),)
        verifier = open_run_verifier(
            loaded, workspace, roles, ledger, slots, sets=sets, stack=stack
        )
        await verifier.check()
        await roles.ping()
        for text in (await roles.acting.check()).get("absent", ()):
            to_stderr(text)
        on_text("")
        job = trial.job
        attempt, _ = await make_rollouts(config, roles, ledger, slots).roll_out(job, on_text)
        rollout = Rollout.from_job(job, attempt, call_seed(config.seed, KEY))
        (verdict,) = await verifier.verify(trial.problem, (rollout,))
    return rollout, add_own_figures(verdict, rollout)


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


def trial_facts(trial: Trial) -> TrialFacts:
    """What is told before the model is asked."""
    loaded, library = trial.loaded, trial.library
    scripted = rehearsal_note(loaded.config) if trial.rehearsal else None
    return TrialFacts(
        notes=tuple(filter(None, (scripted, played_note(loaded.tape)))),
        rehearsal=trial.rehearsal,
        cassette=is_played(loaded.tape),
        model=loaded.config.policy.model,
        adapter=loaded.config.policy.adapter or "",
        problem=trial.problem,
        library=trial.called,
        experiences=tuple(entry.id for entry in library.experiences) if library else (),
        messages=tuple(map(to_dict, trial.messages)),
    )


def result_facts(facts: TrialFacts, rollout: Rollout, verdict: Verdict) -> TrialFacts:
    attempt = rollout.attempt
    turns, calls, failed = count_acts(attempt.messages)
    return replace(
        facts,
        reply=attempt.answer,
        status=attempt.status,
        error=attempt.error,
        reward=verdict.reward,
        critique=verdict.critique,
        metrics=verdict.metrics,
        unjudged=verdict.error,
        usage=attempt.usage + verdict.usage,
        judge_usage=verdict.usage,
        elapsed_s=attempt.elapsed_s,
        turns=turns,
        tool_calls=calls,
        failed_calls=failed,
    )


def print_trials(trials: Mapping[str, Trial], workspace: Workspace, *, json: bool) -> int:
    """Run them in order, each under its name, and print what they come to; the worst exit code."""
    code, results = exit_codes.DONE, dict[str, TrialFacts]()
    for name, trial in trials.items():
        facts, pieces = trial_facts(trial), list[str]()
        if json:
            rollout, verdict = asyncio.run(run_trial(trial, workspace))
        else:
            before = (f"== {name}\n" if name else "") + trial_lines.before_text(facts)

            def on_text(text: str, pieces: list[str] = pieces, before: str = before) -> None:
                if text:
                    pieces.append(text)
                    print_piece(text)
                else:
                    print(before, flush=True)

            rollout, verdict = asyncio.run(run_trial(trial, workspace, on_text))
        results[name] = facts = result_facts(facts, rollout, verdict)
        if not json:
            print(trial_lines.after_text(facts, "".join(pieces)))
        # A problem without an answer has no verdict, which is no loss.
        if verdict.error or rollout.attempt.status == "failed":
            code = exit_codes.WITH_LOSSES
    if json:
        print_json(results.get("", results))
    elif len(trials) > 1:
        print(
            "==", ", ".join(trial_lines.short_text(name, facts) for name, facts in results.items())
        )
    return code


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
    step = RunDir(run).state().steps.get(mark.step) if mark.run and run.is_dir() else None
    if step is None:
        return None
    here = {p.id for p in dataset.read_problems(loaded.data_path(loaded.config.data.practice))}
    # `s1p5r0`: the position of the problem in its batch
    drawn = [step.problems[int(re.split("[pr]", name)[1])] for name in mark.evidence]
    return next((problem for problem in drawn if problem in here), None)


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
            raise ConfigError(
                "--without",
                "--versus compares before and after, and not with and without an experience.",
                "Give one of the two.",
            )

        # Before: as the run began. After: with the weights or the library that it has learned.
        def load(adapter: str) -> LoadedRun:
            settings = [*overrides, f"policy.adapter={adapter}"]
            keyless = is_played(loaded.tape)
            return replace(
                load_run(runfile, settings, workspace.path, keyless=keyless), tape=loaded.tape
            )

        first, last, learned = loaded, loaded, library
        if loaded.config.trains:
            began = load_run(str(run.run_file), [], workspace.path, keyless=True).config.policy
            if began.adapter is not None:  # as after fine-tuning, which another run did
                first = load(began.adapter)
            last = load(f"run:{run.run}")
        if loaded.config.practice.reflects:
            learned = f"{run.run}@last"
        return {
            "before": Trial(first, problem, *choose_library(first, workspace, library)),
            "after": Trial(last, problem, *choose_library(last, workspace, learned)),
        }
    version, called = choose_library(loaded, workspace, library)
    whole = Trial(loaded, problem, version, called)
    if left is None:
        return {"": whole}
    if version is None or version.get(left) is None:
        move = "Give an id of it, or name another --library."
        cause = "no library is in the prompt." if version is None else f"{called} does not hold it."
        raise ConfigError(f"--without {left}", cause, move)
    others = tuple(e for e in version.experiences if e.id != left)
    without = Trial(
        loaded, problem, replace(version, experiences=others), f"{called} without {left}"
    )
    return {f"with {left}": whole, f"without {left}": without}
