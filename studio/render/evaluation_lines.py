"""Held-out evaluations as lines: rates with interval and n, differences with their verdict."""

from collections.abc import Sequence

from engines.core.events import EvaluationFinished
from studio.facts import evaluation
from studio.render.lines import indent_text, table
from studio.render.words import difference_text, rate_text, signs_text, usage_text
from studio.secrets.sanitize import one_line


def evaluation_text(facts: evaluation.EvaluationFacts) -> str:
    """`0.310 [0.22, 0.40] (n=100)`, what could not be judged, and mean tool calls."""
    rate = rate_text(facts.mean_reward, facts.interval)
    lost = f", {facts.unjudged} unjudged" if facts.unjudged else ""
    calls = ""
    if facts.tool_calls_per_try:
        calls = f", {facts.tool_calls_per_try:.1f} tool calls a try"
    return f"{rate} (n={facts.n}){lost}{calls}{left_out_text(facts.left_out)}"


def finished_text(finished: EvaluationFinished) -> str:
    """Return the text of an evaluation as it was recorded; see `evaluation_text`."""
    return evaluation_text(evaluation.evaluation_facts(finished))


def left_out_text(left_out: int) -> str:
    """Say why a result is of fewer problems than its set has; "" where it is of all."""
    return f", {left_out} apart for the reflector" if left_out else ""


def measured_line(facts: evaluation.EvaluationFacts) -> str:
    where = f"{one_line(facts.data, 80)} after step {facts.step}, {facts.version}"
    return f"{where}  {evaluation_text(facts)}"


def change_line(change: evaluation.ChangeFacts) -> str:
    """Say whether practice helped on one set."""
    comparison = change.comparison
    versions = f"{change.from_version} -> {change.to_version}"
    result = f"{difference_text(comparison)}, {comparison.verdict} ({signs_text(comparison)})"
    return f"{one_line(change.data, 80)} {versions}: {result}{left_out_text(change.set_aside)}"


def cell_lines(cells: Sequence[evaluation.CellFacts]) -> list[str]:
    """A line for each cell: `skills  trained weights, library v1  0.881 [0.85, 0.91] (n=512)`.

    Behind them, what each of the two adds to the other alone.
    """
    width = max((len(cell.name) for cell in cells), default=0)
    lines, added = [], []
    for cell in cells:
        data, change = one_line(cell.evaluation.data, 80), cell.against_neither
        line = f"{data}  {cell.name:<{width}}  {evaluation_text(cell.evaluation)}"
        if change is not None:
            line += f"  {difference_text(change)}, {change.verdict}"
        lines.append(line)
        for name, difference in cell.against_one.items():
            added.append(f"{data}  {name}  {difference_text(difference)}, {difference.verdict}")
    return lines + added


_MOST_NAMED = 5


def diagnosis_title(diagnosis: evaluation.EpochDiagnosis) -> str:
    return f"epoch {diagnosis.epoch}: what changed, and what held it back"


def diagnosis_lines(diagnosis: evaluation.EpochDiagnosis) -> list[str]:
    """A line for each set, its worsened problems, and each cause."""
    lines = [line for change in diagnosis.held_out for line in _change_lines(change)]
    if names := diagnosis.shown:
        text = "of those set apart got worse and are read in the next step"
        lines.append(f"{len(names)} {text}: {', '.join(names)}")
    for cause in diagnosis.causes:
        lines.append(f"{cause.n} of {cause.of} {cause.text}: {cause.fix}")
    return lines


def _change_lines(change: evaluation.HeldOutChange) -> list[str]:
    verdict = "the same" if change.is_same_version else change.comparison.verdict
    counts = ", ".join(f"{n} {name}" for name, n in change.counts.items())
    luck, n = "", len(change.changed)
    if n:
        luck = f" (by luck alone {change.worse_by_luck:g} of the {n} would be worse)"
    head = f"{one_line(change.data, 80)} {change.versions}: {verdict}"
    lines = [f"{head}, {difference_text(change.comparison)}: {counts}{luck}"]
    worse = [f"{name} {a:.2f} -> {b:.2f}" for name, a, b in change.changed if b < a]
    if worse:
        more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
        lines.append(f"  worsened (k={change.k}): {', '.join(worse[:_MOST_NAMED])}{more}")
    return lines


def eval_text(facts: evaluation.EvalFacts, notes: Sequence[str]) -> str:
    """Return a whole evaluation, with a table of before and after at the end."""
    lines = [*notes, facts.title, ""]
    for held_out in facts.sets:
        lines += [*_set_lines(held_out, facts.k), ""]
    if any(held_out.paired for held_out in facts.sets):
        lines += [_comparison_table(facts.sets), ""]
    reused = ""
    if facts.reused:
        reused = f" ({facts.reused} of {facts.rollouts} rollouts were known already)"
    return "\n".join([*lines, f"paid     {usage_text(facts.paid)}{reused}"])


def _set_lines(facts: evaluation.SetFacts, k: int) -> list[str]:
    columns = {
        "EXPERIENCES": [result.experiences for result in facts.results],
        f"MEAN@{k}": [rate_text(result.mean, result.interval) for result in facts.results],
    }
    if k > 1:
        columns[f"PASS@{k}"] = [_pass_text(result, k) for result in facts.results]
    columns["QUESTIONS"] = [str(result.questions) for result in facts.results]
    columns["TRIES"] = [str(result.n) for result in facts.results]
    columns["TOKENS/TRY"] = [f"{result.tokens_per_try:,.0f}" for result in facts.results]
    if any(result.tool_calls_per_try for result in facts.results):
        columns["TOOLS/TRY"] = [f"{result.tool_calls_per_try:.1f}" for result in facts.results]
    costs = [result.cost_per_try_usd for result in facts.results]
    if any(cost is not None for cost in costs):
        columns["$/TRY"] = ["-" if cost is None else f"{cost:.5f}" for cost in costs]
    rows = list(zip(*columns.values(), strict=True))
    lines = [one_line(facts.size, 400), indent_text(table([*columns], rows))]
    if facts.comparison is not None:
        after = one_line(facts.results[-1].experiences, 60)
        lines.append(
            f"  difference {difference_text(facts.comparison)}: {signs_text(facts.comparison)}"
        )
        lines.append(f"  {after}: {facts.comparison.verdict}")
    for result in facts.results:
        if result.unjudged:
            why = f"{result.unjudged} unjudged, the first because: {one_line(result.trouble, 160)}"
            lines.append(f"  {one_line(result.experiences, 60)}: {why}")
    return lines


def _pass_text(result: evaluation.MeasuredFacts, k: int) -> str:
    rate = result.pass_at[k]
    fewer = f" n={rate.questions}" if rate.questions != result.questions else ""
    return rate_text(rate.value, rate.interval) + fewer


def _comparison_table(sets: Sequence[evaluation.SetFacts]) -> str:
    rows = []
    for facts in sets:
        if (paired := facts.paired) is None:
            continue
        means = ["-" if mean is None else f"{mean:.3f}" for mean in (paired.before, paired.after)]
        difference, verdict = "-", "cannot tell"
        if facts.comparison is not None:
            difference, verdict = difference_text(facts.comparison), facts.comparison.verdict
        rows.append([facts.data, *means, difference, str(paired.questions), verdict])
    headings = ("HELD-OUT SET", "BEFORE", "AFTER", "DIFFERENCE", "QUESTIONS", "VERDICT")
    return table(headings, rows)
