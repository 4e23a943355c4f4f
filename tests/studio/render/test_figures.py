"""Every figure that a text or the screen tells of a subject is in the subject's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.events import EffectMeasured
from engines.core.library_notes import Effect
from engines.core.state.run_state import RunState
from engines.core.types import Operation, Problem, Usage
from engines.pipeline.effect.worth import Effects
from engines.pipeline.evaluation.statistics import Interval, Rate
from engines.pipeline.evaluation.verdict import compare
from engines.record.repair import Finding
from engines.record.run_dir import Workspace
from studio.data.catalogue import add_data, check_data, listed_data, preview_data
from studio.data.prepare import Wanted, prepare
from studio.facts.comparison import Log, LogRow, Practised, compare_logs
from studio.facts.data_set import Item, SessionImport
from studio.facts.diagnosis import Diagnosis
from studio.facts.estimate import Estimate, Range, Stage
from studio.facts.evaluation import EvalFacts, MeasuredFacts, PairedMeans, SetFacts
from studio.facts.library import (
    difference,
    history_facts,
    listed_library,
    version_facts,
)
from studio.facts.run import end_facts, load_run_facts
from studio.facts.step import rollout_facts, step_facts
from studio.facts.trial import TrialFacts
from studio.facts.worth import UtilityFacts, tried_operation
from studio.library.references import find_version
from studio.render import trial_lines
from studio.render.comparison_page import comparison_page, difference_page
from studio.render.data_lines import (
    added_notes,
    added_text,
    check_text,
    data_table,
    import_text,
    item_text,
    prepared_text,
    preview_text,
)
from studio.render.doctor_lines import doctor_text
from studio.render.estimate_lines import estimate_line, estimate_table
from studio.render.evaluation_lines import eval_text
from studio.render.library_lines import (
    difference_lines,
    history_lines,
    library_lines,
    list_lines,
)
from studio.render.page import render_markdown, render_text
from studio.render.run_lines import rollout_text, run_text, step_text, summary_text
from studio.render.worth_lines import tried_lines, utility_lines
from studio.report.page import report_facts, report_page
from studio.tui.drawing.lines import plain_text
from studio.tui.pages.diff.page import change_rows, compare_references, head_lines
from studio.tui.pages.inspect import view
from studio.tui.pages.library.page import library_rows
from studio.tui.pages.training_view import panel_lines
from tests.support.demo_run import demo_workspace
from tests.support.figures import missing_figures
from tests.support.training_runs import finished, training_workspace

P_BELOW = ("0.001",)
"""A smaller p is told as below this."""


def test_the_helper_finds_a_figure_that_is_rounded_or_missing() -> None:
    data = {"share": 0.4237, "tokens": 12_345, "ids": ["a", "b"], "text": "n=17"}
    assert missing_figures("42 % of 12,345 (0.42, 12k), 2 ids, E9, n=17, -0.424", data) == []
    assert missing_figures("0.43 and 18", data) == ["0.43", "18"]
    assert missing_figures("0.43 and 18", data, besides=("18",)) == ["0.43"]


def test_a_rollout() -> None:
    facts = rollout_facts(demo_workspace().run("demo"), "s1p0r0")
    assert missing_figures(rollout_text(facts), facts) == []
    parts = view.rollout_parts(facts, calls=True)
    rows = view.rollout_rows(parts, 200, [part.key for part in parts if part.label in view.FOLDED])
    assert missing_figures("\n".join(plain_text(row.line) for row in rows), facts) == []


@pytest.mark.parametrize("step", [1, 2])
def test_a_step(step: int) -> None:
    facts = step_facts(demo_workspace().run("demo"), step)
    assert missing_figures(step_text(facts, prompts=True), facts) == []


def test_a_run_and_its_end() -> None:
    workspace = demo_workspace()
    facts = load_run_facts(workspace.run("demo"), workspace, alive=False)
    assert missing_figures(run_text(facts), facts, besides=P_BELOW) == []
    library = workspace.library("demo")
    before, after = library.at(facts.library_before), library.at(facts.library_after)
    end = end_facts(facts, before, after)
    assert missing_figures(summary_text(end), end, besides=P_BELOW) == []


def test_a_run_that_trains_weights(tmp_path: Path) -> None:
    workspace = training_workspace(tmp_path, finished())
    facts = load_run_facts(workspace.run("tiny"), workspace, alive=False)
    assert missing_figures(run_text(facts), facts) == []
    assert facts.training is not None
    panel = "\n".join(map(plain_text, panel_lines(workspace.run("tiny").state(), 60)))
    assert missing_figures(panel, facts) == []


def test_a_report() -> None:
    workspace = demo_workspace()
    facts = report_facts(workspace.run("demo"), workspace, alive=False)
    page = render_markdown(report_page(facts)).replace("\\", "")
    assert missing_figures(page, facts, besides=("95 %", *P_BELOW)) == []


def test_a_comparison() -> None:
    scores = {"before": (0.0, 1.0, 0.25, 0.5), "after": (1.0, 0.75, 0.75, None)}
    logs = [
        Log(
            label=label,
            rows=[LogRow(f"p{n}", s, "", "web", 120, 0.00213) for n, s in enumerate(row * 5)]
            + [LogRow(label, 1.0, "", "web")],
            practised=Practised("library v3 (12)", "arithmetic-hard", 40, Usage(310, 27, 3, 0.52)),
            notes=("of 3 files the newest are read",),
            questions={"p0": "What is 17 + 25?"},
        )
        for label, row in scores.items()
    ]
    facts = compare_logs(logs, None, seed=1, min_effect=0.02)
    page = comparison_page(facts)
    assert missing_figures(render_text(page), facts, besides=("95",)) == []
    assert missing_figures(render_markdown(page), facts, besides=("95",)) == []


def test_a_diagnosis_of_the_doctor() -> None:
    machine = {
        "studio": "0.1",
        "python": "3.11",
        "encoding": "UTF-8",
        "terminal": None,
        "free_bytes": 42_000_000_000,
        "hidden_from_debuggers": True,
    }
    broken = Finding("fix", "journal.jsonl:7", "it is cut.", "Repair it.", lambda: "")
    noted = [Finding("note", "gpu", "90 % full."), Finding("ok", "disk", "ext4, 1,024 files.")]
    whole = Diagnosis(looked_at={"runs": 3}, findings=[broken], living={"exp": " (pid 17)"})
    told = whole.add(machine, noted)
    scale = f"{42:.1f}"  # bytes are told in GB
    assert missing_figures(doctor_text(told), told, besides=(scale,)) == []
    assert "1 to fix" in doctor_text(told)


def test_data_sets(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n} + 7?", "answer": str(n + 7)} for n in range(3)]
    rows += [{"question": "What is 2 + 7?", "answer": "8"}, {"question": "Why?"}]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    workspace = Workspace(tmp_path / "practice")
    listed = listed_data(workspace)
    assert missing_figures(data_table(listed), listed) == []
    (added,) = add_data(workspace, str(file), None, {})
    told = "\n".join([added_text(added), *added_notes(added)])
    assert "4, 5" not in told and missing_figures(told, added) == []
    facts, _ = check_data("sums", workspace, {})
    assert missing_figures(check_text(facts), facts) == []
    problems = preview_data("sums", workspace, {}, limit=4)
    assert missing_figures(preview_text(problems), problems) == []
    plan = prepare(workspace, Wanted("aime24", limit=3), dry_run=True)
    assert missing_figures(prepared_text(plan[0]), plan) == []


def test_imported_sessions() -> None:
    facts = SessionImport(
        name="mine",
        format="claude",
        path=Path("mine.jsonl"),
        dry_run=False,
        written=True,
        problems=12,
        tries=31,
        groups=4,
        sessions=9,
        subagents=2,
        outcomes={"right": 17, "wrong": 14},
        signals={"tests passed": 8},
        redacted=5,
        private=3,
        dropped={"texts of the system": 6},
    )
    assert missing_figures(import_text(facts), facts) == []
    recorded = {"reward": 0.25, "model": "m", "response": "line\n" * 30}
    item = Item(
        item=2,
        of=7,
        content="abc",
        reviewed=False,
        may_be_used=False,
        question="What is 17 + 25?",
        answer="42",
        tries=[recorded, {}],
    )
    # The number of lines that are hidden is what was shown of it, no fact.
    assert missing_figures(item_text(item), item, besides=("1", "7")) == []


def test_an_evaluation_outside_any_run() -> None:
    rates = {
        1: Rate(value=0.4, interval=Interval(0.1, 0.7), questions=9),
        2: Rate(value=0.5, interval=Interval(0.2, 0.8), questions=8),
    }
    result = MeasuredFacts(
        experiences="lib@3",
        library_version=3,
        mean=0.4,
        interval=Interval(0.1, 0.7),
        questions=9,
        pass_at=rates,
        n=17,
        unjudged=3,
        missing=0,
        trouble="timeout: 5 s",
        tokens_per_try=412.4,
        tool_calls_per_try=1.23,
        cost_per_try_usd=0.00213,
        cost_usd=0.0426,
        reused=4,
        rewards=((1.0, 0.0),),
    )
    before, after = {str(n): (0.0,) for n in range(9)}, {str(n): (1.0, 0.0) for n in range(9)}
    facts = SetFacts(
        data="held",
        size="held: 10 of 12 problems, 2 tries each",
        problems=(),
        texts=(),
        questions=10,
        left_out=2,
        smallest_effect=0.3,
        results=(result, replace(result, experiences="lib@4", mean=0.75)),
        comparison=compare(before, after),
        paired=PairedMeans(9, 0.25, 0.75),
    )
    whole = EvalFacts(
        title="x: lib@4 against lib@3",
        rehearsal=False,
        cassette=False,
        exp_id="x",
        k=2,
        sets=(facts,),
        paid=Usage(310, 27, 34, 0.52),
        rollouts=40,
        reused=8,
    )
    assert missing_figures(eval_text(whole, ()), whole) == []


def worth_of(name: str, difference: float) -> Effect:
    return Effect(
        difference=difference,
        low=difference - 0.081,
        high=difference + 0.081,
        verdict="cannot tell",
        problems=23,
        rollouts=184,
        method="inclusion",
        usage=Usage(310, 27, 34, 0.52),
        false_discovery=0.137,
    )


@pytest.mark.parametrize("offered_in", ["", "offer-7"])
def test_the_worth_of_experiences(offered_in: str) -> None:
    effects = {"E1": worth_of("E1", 0.214), "E2": replace(worth_of("E2", -0.2), verdict="hurts")}
    facts = UtilityFacts(
        library="lib",
        version=3,
        label="lib@3",
        texts={"E1": "Check the sign of a difference.", "E2": "Guess.", "E3": "Be careful."},
        pending=("E3",),
        effects=Effects(effects, rollouts=1_184, problems=24),
        dispensable=("E2",),
        margin=0.05,
        offered=("E2",),
        offered_in=offered_in,
        unjudged=6,
        paid=Usage(41_310, 2_127, 340, 1.52),
    )
    lines = utility_lines(facts, kept=True, offer=True)
    assert missing_figures("\n".join(lines), facts, besides=("95 %",)) == []
    assert "+0.214" in lines[4] and "lib@3: worth of 3 experiences" in lines[0]


def test_operations_that_were_tried() -> None:
    measured = EffectMeasured(1, ("op1.1", "op1.2"), worth_of("", 0.18), 0.0125, "abc")
    state = RunState(effects=[measured])
    operations = [
        tried_operation(state, Operation(name, "add", text="Check it."))
        for name in ("op1.1", "op1.2", "op1.3")
    ]
    lines = tried_lines(operations, known_before=False)
    assert missing_figures("\n".join(lines), operations) == []
    assert [line.rpartition("; ")[2] for line in lines[1:]] == [
        "tried with it",
        "op1.3 add: not tried: it does not fit the library as it is, or with what helps",
    ]


def test_a_try() -> None:
    asked = TrialFacts(
        notes=("rehearsal: replies are scripted, no model is asked",),
        rehearsal=True,
        cassette=False,
        model="rehearsal:arithmetic",
        adapter="run:tiny",
        problem=Problem("p1", "What is 17 + 25?", "42", "sums"),
        library="lib@3",
        experiences=("E1", "E2"),
        messages=({"role": "user", "content": "What is 17 + 25?"},),
    )
    assert missing_figures(trial_lines.before_text(asked), asked) == []
    facts = replace(
        asked,
        reply="#### 41",
        status="truncated",
        reward=0.25,
        critique="off by 1",
        metrics={"math": 0.0, "closeness": 0.8},
        usage=Usage(310, 27, 4, 0.52),
        judge_usage=Usage(110, 7, 1, 0.12),
        elapsed_s=1.237,
        turns=5,
        tool_calls=4,
        failed_calls=3,
    )
    assert missing_figures(trial_lines.after_text(facts, ""), facts) == []
    assert "reward 0.25 [math 0, closeness 0.8]" in trial_lines.after_text(facts, "")


def test_an_estimate() -> None:
    stages = [
        Stage(name, Range(n, 2 * n), Range(31.0 * n, 70.0 * n), Range(7.0 * n, 9.0 * n), cost)
        for name, n, cost in (
            ("rollouts", 117, Range(0.0123, 0.0456)),
            ("extraction", 23, Range(0.2, 0.3)),
        )
    ]
    estimate = Estimate(tuple(stages), notes=("rollout 53 (n=117)",))
    text = estimate_table(estimate, costs_money=True) + estimate_line(estimate)
    assert missing_figures(text, estimate) == []


def without_dates(lines: Sequence[str]) -> str:
    """In JSON a time is in seconds."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "", "\n".join(lines))


def test_a_library_and_a_difference() -> None:
    workspace = demo_workspace()
    listed = [listed_library(folder) for folder in workspace.libraries()]
    assert listed and missing_figures("\n".join(list_lines(listed)), listed) == []
    rows = "\n".join(plain_text(row.line) for row in library_rows(listed, "", 100))
    assert missing_figures(rows, listed) == []
    name = listed[0].library
    older, newer = find_version(f"{name}@0", workspace), find_version(name, workspace)
    lines = library_lines(newer.library, newer.labels)
    assert missing_figures(without_dates(lines), version_facts(newer)) == []
    history = history_facts(workspace.library(name), None)
    assert missing_figures(without_dates(history_lines(history)), history) == []
    facts = difference(older, newer)
    assert missing_figures("\n".join(difference_lines(facts)), facts) == []
    assert missing_figures(render_markdown(difference_page(facts)), facts) == []
    compared = compare_references(f"{name}@0", name, facts)
    screen = [
        *head_lines(compared, "side by side", 200),
        *(
            each
            for row in change_rows(compared, 200, "side by side")
            for each in (row.line, *row.more)
        ),
    ]
    assert missing_figures("\n".join(map(plain_text, screen)), facts) == []
