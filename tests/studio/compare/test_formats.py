"""Every format: what is read of it, and an error of its own for each way to be wrong."""

from __future__ import annotations

import json
import os
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import ConflictError, StudioError
from engines.record.run_dir import Workspace
from studio.compare.open import open_logs
from studio.facts.comparison import Log, compare_logs
from tests.support.foreign_logs import (
    INSPECT_HEAD,
    WRITERS,
    inspect_samples,
    promptfoo_results,
    write_json,
    write_jsonl,
)
from tests.support.run_studio import studio

TRIED = [("a", 1, 1.0), ("b", 1, 0.0), ("a", 2, 0.5), ("b", 2, 1.0)]


def logs(*paths: Path | str, metric: str | None = None) -> list[Log]:
    return open_logs([str(path) for path in paths], Workspace(Path("nowhere")), metric)


def one(path: Path | str, metric: str | None = None) -> Log:
    """Read beside itself, since a log alone cannot be compared."""
    return logs(path, path, metric=metric)[0]


@pytest.mark.parametrize("name", WRITERS)
def test_scores_problems_tries_tokens_and_costs_are_read(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, TRIED)
    log = logs(path)[0] if name == "agentskills" else one(path)
    # A problem of lm-eval is its number with the start of its hash, of promptfoo its variables.
    called = {
        "lm-eval": "{n}:{p}-of-64-",
        "promptfoo": '{{"question":"{p}"}}',
        "promptfoo JSONL": '{{"question":"{p}"}}',
        "agentskills": "eval-{p}",
    }.get(name, "{p}")
    wanted = sorted((called.format(p=p, n=ord(p)), score) for p, _, score in TRIED)
    assert sorted((row.problem, row.score) for row in log.rows) == wanted
    told = {row.attempt for row in log.rows}
    untold = name in ("lm-eval", "promptfoo", "promptfoo JSONL", "verifiers")
    runs = {"run-1", "run-2"} if name == "agentskills" else {"1", "2"}
    assert told == ({""} if untold else runs)
    assert {row.tokens for row in log.rows} == {None if name == "lm-eval" else 120}
    costs = {0.002} if name == "csv" or name.startswith("promptfoo") else {None}
    assert {row.cost_usd for row in log.rows} == costs
    sets = {"lm-eval": {"gsm8k1", "gsm8k2"}}.get(name, {""})
    named = name == "csv" or name.startswith("inspect")
    assert {row.set for row in log.rows} == ({"gsm8k"} if named else sets)


@pytest.mark.parametrize(
    ("name", "metric", "scores"),
    [
        ("lm-eval", "exact_match,flexible-extract", [1, 1, 1, 1]),
        ("inspect JSON", "rubric/facts", [0.5, 0.5, 0.5, 0.5]),
        ("promptfoo", "success", [1, 0, 1, 1]),
        ("promptfoo", "facts", [1, 0, 0.5, 1]),
        ("verifiers", "style", [0.3, 0.3, 0.3, 0.3]),
        ("verifiers", "turns", [1, 1, 1, 1]),
    ],
)
def test_another_metric_is_named(
    name: str, metric: str, scores: list[float], tmp_path: Path
) -> None:
    path = WRITERS[name](tmp_path, TRIED)
    assert [row.score for row in one(path, metric).rows] == scores
    with pytest.raises(StudioError, match="nonsense"):
        one(path, "nonsense")


def test_a_scorer_may_have_slashes_in_its_name(tmp_path: Path) -> None:
    samples = inspect_samples(TRIED)
    for sample in samples:
        facts = {"value": {"a/b": 0.25, "c": 1.0}}
        sample["scores"] = {"team/match": sample["scores"]["match"], "team/facts": facts}
    path = write_json(tmp_path / "i.json", INSPECT_HEAD | {"samples": samples})
    assert [row.score for row in one(path).rows] == [1.0, 0.0, 0.5, 1.0]
    assert [row.score for row in one(path, "team/facts/a/b").rows] == [0.25] * 4


