"""One problem from prompt to verdict: what `studio try` does.

Its records go to a temporary folder, so that a try leaves no trace in the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from engines.agents.single_turn import first_messages
from engines.core.codec import fix_surrogates
from engines.core.errors import ConfigError
from engines.core.ids import call_seed, digest
from engines.core.library import Library
from engines.core.types import CallKey, Job, Message, Problem, Rollout, Verdict
from engines.data.dataset import read_problems
from engines.data.fields import ID_BYTES
from engines.pipeline.judging import add_own_figures
from engines.policies.limits import Slots
from engines.record.cassette import open_cassette
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from engines.verifiers.open import asks_judge, needs_answer
from studio import exit_codes
from studio.config.loading import LoadedRun
from studio.config.scripted import is_rehearsal
from studio.config.settings.run import RunConfig
from studio.render.lines import to_stderr
from studio.run.held_out import prompt_writer
from studio.run.models import make_rollouts, open_roles
from studio.run.verifier import open_run_verifier

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
        return Problem(digest([question, truth], ID_BYTES), question.strip(), truth, "typed")
    if answer is not None:
        raise ConfigError("--answer", "it belongs to --question.", "Give both, or neither.")
    config = loaded.config
    if config.data.practice is None:
        move = "Set it, or give --question."
        raise ConfigError(loaded.place("data.practice"), "no data set is named.", move)
    problems = read_problems(
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
    held_out = (read_problems(path, fields=config.data.fields) for path in paths)
    found = next((p for p in chain(practised, *held_out) if p.id == problem_id), None)
    if found is None:
        cause = f"no problem of {config.data.practice} has this id."
        move = f"See `studio data preview {config.data.practice}` for ids."
        raise ConfigError(f"--problem {problem_id}", cause, move)
    return found


def exit_code(tried: TrialResult) -> int:
    """A problem without an answer has no verdict, which is no loss."""
    return exit_codes.WITH_LOSSES if tried.has_failed or tried.verdict.error else exit_codes.DONE
