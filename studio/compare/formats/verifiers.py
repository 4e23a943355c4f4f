"""verifiers `traces.jsonl`: a row a rollout.

Source: Trace of verifiers/v1/trace.py (schema 1), written by verifiers/v1/cli/output.py.
"""

from pathlib import Path

from studio.compare.log import Fields, Format, read_lines
from studio.facts.comparison import Log, LogRow

MOVE = "Give traces.jsonl as a verifiers evaluation writes it, or its folder."


def read(path: Path, metric: str | None) -> list[Log]:
    """One log. The score is the sum of weighted rewards; `metric` is one reward or metric."""
    file = path / "traces.jsonl" if path.is_dir() else path
    rows = [_row(fields, metric) for fields in read_lines(file, MOVE)]
    return [Log(label=str(path), rows=rows, metrics={"": (metric or "rewards",)})]


def _row(fields: Fields, metric: str | None) -> LogRow:
    task = fields.section("task")
    name = next((n for n in ("key", "hash") if task.row.get(n)), "")
    problem = task.text(name) if name else task.section("data").text("idx")
    made = fields.require("calls", list) if fields.row.get("calls") else ()
    calls = [Fields(call, f"{fields.place}: calls", MOVE) for call in made]
    used = [call.section("usage") for call in calls if call.row.get("usage")]
    counts = [one.total("prompt_tokens", "completion_tokens") or 0 for one in used]
    return LogRow(problem, _score(fields, metric), tokens=sum(counts) if counts else None)


def _score(fields: Fields, metric: str | None) -> float | None:
    """None where scoring did not run: nulls are not written, so that a reward may be missing."""
    rewards = fields.section("rewards")
    if metric is not None and metric not in rewards.row:
        known = fields.optional_section("metrics")
        if metric not in known and not fields.row.get("errors"):
            there = ", ".join([*rewards.row, *known])
            raise fields.as_error(f'--metric "{metric}" is not in it. It has: {there}.')
        return fields.as_score(known.get(metric), metric)
    names = [metric] if metric else list(rewards.row)
    if not names or any(rewards.row[name] is None for name in names):
        return None
    parts = [rewards.section(name) for name in names]
    weights = [1.0 if metric else part.row.get("weight", 1.0) for part in parts]
    if not all(isinstance(weight, float | int) for weight in weights):
        raise fields.as_error('a "weight" of its rewards is no number.')
    scores = [part.require("score", float, int) for part in parts]
    try:
        total = sum(float(s) * float(w) for s, w in zip(scores, weights, strict=True))
    except OverflowError as error:
        raise fields.as_error('a "score" or "weight" of its rewards is out of bounds.') from error
    return fields.as_score(total, "rewards")


FORMATS = (Format(read=read, folder="traces.jsonl", line="task"),)
