"""What is asked of each old workspace: commands that only look, and commands that go on.

`make.py` asks the release that made the workspaces, the tests ask the one at hand. So this
imports nothing of the studio.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Words of a command line, and what a person at a terminal types; "" for no terminal."""

    words: tuple[str, ...]
    typed: str = ""  # at the release that recorded the answers
    today: str = ""  # where the same is typed in another way by now

    @property
    def name(self) -> str:
        typed = f" < {self.typed}".replace("\n", " ").rstrip() if self.typed else ""
        return " ".join(self.words) + typed

    @property
    def prints_json(self) -> bool:
        return "--json" in self.words


def command(line: str, typed: str = "", today: str = "") -> Command:
    return Command(tuple(line.split(" ")), typed, today)


SMALL_REHEARSAL = (
    "practice.batch_size=2",
    "practice.group_size=3",
    "practice.experiences_per_query=2",
    "data.truncate=4",
    "evaluation.data=[arithmetic-heldout]",
    "evaluation.limit=2",
)
SMALL_TRAINING = (
    "seed=2",
    "policy.local.threads=1",
    "policy.max_tokens=48",
    "data.truncate=8",
    "practice.batch_size=2",
    "practice.group_size=4",
    "practice.epochs=1",
    "grpo.checkpoint_steps=2",
    "grpo.learning_rate=0.02",
    "grpo.lora.rank=2",
    "grpo.lora.alpha=4",
    "grpo.lora.targets=[q_proj,v_proj]",
    "evaluation.limit=2",
)
ONE_STEP_EPOCHS = (*SMALL_REHEARSAL, "practice.batch_size=4")
COPY = (
    *SMALL_REHEARSAL,
    "data.truncate=2",
    "practice.epochs=1",
    "library.start=rehearsal@2",
    "evaluation.do_eval=false",
)
"""A run whose library begins as a copy, with the rejections that the first one remembers."""
RULES = """\
rules:
  - when: {matches: "Multiply first"}
    do: reject
    reason: every child knows that
  - when: {matches: "Borrow", groups_at_least: 1}
    do: reject
    reason: said better elsewhere
  - do: approve
"""
MENDED = '[{"operation": "add", "experience": "Check: put the answer back.", "reason": "so"}]'
"""A reply as the reflector should have given it, typed by a person."""

_EVERYWHERE = ("runs list", "runs list --json", "doctor --json", "library list --json")


def _looks(run: str, *more: str, library: str | None = None) -> tuple[Command, ...]:
    library = library or run
    found = (
        *_EVERYWHERE,
        f"runs show {run}",
        f"runs show {run} --json",
        f"ctl status {run} --json",
        f"library show {library}",
        f"library show {library} --json",
        f"library history {library}",
        f"library history {library} --json",
    )
    return tuple(command(line) for line in (*found, *more))


LOOKS: dict[str, tuple[Command, ...]] = {
    "held": (
        *_looks(
            "rehearsal",
            "runs show rehearsal --step 1 --json",
            "runs show rehearsal --step 2 --json",
            "runs show rehearsal --rollout s1p0r1 --json",
            "diff rehearsal@0 rehearsal@1",
            "diff rehearsal@0 rehearsal@1 --json",
            "diff rehearsal@step:1 rehearsal --json",
        ),
        command("review rehearsal", "l\nq\n"),
        command("review rehearsal", "v\nq\n", today="o\nq\n"),
    ),
    "finished": _looks(
        "rehearsal",
        "runs show rehearsal-2",
        "runs show rehearsal-2 --json",
        "runs show rehearsal --step 2 --json",
        "ctl status rehearsal-2 --json",
        "library history rehearsal-2 --json",
        "diff rehearsal@epoch:1 rehearsal@epoch:2",
        "diff rehearsal@epoch:1 rehearsal@epoch:2 --json",
        "diff rehearsal@step:1 rehearsal-2@step:2 --json",
        "diff rehearsal@best rehearsal-2@last --json",
        "review rehearsal",
    ),
    "rejections": _looks(
        "rehearsal",
        "runs show rehearsal --step 2 --json",
        "runs show rehearsal --step 4 --json",
        "library history rehearsal E1 --json",
        "diff rehearsal@1 rehearsal --json",
        "diff rehearsal@1 rehearsal",
    ),
    "unparsed": (
        *_looks("rehearsal", "runs show rehearsal --step 1 --json"),
        command("review rehearsal", "l\nq\n"),
        command("review rehearsal", "v\nq\n", today="o\nq\n"),
    ),
    "trained": _looks(
        "grpo-tiny",
        "runs show grpo-tiny --step 2",
        "runs show grpo-tiny --step 2 --json",
        "runs show grpo-tiny --rollout s3p1r2 --json",
        "diff grpo-tiny@step:1 grpo-tiny@step:2",
        "diff grpo-tiny@step:1 grpo-tiny@step:2 --json",
    ),
}

RESUMES: dict[str, tuple[Command, ...]] = {
    "held": (
        command("review rehearsal", "r no need\nq\n"),
        command("headless --resume rehearsal --review auto"),
        command("review rehearsal", "a\na\na\n"),
    ),
    "finished": (
        command("headless --resume rehearsal practice.epochs=3"),
        Command(
            ("headless", "rehearsal", *ONE_STEP_EPOCHS, "practice.epochs=2", "--restart-step", "1")
        ),
    ),
    "rejections": (
        command("headless --resume rehearsal practice.epochs=3 --review rules:rules.yaml"),
        Command(("headless", "rehearsal", *COPY, "--name", "again")),
        command("library edit rehearsal --add Look:_read_the_question_twice."),
        command("library revert rehearsal@1"),
    ),
    "unparsed": (
        command("review rehearsal", f"e {MENDED}\na\n"),
        command("headless --resume rehearsal"),
    ),
    "trained": (Command(("train", "grpo-tiny", *SMALL_TRAINING)),),
}
"""Each list ends with the run at its end; its journals and libraries are compared."""

ENVIRONMENT = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
"""The reflector of `unparsed` was reached by it; nobody is asked any more."""