def test_logs_that_begin_with_other_metrics_are_not_compared_unsaid(tmp_path: Path) -> None:
    log = one(WRITERS["inspect JSON"](tmp_path, TRIED))
    (task, names), *_ = log.metrics.items()
    swapped = replace(log, label="other", metrics={task: (names[1], names[0])})
    with pytest.raises(ConflictError, match=re.escape(f"--metric {names[0]}")):
        compare_logs([log, swapped], task, 1)
    foreign = replace(log, metrics={task: ("elsewhere",)})
    assert compare_logs([log, foreign], task, 1)
    assert any(f"{names[0]} is compared; --metric takes {names[1]}" in note for note in log.notes)


def test_a_column_of_csv_is_a_metric_too_and_an_empty_cell_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("problem,try,grade\n" + "a,1,true\nb,1,\n\nc,2,0.25\n")
    read = [(row.problem, row.score, row.attempt) for row in one(path, "grade").rows]
    assert read == [("a", 1.0, "1"), ("b", None, "1"), ("c", 0.25, "2")]


def test_what_failed_before_it_was_judged_is_no_wrong_answer(tmp_path: Path) -> None:
    samples = inspect_samples(TRIED)
    samples[0] |= {"scores": None, "error": {"message": "timeout"}}
    samples[1]["scores"]["match"]["value"] = float("nan")
    log = one(write_json(tmp_path / "i.json", INSPECT_HEAD | {"samples": samples}))
    assert [row.score for row in log.rows] == [None, None, 0.5, 1.0]
    results = promptfoo_results(TRIED)
    results[2] |= {"failureReason": 2, "error": "rate limited"}
    log = one(write_json(tmp_path / "p.json", {"results": {"version": 3, "results": results}}))
    assert [row.score for row in log.rows] == [1.0, 0.0, None, 1.0]
    traces = WRITERS["verifiers"](tmp_path, TRIED) / "traces.jsonl"
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    rows[0] |= {"rewards": {}, "errors": [{"type": "ProviderError", "message": "…"}], "ok": False}
    write_jsonl(traces, rows)
    assert [row.score for row in one(traces).rows] == [None, 0.0, 0.5, 1.0]


def test_an_unfinished_inspect_log_is_read_from_what_was_flushed_and_says_so(
    tmp_path: Path,
) -> None:
    path, samples = tmp_path / "cut.eval", inspect_samples(TRIED)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("_journal/start.json", json.dumps({"eval": INSPECT_HEAD["eval"]}))
        file.writestr("_journal/summaries/1.json", json.dumps(samples[:2]))
        file.writestr("_journal/summaries/2.json", json.dumps(samples[2:3]))
    log = one(path)
    assert [row.score for row in log.rows] == [1.0, 0.0, 0.5]
    assert "started" in log.notes[-1]


def test_one_of_several_logs_in_a_file_is_named_and_all_stand_alone(tmp_path: Path) -> None:
    both = [*promptfoo_results(TRIED), *promptfoo_results(TRIED, column=1)]
    path = write_json(tmp_path / "p.json", {"results": {"version": 3, "results": both}})
    names = [log.label for log in logs(path)]
    assert [name.partition(",")[0] for name in names] == ["openai:chat:m0", "openai:chat:m1"]
    given = [f"{path}#{name}" for name in reversed(names)]
    assert [log.label for log in logs(*given)] == given
    with pytest.raises(StudioError, match="holds 2 logs"):
        logs(path, path)
    with pytest.raises(StudioError, match="is called 'm1'"):
        logs(f"{path}#m1", path)
    folder = WRITERS["agentskills"](tmp_path, TRIED)
    assert [log.label for log in logs(folder)] == ["without_skill", "with_skill"]
    assert logs(folder / "benchmark.json") == logs(folder)


