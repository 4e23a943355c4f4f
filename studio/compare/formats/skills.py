"""agentskills evaluations: `EVAL/CONFIG/…/grading.json`, with timing.json, around benchmark.json.

Source: agentskills.io, "Evaluating skill output quality".
"""

from pathlib import Path

from engines.core.errors import DataError
from studio.compare.log import Format, read_json
from studio.facts.comparison import Log, LogRow

MOVE = "Give a folder as iteration-1, with EVAL/with_skill/grading.json and the like in it."
_BASELINES = ("without_skill", "old_skill")


def read(path: Path, metric: str | None) -> list[Log]:
    """A log a configuration, the baseline first. The score is the pass rate of an evaluation."""
    folder = path if path.is_dir() else path.parent
    found: dict[str, list[LogRow]] = {}
    for file in sorted(folder.rglob("grading.json")):
        parts = file.relative_to(folder).parts[:-1]
        if len(parts) < 2:
            raise DataError(str(file), "it does not lie in EVAL/CONFIG.", MOVE)
        name, config, *run = parts
        found.setdefault(config, []).append(_row(file, name, "/".join(run)))
    if not found:
        raise DataError(str(path), "means alone cannot be paired: no grading.json is there.", MOVE)
    order = sorted(found, key=lambda config: (config not in _BASELINES, config))
    return [Log(label=config, rows=found[config]) for config in order]


def _row(file: Path, problem: str, attempt: str) -> LogRow:
    whole = read_json(file, MOVE)
    score = whole.section("summary").score("pass_rate")
    timing = file.with_name("timing.json")
    if not timing.exists():
        return LogRow(problem, score, attempt)
    timed = read_json(timing, MOVE)
    return LogRow(problem, score, attempt, tokens=timed.total("total_tokens"))


FORMATS = (
    Format(read=read, folder="**/grading.json"),
    Format(read=read, folder="benchmark.json", file="benchmark.json"),
)
