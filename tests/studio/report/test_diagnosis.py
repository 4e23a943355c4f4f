"""Why an epoch brought little: causes with counts and their fix, and where they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.core import events as ev
from engines.core.library import OperationOutcome
from engines.core.state.fold import fold, fold_events
from engines.core.types import Credit, Reflection, Usage, Verdict
from studio.facts.evaluation import RULES, epoch_diagnoses, find_causes
from studio.render.evaluation_lines import diagnosis_lines
from studio.report.progress import LinePrinter
from tests.engines.pipeline.evaluation.test_diagnosis import measured
from tests.support.builders import a_library, a_rollout_finished, a_run, a_step
from tests.support.summaries import end_text

SETTINGS = {"policy.max_tokens": 512}
GOOD = a_rollout_finished()


def a_try(position: int, verdict: Verdict | None = None, **more: Any) -> list[ev.DurableEvent]:
    ended = replace(GOOD, position=position, **more)
    judged = verdict or Verdict(1.0)
    return [ended, ev.RolloutJudged(1, position, 0, judged)]


def timeout(turns: int, tokens: int) -> dict[str, Any]:
    usage = Usage(9, tokens, turns)
    return {"status": "failed", "error": "timeout: no answer within 60 s", "usage": usage,
            "turns": turns}  # fmt: skip


def outcomes(*reasons: str, kind: Any = "add") -> ev.LessonCommitted:
    made = [OperationOutcome(f"op1.{n}", kind, not why, None, why) for n, why in enumerate(reasons)]
    return ev.LessonCommitted(1, 0, "", tuple(made))


def reflected(outcome: Any, *uses: Any) -> ev.GroupReflected:
    credits = tuple(Credit("E1", use) for use in uses)
    return ev.GroupReflected(1, 0, Reflection(1, 0, outcome, credits=credits))


UNREAD = Verdict(0.0, "expected 42, found no answer")
CASES: list[tuple[list[ev.DurableEvent], str]] = [
    ([*a_try(0, **timeout(2, 1_024)), *a_try(1, **timeout(2, 1_023))],
     "1 of 2 timeouts hit the limit of 512 tokens in every reply: raise policy.max_tokens"),
    (a_try(0, **timeout(0, 0)), "1 of 1 tries timed out: raise practice.task_timeout_s"),
    ([*a_try(0, status="truncated"), *a_try(1)], "1 of 2 tries were cut at the limit of 512 tok"),
    ([*a_try(0, UNREAD), *a_try(1)], "1 of 2 tries state no answer that the verifier finds"),
    (a_try(0, tool_calls=9, failed_calls=1), "1 of 9 tool calls failed: studio runs show"),
    ([reflected("all-right")], "1 of 1 groups all right: give harder"),
    ([reflected("all-wrong")], "1 of 1 groups all wrong: give easier"),
    ([outcomes("leak: 9 words", "")], "1 of 2 operations refused by the lint"),
    ([outcomes("unproven: +0.1", "hurts: -0.2")], "1 of 2 operations were tried, and could not"),
    ([outcomes("no", "no")], "2 of 2 operations rejected: say in"),
    ([outcomes("", kind="keep")], "1 of 1 operations keep what is there"),
    ([reflected("used", "ignored", "misled")], "2 of 2 readings of an experience show no use"),
]  # fmt: skip


def lines_of(*events: ev.DurableEvent) -> list[str]:
    run = a_run(settings=SETTINGS, steps_per_epoch=1)
    state = fold_events([run, a_step(), *events, ev.StepFinished(1, 1)])
    return diagnosis_lines(epoch_diagnoses(state)[-1])


@pytest.mark.parametrize(("events", "said"), CASES, ids=[rule.count for rule in RULES])
def test_every_rule_names_a_cause_with_its_count_and_a_fix(
    events: list[ev.DurableEvent], said: str
) -> None:
    assert any(line.startswith(said) for line in lines_of(*events))


def test_what_did_not_happen_is_not_told() -> None:
    some = [*a_try(0, tool_calls=11, failed_calls=1), outcomes("no", ""), reflected("used", "used")]
    assert lines_of(*some) == []
    assert lines_of(*a_try(0, status="truncated", answer="", turns=3)) == []  # for want of turns
    free = find_causes({"cut": 1, "rollouts": 2}, {"policy.max_tokens": None})
    assert free[0].text == "tries were cut at the limit of the endpoint's own"


def an_epoch() -> list[ev.DurableEvent]:
    before, after = ((1.0,),) * 2 + ((0.0,),) * 6, ((0.0,),) + ((1.0,),) * 5 + ((0.0,),) * 2
    held_out = [measured(0, before), measured(1, after, version=1)]
    cut = a_try(0, status="truncated")
    events = [a_run(settings=SETTINGS, steps_per_epoch=1), held_out[0], a_step(), *cut, held_out[1]]
    return [*events, ev.StepFinished(1, 1)]


def test_an_epoch_is_told_as_it_ends_and_at_the_end_of_the_run() -> None:
    events = an_epoch()
    state, lines = fold_events(events), list[str]()
    LinePrinter(state, lines.append)(events[-1])
    assert lines == [
        "epoch 1: set v0 -> v1: cannot tell, +0.375 [-0.25, +1.00]: 4 improved, 1 worsened, "
        "2 still wrong, 1 still right (by luck alone 2.5 of the 5 would be worse)",
        "epoch 1:   worsened (k=1): q0 1.00 -> 0.00",
        "epoch 1: 1 of 1 tries were cut at the limit of 512 tokens: raise policy.max_tokens",
    ]
    text = end_text(state, a_library(), a_library(), "")
    assert "epoch 1: what changed, and what held it back\n  set v0 -> v1: " in text


def test_a_version_that_stayed_is_called_the_same() -> None:
    kept = measured(0, ((1.0,), (0.0,)))
    state = fold_events([a_run(steps_per_epoch=1), kept, a_step(), replace(kept, step=1)])
    fold(state, ev.StepFinished(1, 1))
    (line,) = diagnosis_lines(epoch_diagnoses(state)[0])
    assert line.startswith("set v0 -> v0: the same, +0.000 [") and "luck" not in line