def test_of_two_dates_of_a_task_the_newer_is_read_and_models_are_logs(tmp_path: Path) -> None:
    folder = WRITERS["lm-eval"](tmp_path, TRIED[:2])
    old = next(folder.glob("*.jsonl"))
    newer = write_jsonl(folder / old.name.replace("2026-09-01", "2026-09-02"), [])
    newer.write_text(old.read_text().replace('"exact_match": 0.0', '"exact_match": 1.0'))
    log = one(folder)
    assert [row.score for row in log.rows] == [1.0, 1.0]
    assert any("newest" in note for note in log.notes)
    WRITERS["lm-eval"](tmp_path / "other", TRIED[:2])
    assert len(logs(tmp_path)) == 2


Change = Callable[[str], str]
"""What is made of a whole file's text."""


def part(path: Path) -> Path:
    """The file of a log that is spoiled."""
    if path.is_file():
        return path
    return sorted([*path.rglob("*.jsonl")] or path.rglob("grading.json"))[0]


def swap(old: str, new: str, count: int = 1) -> Change:
    return lambda text: text.replace(old, new, count)


CUT: Change = lambda text: text[: len(text) * 2 // 3]  # noqa: E731

WRONG: list[tuple[str, str, Change, tuple[str, ...]]] = [
    ("csv", "cut", lambda text: text[:-12], ("scores.csv:5", "5 cells")),
    ("csv", "open quote", lambda text: text + '"c,1', ("scores.csv:6", "cut")),
    ("csv", "another's", lambda text: '{"doc_id": 1}\n', ("scores.csv:1", "no column problem")),
    ("csv", "missing", swap("score", "mark"), ("scores.csv:1", "no column score")),
    ("csv", "no problem", swap('"b"', ""), ("scores.csv:3", '"problem" is empty')),
    ("csv", "type", swap("0.0,", "good,"), ("scores.csv:3", "'good', no number")),
    ("csv", "range", swap("0.5,", "7,"), ("scores.csv:4", "7.0, no score from 0 to 1")),
    ("csv", "empty", lambda text: "", ("scores.csv:1", "empty")),
    ("csv", "two columns", swap("cost", "score"), ("scores.csv:1", 'two columns are called "sc')),
    ("csv", "amount", swap(",120,", ",1e300,"), ("scores.csv:2", '"tokens" is the number 1e+300')),
    ("lm-eval", "cut", CUT, (".jsonl:3", "cut, or no JSON")),
    ("lm-eval", "another's", lambda text: '{"task": {}}\n', (".jsonl:1", '"doc_id" is missing')),
    ("lm-eval", "missing", swap('"doc_id"', '"id"'), (".jsonl:1", '"doc_id" is missing')),
    ("lm-eval", "type", swap('"exact_match": 1.0', '"exact_match": "yes"', 9), ("no metric",)),
    ("lm-eval", "metrics", swap('"exact_match"]', "1, [2]]", 9), ("no metric",)),
    ("lm-eval", "later type", swap('"exact_match": 0.0', '"exact_match": []'), (":3", "a list")),
    ("lm-eval", "twice", lambda text: text + text, (".jsonl:5", "twice")),
    ("lm-eval", "empty", lambda text: "", ("is empty",)),
    ("inspect JSON", "cut", CUT, ("log.json", "cut, or no JSON (line")),
    ("inspect JSON", "missing", swap('"id"', '"ids"'), ("samples[0]", '"id" is missing')),
    ("inspect JSON", "no task", swap('"eval"', '"evals"'), ("log.json", '"eval" is missing')),
    ("inspect JSON", "type", swap('"epoch": 1', '"epoch": {}'), ("samples[0]", '"epoch" is an ob')),
    ("inspect JSON", "grade", swap('"C"', '"good"'), ("samples[0]", "is text, no score")),
    ("inspect JSON", "range", swap('"C"', "7"), ("samples[0]", "no score from 0 to 1")),
    (
        "inspect JSON",
        "twice",
        swap('"epoch": 2', '"epoch": 1'),
        ("problem a, try 1 is there twice",),
    ),
    ("inspect JSON", "amount", swap('_tokens": 120', '_tokens": 1e308'), ("1e+308, no amount",)),
    ("inspect JSON", "unscored", swap('"scores"', '"marks"', 9), ("none of its samples",)),
    ("promptfoo", "cut", CUT, ("out.json", "cut, or no JSON (parse error: premature EOF)")),
    ("promptfoo", "missing", swap('"score"', '"s"', 2), ("results[0]", '"score" is missing')),
    ("promptfoo", "no column", swap('"promptIdx"', '"p"'), ("results[0]", '"promptIdx" is mis')),
    ("promptfoo", "type", swap('"testIdx": 0', '"testIdx": "0"'), ("results[0]", "is text")),
    ("promptfoo JSONL", "cut", CUT, ("out.jsonl:3", "cut, or no JSON")),
    (
        "promptfoo JSONL",
        "deep",
        swap('"vars": {', '"vars": {"d": ' + "[" * 300 + "]" * 300 + ", ", 9),
        ("out.jsonl:1", '"vars" cannot name'),
    ),
    ("promptfoo JSONL", "missing", swap('"score"', '"s"', 3), (":1", '"score" is missing')),
    (
        "promptfoo",
        "list",
        swap('"results": [', '"results": 4, "x": ['),
        ("results.results", "no list of rows"),
    ),
    ("verifiers", "cut", CUT, ("traces.jsonl:3", "cut, or no JSON")),
    ("verifiers", "another's", lambda text: '{"doc_id": 1}\n', (":1", '"task" is missing')),
    ("verifiers", "missing", swap('"score"', '"s"'), ("traces.jsonl:1", '"score" is missing')),
    ("verifiers", "type", swap('"score": 1.0', '"score": "1"'), ("rewards: correct", "is text")),
    ("verifiers", "weight", swap('"weight": 1.0', '"weight": "1"'), ("rewards", '"weight"')),
    ("verifiers", "no task", swap('"key": "a"', '"data": {}'), (":1: task: data", '"idx" is mis')),
    ("agentskills", "cut", CUT, ("grading.json", "cut, or no JSON")),
    ("agentskills", "another's", lambda text: '{"results": 1}', ('"summary" is missing',)),
    ("agentskills", "missing", swap('"pass_rate"', '"rate"'), ("summary", '"pass_rate" is mis')),
    ("agentskills", "type", swap('"pass_rate": 1.0', '"pass_rate": "1"'), ("is text",)),
]


@pytest.mark.parametrize(
    ("name", "how", "change", "says"), WRONG, ids=[f"{name}, {how}" for name, how, *_ in WRONG]
)
def test_each_wrong_file_has_its_own_error(
    name: str, how: str, change: Change, says: tuple[str, ...], tmp_path: Path
) -> None:
    path = WRITERS[name](tmp_path, TRIED)
    spoiled = part(path)
    text = spoiled.read_text("utf-8")
    assert change(text) != text
    spoiled.write_text(change(text), "utf-8")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    done = studio("compare", str(path), str(path), workspace=tmp_path / "practice")
    assert (done.code, done.stdout) == (2, ""), done.stderr
    assert str(spoiled if "no column" in done.stderr else path) in done.stderr
    for words in says:
        assert words in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.rstrip().endswith(".")
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as its container and key."""
    for key in value.keys() if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


@pytest.mark.parametrize(
    "name", [name for name in WRITERS if "csv" not in name and "." not in name]
)
def test_whatever_stands_in_a_field_it_is_read_or_refused_and_no_bug(
    name: str, tmp_path: Path
) -> None:
    path, draw = WRITERS[name](tmp_path, TRIED[:2]), random.Random(1)
    spoiled = part(path)
    lines, refused = spoiled.suffix == ".jsonl", 0
    for _ in range(150):
        text = spoiled.read_text("utf-8")
        values = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
        places = [place for value in values for place in nodes(value)]
        container, key = draw.choice(places)
        container[key] = draw.choice([None, True, 7, -1, 0.5, float("nan"), "x", [], [1], {}])
        (write_jsonl if lines else write_json)(spoiled, values if lines else values[0])
        try:
            compare_logs(logs(path) if name == "agentskills" else logs(path, path), None, 1)
        except StudioError:
            refused += 1
        spoiled.write_text(text, "utf-8")
    assert 0 < refused < 150


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("x.eval", b"PK\x03\x04 cut", "cut, or no zip"),
        ("x.eval", b'{"samples": []}', "cut, or no zip"),
        ("x.json", b'{"mystery": 1}', "no known form: mystery"),
        ("x.json", b"[1, 2]", "it is a list, no object"),
        ("x.jsonl", b'{"mystery": 1}\n', "no known form: mystery"),
        ("x.json", b'{"step": 0, "rewards": []}', "it is no evaluation"),
        ("x.json", b'{"kind": "Evaluation", "sets": 4}', "no evaluation as it is printed"),
        ("benchmark.json", b'{"run_summary": {}}', "means alone cannot be paired"),
        ("x.csv", b"problem,score\n\xff,1\n", "no UTF-8"),
        ("x.csv", b"problem,score\n", "no scored try"),
        ("scores.jsonl", b'{"n":1}\n', "line 1 fails its checksum"),
        ("folder/notes.txt", b"", "no known log is in this folder"),
    ],
)
def test_what_is_no_log_is_refused(file: str, content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    given = path if path.parent == tmp_path else path.parent
    done = studio("compare", str(given), str(given), workspace=tmp_path / "practice")
    assert done.code == 2
    assert str(given) in done.stderr and says in done.stderr


@pytest.mark.parametrize("name", ["inspect .eval", "inspect .eval, Zstandard"])
def test_a_zip_that_is_cut_damaged_or_without_a_head_is_refused(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path, TRIED)
    whole = path.read_bytes()
    at = whole.rindex(b"summaries.json", 0, len(whole) * 3 // 4) + 20
    for spoiled in (whole[: len(whole) // 2], whole[:at] + b"?!?!" + whole[at + 4 :]):
        path.write_bytes(spoiled)
        with pytest.raises(StudioError, match="cut, or no zip"):
            one(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "x")
    with pytest.raises(StudioError, match=r"no header\.json"):
        one(path)


def test_an_entry_that_unpacks_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITERS["inspect .eval"](tmp_path, TRIED)
    monkeypatch.setattr("studio.compare.foreign._LARGEST", 500)
    with pytest.raises(StudioError, match=r"summaries\.json: it is .* when unpacked"):
        one(path)


@pytest.mark.parametrize("name", ["f.csv", "f.json", "f.jsonl", "f.eval"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(StudioError, match="a pipe or a device"):
        one(tmp_path / name)


def test_a_metric_that_nothing_has_is_refused(tmp_path: Path) -> None:
    path = WRITERS["agentskills"](tmp_path, TRIED)
    with pytest.raises(StudioError, match="one score alone"):
        logs(path, metric="f1")


def test_what_was_flushed_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.eval", "w") as file:
        file.writestr("_journal/start.json", json.dumps({"eval": INSPECT_HEAD["eval"]}))
        for number in (10, 9):
            rows = [row | {"id": f"p{number}"} for row in inspect_samples(TRIED[:1])]
            file.writestr(f"_journal/summaries/{number}.json", json.dumps(rows))
    assert [row.problem for row in one(tmp_path / "x.eval").rows] == ["p9", "p10"]


def test_without_zstandard_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITERS["inspect .eval, Zstandard"](tmp_path, TRIED)

    def no_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("engines.data.rows.import_module", no_module)
    with pytest.raises(StudioError, match=r"backports.zstd is not installed.*\[inspect\]"):
        one(path)
