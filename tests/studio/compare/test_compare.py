"""`studio compare` as a user meets it: pairs, verdicts, forms, exit codes; and it only reads."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.core.types import Usage
from engines.pipeline.evaluation.statistics import holm_adjusted
from studio.facts.comparison import Log, LogRow, Practised, compare_logs
from studio.render.comparison_page import comparison_page
from studio.render.page import render_text
from tests.support.foreign_logs import INSPECT_HEAD, inspect_samples, write_json
from tests.support.processes import SMALL
from tests.support.run_studio import Result, studio

Rows = Sequence[tuple[str, float]]


def table(path: Path, rows: Rows, head: str = "problem,score") -> Path:
    path.write_text(head + "\n" + "".join(f"{name},{score}\n" for name, score in rows), "utf-8")
    return path


def sides(folder: Path, before: Sequence[float], after: Sequence[float]) -> tuple[str, str]:
    """Two CSVs of problems p0, p1 and so on."""
    paths = []
    for name, scores in (("before", before), ("after", after)):
        rows = [(f"p{n}", score) for n, score in enumerate(scores)]
        paths.append(str(table(folder / f"{name}.csv", rows)))
    return paths[0], paths[1]


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def run(*words: str, workspace: Path | None = None) -> Result:
        return studio("compare", *words, workspace=workspace or tmp_path / "practice")

    return run


def data(done: Result) -> Any:
    assert done.code in (0, 6), done.stderr
    return json.loads(done.stdout)


def log(label: str, rows: Sequence[LogRow], practised: Practised | None = None) -> Log:
    return Log(label=label, rows=rows, practised=practised)


WORSE = ([1.0] * 30, [0.0] * 12 + [1.0] * 18)
BETTER = WORSE[::-1]


# What is compared


def test_an_evaluation_that_was_printed_is_judged_as_it_judged_itself(
    practised: Path, compare: Any
) -> None:
    few = ("evaluation.data=arithmetic-heldout", "evaluation.limit=20")
    words = ("rehearsal", *few, "--library", "rehearsal", "--baseline", "none", "--json")
    printed = studio("eval", *words, workspace=practised)
    path = practised.parent / "evaluation.json"
    path.write_text(printed.stdout)
    (found,) = data(compare(str(path), "--json", workspace=practised))["comparisons"]
    (wanted,) = json.loads(printed.stdout)["sets"]
    keys = ("difference", "questions", "p", "verdict")
    assert [found[name] for name in keys] == [wanted["comparison"][name] for name in keys]
    assert (found["before"], found["after"]) == ("none", "rehearsal@2")
    assert "rehearsal" in compare(str(path), workspace=practised).stdout.rpartition("Notes")[2]
    books = sorted(path.parent for path in practised.glob("evaluations/*/scores.jsonl"))
    assert len(books) >= 2
    both = data(compare(*map(str, books[:2]), "--json", workspace=practised))
    assert abs(both["comparisons"][0]["difference"]) == pytest.approx(abs(found["difference"]))
    assert both["logs"][0]["tokens_per_try"] > 0


def test_runs_stand_beside_each_other_with_what_their_practice_took(
    workspace: Path, compare: Any
) -> None:
    measured = (*SMALL, "evaluation.do_eval=true", "evaluation.limit=20")
    assert studio("headless", "rehearsal", *measured, workspace=workspace).code == 0
    words = ("rehearsal@step:0", "rehearsal", "rehearsal@epoch:1")
    found = data(compare(*words, "--json", workspace=workspace))
    first, last, epoch = (one["practised"] for one in found["logs"])
    assert (first["problems"], first["spent"]["calls"]) == (0, 0)
    assert last == epoch and last["problems"] == 8 and last["spent"]["calls"] > 0
    assert (first["learned"], last["learned"].partition(" (")[0]) == (
        "library v0 (0)",
        "library v2",
    )
    (workspace.parent / "rehearsal").mkdir()  # is no log, and `./rehearsal` if anything
    assert "no known log" in compare("./rehearsal", "rehearsal", workspace=workspace).stderr
    shown = compare(*words, workspace=workspace).stdout
    assert "Practice" in shown and "scripted (rehearsal)" in shown
    case = found["comparisons"][0]["cases"][0]
    assert case["flipped"] and f"({case['question'][:30]}" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    evals = sorted(map(str, (workspace / "runs/rehearsal/evals").glob("*heldout*")))
    files_found = data(compare(evals[0], evals[-1], "--json", workspace=workspace))
    keys = ("difference", "interval", "p")
    a, b = (one["comparisons"][0] for one in (found, files_found))
    assert [a[key] for key in keys] == [b[key] for key in keys]
    refused = compare("rehearsal@step:1", "rehearsal", workspace=workspace)
    assert refused.code == 2 and "Evaluated steps: 0, 2" in refused.stderr


def test_what_was_practised_stands_beside_its_cost() -> None:
    learned = Practised("weights v4", "arithmetic-hard", 40, Usage(10, 20, 3, 0.5))
    rows = {
        score: [LogRow(f"p{n}", score, "", name) for name in ("arithmetic-larger", "web")
                for n in range(9)]
        for score in (0.0, 1.0)
    }  # fmt: skip
    logs = [log("frozen", rows[0.0]), log("tuned", rows[1.0], learned)]
    text = render_text(comparison_page(compare_logs(logs, None, 1)))
    assert "weights v4  40        30      0.50  1.000" in text


# How it is paired


def test_tries_pair_by_name_where_both_have_names_and_the_rest_is_named(
    tmp_path: Path, compare: Any
) -> None:
    head = "problem,seed,score"
    before = table(tmp_path / "a.csv", [("p,1", 1), ("p,2", 0), ("q,1", 0), ("gone,1", 1)], head)
    after = table(tmp_path / "b.csv", [("p,1", 1), ("p,3", 1), ("q,1", 1), ("new,1", 1)], head)
    (found,) = data(compare(str(before), str(after), "--json"))["comparisons"]
    # p: only seed 1, which did not change; q: 0 to 1.
    assert (found["questions"], found["difference"]) == (2, 0.5)
    assert found["unmatched"] == [["p, try 2", "gone"], ["p, try 3", "new"]]
    shown = compare(str(before), str(after)).stdout
    assert "only in A: 2 (p, try 2; gone)" in shown
    plain = table(tmp_path / "c.csv", [("p", 1), ("p", 1), ("q", 1)])
    (found,) = data(compare(str(before), str(plain), "--json"))["comparisons"]
    assert found["difference"] == (0.5 + 1) / 2  # p: .5 to 1, all of its tries
    assert found["unmatched"] == [["gone"], []]


def test_flipped_cases_come_first_and_from_right_to_wrong_first_of_all(
    tmp_path: Path, compare: Any
) -> None:
    before, after = sides(tmp_path, [1, 0, 0.6, 0.2, 1, 0.7], [0, 1, 0.9, 0.1, 1, 0.4])
    (found,) = data(compare(before, after, "--json"))["comparisons"]
    cases = [(case["problem"], case["flipped"]) for case in found["cases"]]
    assert cases == [("p0", True), ("p5", True), ("p1", True), ("p3", False), ("p2", False)]
    shown = compare(before, after).stdout
    assert "right to wrong: 2 (p0; p5)\n  wrong to right: 1 (p1)" in shown


def test_several_sets_and_logs_are_corrected_together() -> None:
    def rows(wins: int, name: str) -> list[LogRow]:
        return [LogRow(f"p{n}", float(n < wins), "", name) for n in range(20)]

    base = log("A", [*rows(0, "x"), *rows(0, "y")])
    others = [log("B", [*rows(6, "x"), *rows(0, "y")]), log("C", [*rows(12, "x"), *rows(7, "y")])]
    # Alone, six of six are p = 2/2^6 = .031 and an interval above 0: helps.
    (alone,) = compare_logs([base, others[0]], "x", 1).comparisons
    assert (alone.comparison.verdict, alone.p_adjusted) == ("helps", 1 / 32)
    found = compare_logs([base, *others], None, 1).comparisons
    ps = [1 / 32, 1.0, 2 / 2**12, 2 / 2**7]
    assert [pair.comparison.p for pair in found] == ps
    assert [pair.p_adjusted for pair in found] == list(holm_adjusted(ps))
    verdicts = [pair.comparison.verdict for pair in found]
    assert verdicts == ["cannot tell", "cannot tell", "helps", "helps"]
    assert alone.smallest_effect is not None and found[0].smallest_effect is not None
    assert (
        found[0].smallest_effect > alone.smallest_effect and found[0].power[0.1] < alone.power[0.1]
    )


def test_sets_without_a_name_are_one_and_sets_of_other_names_are_not(
    tmp_path: Path, compare: Any
) -> None:
    x, y = ([LogRow("p", 1.0, "", name)] for name in ("x", "y"))
    plain = [LogRow("p", 0.0)]
    (pair,) = compare_logs([log("A", plain), log("B", y)], None, 1).comparisons
    assert (pair.set, pair.comparison.difference) == ("y", 1.0)
    path = table(tmp_path / "x.csv", [("p,x", 1), ("q,x", 0), ("p,y", 0)], "problem,set,score")
    again = table(tmp_path / "y.csv", [("p,y", 0), ("z,y", 1)], "problem,set,score")
    found = data(compare(str(path), str(path), "--set", "y", "--json"))["comparisons"]
    assert [one["set"] for one in found] == ["y"]
    assert "the set x is only in A\n" in compare(str(path), str(again)).stdout
    twice = table(tmp_path / "t.csv", [("p,1", 1), ("p,1", 0)], "problem,seed,score")
    for words, says in (
        ((str(path), str(again), "--set", "z"), "no log has a set of that name. There are: x, y."),
        ((str(path), str(again), "--set", "x"), "it shares no scored problem with"),
        (
            (str(path), str(table(tmp_path / "n.csv", [("n,x", 1)], "problem,set,score"))),
            "x: n; x: p",
        ),
        ((str(path), str(twice)), "problem p, try 1 is there twice"),
        ((str(path),), "there is nothing to compare it with"),
        (("gone.csv", str(path)), "there is no such file or folder"),
        (("nobody", str(path)), "run nobody: there is none"),
    ):
        done = compare(*words)
        assert done.code == 2 and says in done.stderr, (done.stderr, x)


# What a CI asks


@pytest.mark.parametrize(
    ("scores", "words", "code"),
    [
        (WORSE, (), 0),
        (WORSE, ("--fail-if-worse",), 6),
        (BETTER, ("--fail-if-worse",), 0),
        (BETTER, ("--min-effect", "0.1"), 0),  # its interval begins at .21
        (BETTER, ("--min-effect", "0.3"), 6),
        (WORSE, ("--min-effect", "-0.7"), 0),  # it ends at -.59: no more than .7 is lost
        (WORSE, ("--min-effect", "-0.5"), 6),
        (([1.0] * 30, [1.0] * 30), ("--fail-if-worse", "--min-effect", "-0.2"), 0),
        (([1.0] * 30, [1.0] * 30), ("--min-effect", "0"), 6),
    ],
)
def test_the_exit_code_says_whether_it_is_worse_or_too_little(
    scores: Any, words: tuple[str, ...], code: int, tmp_path: Path, compare: Any
) -> None:
    done = compare(*sides(tmp_path, *scores), *words)
    assert done.code == code
    if "--min-effect" in words:
        assert ("not reached by B on all" in done.stdout) == (code == 6)


HOSTILE = "<script>alert(1)</script>|`x`[y](z)\x1b[2J"


def test_text_of_files_stays_text_in_every_form(tmp_path: Path, compare: Any) -> None:
    rows = [(f'"{HOSTILE}"', 1), *((f"p{n}", 1) for n in range(9))]
    before = table(tmp_path / "a.csv", rows)
    after = table(tmp_path / "b.csv", [(name, 0) for name, _ in rows])
    shown = {
        form: compare(str(before), str(after), "--format", form) for form in ("text", "md", "html")
    }
    assert all(done.code == 0 and "\x1b" not in done.stdout for done in shown.values())
    assert "<script" not in shown["md"].stdout.replace("\\<", "") + shown["html"].stdout
    assert "\\|\\`x\\`\\[y](z)" in shown["md"].stdout
    tables = [line for line in shown["md"].stdout.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables[:3]} == {8}

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag not in ("script", "link", "img", "iframe")
            assert not {"src", "href"} & {name for name, _ in attrs}

    Links().feed(shown["html"].stdout)
    assert ">hurts</td>" in shown["html"].stdout and "| hurts |" in shown["md"].stdout


def test_names_and_notes_of_files_reach_no_terminal_as_they_are(
    tmp_path: Path, compare: Any
) -> None:
    samples = inspect_samples([(f"p{n}", 1, 1.0) for n in range(9)])
    for sample in samples:
        sample["scores"] = {"a\x1b[2J\u202e": {"value": 1.0}}
    head = INSPECT_HEAD | {"status": "\x1b[31mfailed\x07", "samples": samples}
    path = str(write_json(tmp_path / "i.json", head))
    shown = compare(path, path).stdout
    assert "status is" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_tries_without_a_name_are_no_other_tries() -> None:
    before = [LogRow("p", 1.0, "#1"), LogRow("p", 0.0), LogRow("p", 0.0)]
    after = [LogRow("p", 1.0, "#1"), LogRow("p", 1.0), LogRow("p", 1.0)]
    (pair,) = compare_logs([log("a", before), log("b", after)], None, 1).comparisons
    assert pair.means == pytest.approx((1 / 3, 1.0))


def test_the_seed_moves_the_bootstrap_and_nothing_else(tmp_path: Path, compare: Any) -> None:
    before, after = sides(
        tmp_path, [n / 41 for n in range(40)], [n * n % 37 / 37 for n in range(40)]
    )
    one, same, two = (
        data(compare(before, after, "--json", "--seed", seed))["comparisons"][0]
        for seed in ("1", "1", "2")
    )
    assert one == same
    assert one["bootstrap"] != two["bootstrap"]
    assert one | {"bootstrap": None} == two | {"bootstrap": None}
    low, high = one["bootstrap"]
    assert one["bootstrap"] == pytest.approx(one["interval"], abs=0.02)
    assert f"bootstrap {low:+.3f} to {high:+.3f}" in compare(before, after).stdout


def test_forms_that_contradict_each_other_are_refused(compare: Any) -> None:
    assert compare("a", "b", "--json", "--format", "md").code == 2
    assert compare("a", "b", "--min-effect", "nan").code == 2


def test_an_interrupted_comparison_leaves_nothing_behind(
    tmp_path: Path, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = sides(tmp_path, *WORSE)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("studio.compare.foreign._csv_row", interrupt)
    there = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    assert (compare(before, after).code, compare(before, after).stdout) == (130, "")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == there


def test_the_workflow_for_github_actions_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = files("sample_data").joinpath("github-actions/compare.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    (job,) = workflow["jobs"].values()
    assert workflow[True] == "pull_request"  # YAML takes the key `on` for a truth value
    install, *runs = [step["run"] for step in job["steps"] if "run" in step]
    assert install == "pip install practice-studio"
    monkeypatch.chdir(tmp_path)
    preset = files("studio.presets").joinpath("rehearsal.yaml").read_text("utf-8")
    (tmp_path / "few.yaml").write_text(preset.replace("limit: 100", "limit: 10"))
    own = {"RUNFILE": "few.yaml"}
    for name, value in {**workflow["env"], **own, "GITHUB_STEP_SUMMARY": "summary.md"}.items():
        monkeypatch.setenv(name, value)
    for line in runs:
        command, _, target = line.replace(">>", ">").partition(" > ")
        program, *words = shlex.split(os.path.expandvars(command))
        done = studio(*words, workspace=tmp_path / "practice", cwd=tmp_path)
        assert (program, done.code) == ("studio", 0), done.stderr
        (tmp_path / os.path.expandvars(target.strip('"'))).write_text(done.stdout)
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# studio compare\n\n## Compared\n\n- A none (baseline)")
    assert "| cannot tell |" in summary
