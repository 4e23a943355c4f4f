"""What the studio itself measured: runs, files of evals/, score books, `studio eval --json`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engines.core import codec, errors, events
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, Usage
from engines.record import lines, seal
from engines.record.run_dir import Workspace
from studio.compare.foreign import Fields, load_json, read_json
from studio.config.loading import load_run
from studio.facts.comparison import Log, LogRow, Practised
from studio.facts.run import REHEARSAL, load_state_with_parents, origin_note
from studio.library.references import find_version
from studio.render.evaluation_lines import left_out_text
from studio.run.held_out import held_out_sets


def read_evaluation(path: Path, metric: str | None) -> list[Log]:
    """Read a file of a run's evals/. Raises DamagedError: it was altered."""
    whole = read_json(path)
    seal.refuse_altered(path)
    told = {name: value for name, value in whole.row.items() if name != "sha256"}
    try:
        return [_of_events(str(path), [codec.from_dict(events.EvaluationFinished, told)])]
    except ValueError as error:
        raise whole.as_error(f"it is no evaluation ({error}).") from error


def read_printed(path: Path, metric: str | None) -> list[Log]:
    """Read what `studio eval --json` printed: a log for each subject."""
    whole = read_json(path)
    rows: dict[str, list[LogRow]] = {}
    questions: dict[str, str] = {}
    try:
        for held_out in whole.row["sets"]:
            ids = [str(problem) for problem in held_out["problems"]]
            questions |= zip(ids, map(str, held_out.get("texts") or ()), strict=False)
            for result in held_out["results"]:
                scores = [[whole.as_score(r, "rewards") for r in row] for row in result["rewards"]]
                used = round((result.get("tokens_per_try") or 0) * sum(map(len, scores)))
                measured = _rows(ids, scores, str(held_out["data"]), Usage(0, used))
                rows.setdefault(str(result["experiences"]), []).extend(measured)
    except (KeyError, TypeError, ValueError) as error:
        raise whole.as_error(f"it is no evaluation as it is printed ({error!r}).") from error
    notes = (REHEARSAL,) if whole.row.get("rehearsal") else ()
    return [
        Log(label=name, rows=found, notes=notes, questions=questions)
        for name, found in rows.items()
    ]


def _rows(
    problems: Sequence[str], rewards: Sequence[Sequence[float | None]], name: str, used: Usage
) -> list[LogRow]:
    """Tries of a set, of which only what all used is known. A question's repeats are one."""
    tries, found = max(1, sum(map(len, rewards))), []
    cost = None if used.cost_usd is None else used.cost_usd / tries
    for problem, row in zip(problems, rewards, strict=True):
        question, _, repeat = problem.partition("#")
        for at, reward in enumerate(row):
            attempt, tokens = f"{repeat}.{at}".lstrip("."), round(used.tokens / tries)
            found.append(LogRow(question, reward, attempt, name, tokens, cost))
    return found


def _of_events(label: str, found: Sequence[events.EvaluationFinished]) -> Log:
    rows = [row for e in found for row in _rows(e.problems, e.rewards, e.data, e.total)]
    return Log(label=label, rows=rows, fingerprint=found[-1].fingerprint)


def read_scores(path: Path, metric: str | None) -> list[Log]:
    """A score book, whose problems are named by content."""
    rows, file = [], path / "scores.jsonl" if path.is_dir() else path
    with file.open("rb") as raw:
        for number, line in enumerate(raw, start=1):
            if (body := lines.decode(line)) is None:
                if line.endswith(b"\n"):
                    raise errors.DamagedError(
                        str(file),
                        f"line {number} fails its checksum.",
                        "Take the line away: it is measured anew.",
                    )
                continue  # still being written
            place = f"{file}:{number}"
            one = Fields(load_json(body, place), place)
            used = one.section("usage")
            tokens, cost = used.total("prompt_tokens", "completion_tokens"), used.amount("cost_usd")
            problem, index = one.text("problem"), one.text("index")
            rows.append(LogRow(problem, one.score("reward"), index, "", tokens, cost))
    return [Log(label=str(path), rows=rows)]


def read_reference(reference: str, workspace: Workspace) -> Log:
    """RUN (as it was last evaluated), RUN@step:N, @epoch:N, @best or @last."""
    name, at, rest = reference.partition("@")
    state = load_state_with_parents(workspace.run(name), workspace)
    if not at:
        steps = [e.step for e in state.evaluations]
        rest = f"step:{max(steps)}" if steps else "last"
    found = find_version(f"{name}@{rest}", workspace)
    measured = [e for e in found.measured if e.rewards]
    if not measured:
        known = ", ".join(map(str, sorted({e.step for e in state.evaluations})))
        move = f"Evaluated steps: {known}." if known else "Practise with evaluation.do_eval=true."
        raise errors.ConflictError(reference, "no held-out set was measured there.", move)
    learned = f"library v{found.library.version} ({len(found.library.experiences)})"
    if state.trains_weights:
        learned = f"weights v{measured[-1].policy_version}"
    practised = _practised(state, _step(rest, state), learned)
    notes = list(filter(None, [origin_note(state)]))
    notes += [f"{e.data}{left_out_text(e.left_out)}" for e in measured if e.left_out]
    log = replace(_of_events(reference, measured), practised=practised, notes=tuple(notes))
    return replace(log, questions=_questions(workspace, name))


def _questions(workspace: Workspace, name: str) -> dict[str, str]:
    """Of the held-out problems; none where they cannot be read any more: ids name them, too."""
    try:
        run_file = str(workspace.run(name).run_file)
        sets = held_out_sets(load_run(run_file, (), workspace.path, keyless=True))
    except (errors.StudioError, OSError):
        return {}
    return {problem.id: problem.question for one in sets for problem in one.problems}


def _step(rest: str, state: RunState) -> int:
    kind, _, number = rest.partition(":")
    if number:
        per = state.started.steps_per_epoch if kind == "epoch" and state.started else 1
        return int(number) * per
    return (state.best_step if kind == "best" else state.steps_finished) or 0


def _practised(state: RunState, step: int, learned: str) -> Practised:
    """What the steps up to this one cost: rollouts, judging and reading, without evaluations."""
    steps = [one for number, one in state.steps.items() if number <= step]
    problems = {codec.question_of(problem) for one in steps for problem in one.problems}
    spent = sum((one.usage for one in steps), NO_USAGE)
    return Practised(learned, str(state.settings.get("data.practice", "")), len(problems), spent)
