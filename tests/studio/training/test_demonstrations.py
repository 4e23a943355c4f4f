"""Demonstrations of a fine-tuning stage: which rollouts are taken, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sample_data
from engines.agents.loops import prompt_messages
from engines.core import events as ev
from engines.core.errors import ConflictError, DataError
from engines.core.types import (
    NO_USAGE,
    AttemptStatus,
    CallKey,
    Completion,
    Message,
    Problem,
    RecordRef,
    Sampling,
    Verdict,
)
from engines.data.dataset import read_problems
from engines.grpo.loss.sft_data import parse_demonstration
from engines.record.journal import Journal
from engines.record.ledger import RecordLedger
from engines.record.run_dir import Workspace
from sample_data import make_demonstrations
from sample_data.tiny_text import numbers_in, share_of
from studio.config.loading import load_run
from studio.facts.training import trained_step, training_facts
from studio.render.training_lines import figures_text, training_lines
from studio.training.demonstrations import write_demonstrations
from studio.training.stages import share_left
from tests.support.builders import a_library, a_run, answering
from tests.support.training_runs import ENGINE, a_state, proposed, settled

TIP = a_library("carry the ten", name="lib").guidance()
PROBLEMS = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]


class Practised:
    """A workspace with a run `src`, written as practice writes it."""

    def __init__(self, folder: Path, *, model: str = "hf:tiny", guided: bool = False) -> None:
        self.workspace = Workspace(folder / "practice")
        self.run = self.workspace.runs_folder / "src"
        self.run.mkdir(parents=True)
        self.data = folder / "sums.jsonl"
        self.data.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS), "utf-8")
        (self.run / "run.yaml").write_text(
            f"policy: {model}\ndata: {{practice: {self.data}}}\n", "utf-8"
        )
        experiences = ("carry the ten",) if guided else ()
        self.workspace.library("lib").create(a_library(*experiences, name="lib"))
        self.problems: tuple[Problem, ...] = read_problems(self.data)
        self.guidance = TIP if guided else ""
        self.events: list[ev.DurableEvent] = [
            a_run(run="src", exp_id="src", library="lib", group_size=2, steps_per_epoch=1),
            ev.StepStarted(1, 1, tuple(p.id for p in self.problems), 0, 0),
        ]

    async def rolled_out(
        self,
        at: tuple[int, int],
        reward: float | None,
        *replies: str,
        status: AttemptStatus = "ok",
        ids: bool = True,
    ) -> None:
        """One rollout of as many turns as there are replies."""
        ledger = RecordLedger(self.run / "records", 1)
        messages = prompt_messages("Be short.", self.guidance, self.problems[at[0]].question)
        refs: list[RecordRef] = []
        for turn, text in enumerate(replies):
            reply = Completion(text, token_ids=(40 + turn, 0) if ids else ())
            key = CallKey("rollout", 1, 1, *at, turn)
            made, ref = await ledger.ask(key, answering(reply), messages, Sampling())
            refs.append(ref)
            messages = (*messages, made.as_message(), Message("user", "go on"))
        await ledger.aclose()
        finished = ev.RolloutFinished(
            step=1,
            position=at[0],
            index=at[1],
            seed=0,
            status=status,
            answer=None,
            error=None,
            usage=NO_USAGE,
            elapsed_s=0.0,
            refs=tuple(refs),
        )
        verdict = Verdict(reward, error=None if reward is not None else "timeout: 1 s")
        self.events += [finished, ev.RolloutJudged(1, *at, verdict)]

    def rows(self, *overrides: str, **more: Any) -> list[dict[str, Any]]:
        """What is written of it for a stage."""
        journal = Journal(self.run / "journal.jsonl")
        for event in self.events:
            journal.append_now(event)
        journal.close()
        return written(self.workspace, "sft.data=run:src", *overrides, **more)


def written(workspace: Workspace, *overrides: str, **more: Any) -> list[dict[str, Any]]:
    workspace.path.mkdir(exist_ok=True)
    loaded = load_run("grpo-tiny", overrides, workspace.path)
    name = write_demonstrations(workspace, loaded, "x-sft", **more)
    assert name.startswith("x-sft-")
    path = workspace.datasets / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def test_replies_that_were_found_right_are_taken_once_each(tmp_path: Path) -> None:
    run = Practised(tmp_path)
    await run.rolled_out((0, 0), 1.0, "two")
    await run.rolled_out((0, 1), 1.0, "two")
    await run.rolled_out((1, 0), 0.5, "three?")
    await run.rolled_out((1, 1), None, "never judged")
    assert run.rows() == [
        {
            "question": "1 + 1?",
            "answer": "2",
            "solution": "two",
            "completion_ids": [40, 0],
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": "1 + 1?"},
            ],
            "source": "s1p0r0",
        }
    ]


async def test_what_was_cut_or_failed_is_not_learnt(tmp_path: Path) -> None:
    run = Practised(tmp_path)
    await run.rolled_out((0, 0), 1.0, "tw", status="truncated")
    with pytest.raises(ConflictError, match="none of its 1 judged rollouts has a reward of 1"):
        run.rows()


async def test_every_reply_of_several_turns_follows_what_it_was_shown(tmp_path: Path) -> None:
    run = Practised(tmp_path, guided=True)
    await run.rolled_out((0, 0), 1.0, "calc: 1 + 1", "two")
    first, second = run.rows()
    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"}]
    assert (first["solution"], first["messages"]) == ("calc: 1 + 1", asked)
    assert second["messages"] == [
        *asked,
        {"role": "assistant", "content": "calc: 1 + 1", "token_ids": [40, 0]},
        {"role": "user", "content": "go on"},
    ]
    assert (second["solution"], second["completion_ids"]) == ("two", [41, 0])


async def test_a_library_that_stood_in_the_prompt_is_left_out(tmp_path: Path) -> None:
    run = Practised(tmp_path, guided=True)
    await run.rolled_out((0, 0), 1.0, "two")
    (row,) = run.rows(with_library=True)
    assert row["messages"][0]["content"] == "Be short."
    (run.workspace.datasets / "look.jsonl").write_text(json.dumps(row) + "\n")
    (problem,) = read_problems(run.workspace.datasets / "look.jsonl")
    assert parse_demonstration(problem).messages == prompt_messages("Be short.", "", "1 + 1?")


async def test_without_a_library_in_any_prompt_there_is_nothing_to_distil(tmp_path: Path) -> None:
    run = Practised(tmp_path)
    await run.rolled_out((0, 0), 1.0, "two")
    with pytest.raises(ConflictError, match="it has no judged rollouts with a library"):
        run.rows(with_library=True)


async def test_ids_of_another_model_are_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Practised(tmp_path, model="hf:other/model")
    await run.rolled_out((0, 0), 1.0, "two")
    (row,) = run.rows()
    assert "completion_ids" not in row
    assert "as text: their tokens are those of hf:other/model" in capsys.readouterr().err


async def test_a_prompt_without_the_library_it_was_made_with_is_refused(tmp_path: Path) -> None:
    run = Practised(tmp_path, guided=True)
    run.guidance = "something else"
    await run.rolled_out((0, 0), 1.0, "two")
    with pytest.raises(ConflictError, match="does not hold the library's text"):
        run.rows()


async def test_data_that_changed_under_a_run_is_told(tmp_path: Path) -> None:
    run = Practised(tmp_path)
    await run.rolled_out((0, 0), 1.0, "two")
    run.data.write_text('{"question": "other", "answer": "1"}\n', "utf-8")
    with pytest.raises(ConflictError, match="not in the data any more"):
        run.rows()


def test_a_file_of_any_shape_becomes_one_data_set_named_after_its_content(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "practice")
    path = tmp_path / "shown.jsonl"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    given = [{"prompt": "q", "completion": "c", "answer": 7}, {"messages": chat}]
    path.write_text("".join(json.dumps(row) + "\n" for row in given), "utf-8")
    assert written(workspace, f"sft.data={path}") == [
        {"question": "q", "answer": "7", "solution": "c"},
        {"question": "a", "solution": "b", "messages": chat[:1]},
    ]
    written(workspace, f"sft.data={path}")
    assert len(list(workspace.datasets.iterdir())) == 1
    path.write_text('{"prompt": "q", "completion": "d"}\n', "utf-8")
    written(workspace, f"sft.data={path}")
    assert len(list(workspace.datasets.iterdir())) == 2  # a run on the first finds it still


def test_mapped_fields_keep_their_names(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "practice")
    rows = written(workspace, "data.fields={question: task}")
    assert set(rows[0]) == {"task", "answer", "solution", "source"}


def test_a_row_that_shows_nothing_is_told_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "shown.jsonl"
    path.write_text('{"question": "a", "solution": "b"}\n{"question": "c"}\n', "utf-8")
    with pytest.raises(DataError) as refused:
        written(Workspace(tmp_path / "practice"), f"sft.data={path}")
    assert refused.value.place == f"{path}:2"


def test_the_bundled_demonstrations_are_right_and_hold_nothing_out(tmp_path: Path) -> None:
    make_demonstrations.write(tmp_path)
    bundled = Path(sample_data.__file__).parent / "skills-demonstrations.jsonl"
    assert (tmp_path / "skills-demonstrations.jsonl").read_bytes() == bundled.read_bytes()
    rows = [json.loads(line) for line in bundled.read_text("utf-8").splitlines()]
    assert len({row["question"] for row in rows}) == 128
    assert {sum(row["source"] == other["source"] for row in rows) for other in rows} == {32}
    assert {share_of(numbers_in(row["question"])) for row in rows} == {"practice"}
    assert all(row["solution"].endswith(f"\n#### {row['answer']}") for row in rows)


def questions(*rewards: float) -> dict[str, Sequence[float | None]]:
    return {f"q{at}": (reward,) for at, reward in enumerate(rewards)}


def test_what_is_left_of_an_effect_is_a_share_of_it_with_an_interval() -> None:
    without = questions(*[0.0] * 40)
    library = questions(*[1.0] * 30, *[0.0] * 10)
    trained = questions(*[1.0] * 15, *[0.0] * 25)
    found = share_left(without, library, trained)
    assert found is not None
    # 15/40 of the questions against 30/40.
    assert (found.left, found.questions) == (0.5, 40)
    assert 0.3 < found.interval.low < 0.5 < found.interval.high < 0.7
    whole = share_left(without, library, library)
    assert whole is not None
    assert (whole.left, whole.interval.low, whole.interval.high) == pytest.approx((1, 1, 1))


def test_questions_that_are_not_known_in_all_three_do_not_count() -> None:
    without, library = questions(0, 0, 0, 0), questions(1, 1, 1, 1)
    trained = {**questions(1, 1, 0), "q3": (None,)}
    found = share_left(without, library, trained)
    assert found is not None
    assert found.left == pytest.approx(2 / 3)
    assert found.questions == 3


@pytest.mark.parametrize(
    ("without", "library"),
    [([0, 1, 0, 1], [1, 0, 0, 1]), ([1, 1, 1, 1], [0, 0, 0, 0]), ([0], [1])],
)
def test_of_an_effect_that_cannot_be_told_from_none_no_share_is_told(
    without: list[float], library: list[float]
) -> None:
    assert share_left(questions(*without), questions(*library), questions(*library)) is None


def test_a_step_on_demonstrations_is_told_by_its_loss() -> None:
    figures = {"loss": 0.4111, "grad_norm": 0.8, "examples": 16.0, "length": 31.0}
    events = [
        a_run(group_size=0), ev.EngineOpened(ENGINE), ev.StepStarted(1, 1, ("a", "b"), 0, 0),
        proposed(1, figures=figures), *settled(1, 1),
    ]  # fmt: skip
    state = a_state(*events)
    step = trained_step(state, 1)
    assert step is not None
    assert figures_text(step) == "loss 0.411 (n=16), |g| 0.8, length 31"
    told = "\n".join(training_lines(training_facts(state)))
    assert "loss        last step 1 0.411 (n=16)" in told
    assert "reward" not in told
