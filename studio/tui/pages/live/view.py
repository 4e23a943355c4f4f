"""What the live page shows of a batch: its groups, its stages, its counts. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby

from engines.core import events as ev
from engines.core.state.run_state import RunState
from engines.core.types import GroupOutcome
from studio.facts.next_command import curation_text
from studio.facts.training import trained_step
from studio.render.run_lines import NO_WORKER, sandbox_text, tool_texts
from studio.render.words import count_text, no_practice_text, to_decide_text, usage_text
from studio.secrets.sanitize import one_line
from studio.tui.drawing.canvas import Mode
from studio.tui.drawing.cells import GLYPHS_UNICODE, Glyphs, fit
from studio.tui.drawing.lines import (
    BLANK,
    Line,
    Row,
    Span,
    crop_line,
    legend_line,
    line,
    paragraph,
    plain_text,
    width_of,
)
from studio.tui.drawing.pane import PaneModel
from studio.tui.header import SessionStatus
from studio.tui.pages import training_view
from studio.tui.pages.live.batch import Batch, HeldOutTry, RolloutStatus
from studio.tui.pages.training_view import panel_lines

STRIP_CELLS = 16
"""A longer strip of glyphs gives way to numbers."""
_SAID_CELLS = len("0.0 cut")
_ACTS_CELLS = len("12/11!")
ACTS_MEANING = "4/3: turns/tool calls, ! failed"
_ORDER = ("won", "lost", "streaming", "queued", "error", "open")
_STYLES = {"error": "failed", "open": "flag"}
NO_QUESTIONS: Mapping[str, str] = {}
SKIPPED: tuple[GroupOutcome, ...] = ("all-right", "all-equal", "all-wrong", "unjudged")


def style_of(state: str) -> str:
    return _STYLES.get(state, state)


def rollout_glyphs(tries: Sequence[RolloutStatus], signs: Glyphs = GLYPHS_UNICODE) -> Line:
    """`++-+>>>>`, one glyph a rollout; numbers where a group is large: `+12 -3 >1`."""
    if len(tries) <= STRIP_CELLS:
        runs = groupby(tries, key=lambda one: one.state)
        return tuple(
            (getattr(signs, state) * sum(1 for _ in many), style_of(state)) for state, many in runs
        )
    counted = Counter(one.state for one in tries)
    return tuple(
        (f"{getattr(signs, state)}{counted[state]} ", style_of(state))
        for state in _ORDER
        if counted[state]
    )


def group_line(
    batch: Batch,
    position: int,
    under_way: Set[str],
    signs: Glyphs = GLYPHS_UNICODE,
    *,
    question: str = "",
    width: int = 60,
) -> Line:
    """`s3p0  ++-+>>>>  3/4 =  A shop sells`: won of those with a reward, whether it is skipped.

    Without a question the problem's id stands in its place.
    """
    tries = batch.group_rollouts(position, under_way)
    known = sum(one.state in ("won", "lost") for one in tries)
    won = sum(one.state == "won" for one in tries)
    through = batch.reflections.get(position)
    begun = any(one.state != "queued" for one in tries)
    score = f"{won}/{known}" if begun else ""
    mark = ("  ", "")
    if through is not None and through.outcome in SKIPPED:
        mark = (f" {signs.skipped}", "skipped")
    elif through is not None and through.outcome == "failed":
        mark = (f" {signs.error}", "failed")
    shown = rollout_glyphs(tries, signs)
    room = " " * max(0, min(batch.group_size, STRIP_CELLS) - width_of(shown))
    name = (f"{batch.group(position):<6}", "")
    out = (name, *shown, (f"{room} {score:>4}", ""), mark, (" ", ""))
    asked = fit(question or one_line(batch.problems[position], 24), max(1, width - width_of(out)))
    return (*out, (asked, "dim"))


def group_rows(
    batch: Batch | None,
    under_way: Set[str],
    filter_text: str = "",
    signs: Glyphs = GLYPHS_UNICODE,
    *,
    questions: Mapping[str, str] = NO_QUESTIONS,
    width: int = 60,
) -> list[Row]:
    """A row for each group; its key is the group's id."""
    if batch is None:
        return []
    rows = []
    for position, problem in enumerate(batch.problems):
        through = batch.reflections.get(position)
        asked = questions.get(problem, "")
        shown = group_line(batch, position, under_way, signs, question=asked, width=width)
        row = Row(batch.group(position), shown)
        words = f"{plain_text(row.line)} {problem} {asked} {through.outcome if through else ''}"
        if filter_text.casefold() in words.casefold():
            rows.append(row)
    return rows


def held_out_rows(
    tries: Sequence[HeldOutTry], questions: Mapping[str, str], width: int, signs: Glyphs
) -> list[Row]:
    """A row for each try of an evaluation that has a pane: the number of its problem, and that."""
    rows = []
    for one in tries:
        state, at = one.shown.state, f"{one.shown.position + 1:>4} "
        asked = fit(questions.get(one.problem, ""), max(1, width - 8))
        sign = (f"{getattr(signs, state)}  ", style_of(state))
        rows.append(Row(one.shown.id, ((at, ""), sign, (asked, "dim"))))
    return rows


def mean_text(evaluating: ev.EvaluationProgressed) -> str:
    """`0.310 (n=37)`."""
    if not evaluating.known:
        return "not known yet"
    return f"{evaluating.right / evaluating.known:.3f} (n={evaluating.known})"


def question_lines(name: str, question: str, width: int, most: int) -> list[Line]:
    """What the selected problem asks, whole where so many rows hold it."""
    out = paragraph([(f" {name}  ", "title"), (question, "")], width, " ")
    if len(out) > most:
        last = fit(f"{plain_text(out[most - 1])} {plain_text(out[most]).strip()}", width)
        out = [*out[: most - 1], line(last)]
    return out


def strip_line(
    batch: Batch | None, under_way: Set[str], here: int, width: int, signs: Glyphs = GLYPHS_UNICODE
) -> Line:
    """The groups in one line for a narrow screen, from the one that is shown."""
    if batch is None or not batch.problems:
        return line((" no groups yet", "dim"))
    end = line((" [ ] group", "dim"))
    room = width - width_of(end) - 1
    items = [
        _strip_item(batch, position, under_way, position == here, signs)
        for position in range(len(batch.problems))
    ]
    out: list[Span] = [(" ", "")]
    for item in items[min(here, len(items) - 1) :]:
        if width_of(item) > room and len(out) > 1:
            break
        out += item
        room -= width_of(item)
    return (*crop_line(tuple(out), width - width_of(end)), *end)


def _strip_item(
    batch: Batch, position: int, under_way: Set[str], here: bool, signs: Glyphs
) -> Line:
    """One group of the strip: `>s3p0 ++-+ = `."""
    through = batch.reflections.get(position)
    skipped = through is not None and through.outcome in SKIPPED
    style = "focus" if here else ""
    return (
        (">" if here else " ", style),
        (batch.group(position), style),
        (" ", ""),
        *rollout_glyphs(batch.group_rollouts(position, under_way), signs),
        (f" {signs.skipped} " if skipped else " ", "skipped"),
    )


def legend_lines(signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    rows = ("won", "lost", "streaming"), ("queued", "error", "skipped")
    return [
        *(legend_line(*((getattr(signs, s), style_of(s), s) for s in states)) for states in rows),
        ((signs.open, "flag"), (" no reward yet, or none known", "dim")),
    ]


def _stages(batch: Batch) -> list[tuple[str, int, int]]:
    """How many of how many are through each stage; demonstrations are learnt from as they are."""
    if not batch.size:
        return []
    return [
        ("rollout", len(batch.rollouts), batch.size),
        ("judged", len(batch.verdicts), batch.size),
        ("reflected", len(batch.reflections), len(batch.problems)),
    ]


def stage_lines(
    batch: Batch, state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE
) -> list[Line]:
    room = max(6, min(14, width - 20))
    out = [
        line((f"{name:<11}", "dim"), (signs.bar(done, of, room), "bar"), f" {done}/{of}")
        for name, done, of in _stages(batch)
    ]
    what = "update" if state.trains_at(batch.step) else "operations"
    return [*out, line((f"{what:<11}", "dim"), _operations_text(batch, state))]


def _operations_text(batch: Batch, state: RunState) -> str:
    step = state.steps.get(batch.step)
    if state.trains_at(batch.step):
        found = trained_step(state, batch.step)
        words = {"under way": "not computed yet", "waits": "needs your review (2)"}
        return words.get(found.update, found.update) if found is not None else ""
    if step is None or (step.lesson is None and not step.committed and not step.finished):
        return "none drawn yet"
    decided = len(state.reviewed_operations)
    return f"{step.operations}" + (f", {decided} decided" if state.under_review else "")


def stage_line(batch: Batch, state: RunState, eta: str = "") -> str:
    """The same in one line: `rollout 31/64  judged 27/64  reflected 1/8  ops 0`."""
    step = state.steps.get(batch.step)
    lesson = f"ops {step.operations if step else 0}"
    if state.trains_at(batch.step):
        lesson = f"update {_operations_text(batch, state)}"
    done = "  ".join(f"{name} {n}/{of}" for name, n, of in _stages(batch))
    done = done or f"demonstrations {len(batch.problems)}"
    return f"{done}  {lesson}" + (f"  ETA {eta}" if eta else "")


def outcome_lines(batch: Batch, width: int) -> list[Line]:
    """What the groups that are through came to, in words."""
    n = batch.outcomes
    if not n:
        return paragraph([("no group is through yet", "dim")], width)
    texts = []
    if not batch.size:
        return paragraph([(f"{n.total()} demonstrations are learnt from", "")], width, "  ")
    if n["used"]:
        texts.append(f"{n['used']} with winners and losers: learned from")
    if n["critique"]:
        texts.append(f"{n['critique']} without a good try: read as well")
    skipped = [f"{n[name]} {name.replace('-', ' ')}" for name in SKIPPED if n[name]]
    if skipped:
        texts.append(f"{', '.join(skipped)}: nothing to learn")
    if n["failed"]:
        texts.append(f"{n['failed']} failed: told below")
    if doubted := sum(len(found.doubts) for found in batch.reflections.values()):
        texts.append(f"{doubted} {'verdict' if doubted == 1 else 'verdicts'} doubted")
    return [part for text in texts for part in paragraph([(text, "")], width, "  ")]


def facts_lines(
    state: RunState | None,
    batch: Batch | None,
    line_facts: SessionStatus,
    *,
    width: int,
    signs: Glyphs = GLYPHS_UNICODE,
) -> list[Line]:
    trains = state is not None and state.trains_weights
    # Of a training run its figures come first: below them is room for the rest on a tall screen.
    out = panel_lines(state, width, signs) if trains and state else legend_lines(signs)
    out += [line((ACTS_MEANING, "dim"))] if batch is not None and batch.acts else []
    if batch is not None and state is not None:
        out += [] if trains else [BLANK]
        out.append(line((f"stage of batch {batch.step}", "title")))
        out += stage_lines(batch, state, width, signs)
        out += [BLANK, *outcome_lines(batch, width)]
        step = state.steps.get(batch.step)
        if step is not None and (step.failed or step.unjudged):
            lost = f"{step.failed} failed, {step.unjudged} not judged"
            out += paragraph([(lost, "failed")], width, "  ")
    if state is not None and state.started is not None:
        process = (state.pid or "running") if line_facts.living else "none"
        out += [BLANK, line((f"process    {process}", "dim"))]
        contained = [f"sandbox    {text}" for text in [sandbox_text(state.agent_facts)] if text]
        for text in (*contained, *(f"tool {text}" for text in tool_texts(state.agent_facts))):
            out += paragraph([(text, "dim")], width)
    return [*out, BLANK, *legend_lines(signs)] if trains else out


def node_lines(nodes: Sequence[str] | None, places: Mapping[str, str], width: int) -> list[Line]:
    """The nodes of a cluster, and how many tries each makes now; None: there is no cluster."""
    if nodes is None:
        return []
    if not nodes:
        return paragraph([(NO_WORKER, "failed")], width)
    tries = Counter(places.values())
    out = [line((f"nodes {len(nodes)}, {tries.total()} tries there", "title"))]
    for name in nodes:
        out += paragraph([(f"{one_line(name, 40)}  {tries[name]} tries", "dim")], width, "  ")
    return out


def held_out_model(
    one: HeldOutTry, evaluating: ev.EvaluationProgressed, mode: Mode, question: str, has_text: bool
) -> PaneModel:
    """How the canvas shows a try of an evaluation: which problem, which try, and what is asked."""
    k, shown = max(1, evaluating.k), one.shown
    title = f"{shown.position + 1} of {evaluating.total // k}"
    title += f", try {shown.index + 1}/{k}" if k > 1 else ""
    if mode == "wall":
        return replace(pane_model(shown, mode, None, has_text), note=question)
    footer = shown.said or f"asked: {question}"
    note = "" if has_text else "no text yet"
    return PaneModel(shown.id, title, shown.state, None, one_line(footer, 300), note)


def pane_model(
    one: RolloutStatus,
    mode: Mode,
    estimate: int | None,
    has_text: bool,
    *,
    acts: bool = False,
    node: str = "",
) -> PaneModel:
    """How the canvas shows a rollout; the zoom says how much of its id.

    `estimate` is about how many tokens its text under way has; None where nothing is known.
    `acts`: tries of the batch call tools.
    `node`: of a cluster, where it is made.
    """
    title = {
        "wall": f"{f'p{one.position}r{one.index}':<6}",
        "group": f"r{one.index}",
        "solo": one.id,
    }[mode]
    if one.trouble:
        # Of a failed rollout nothing else may be said on the one line of the wall.
        note = "" if has_text and mode != "wall" else one.trouble
    elif has_text:
        note = ""
    else:
        note = {"queued": "queued", "streaming": "no text yet"}.get(one.state, one.tail)
    tokens = one.tokens if one.has_ended else estimate
    said = one.said
    if mode == "wall":  # a column of its own, so that texts begin below each other
        said = f"{one.said.removeprefix('reward '):<{_SAID_CELLS}}"
        said += f" {one.acts:<{_ACTS_CELLS}}" if acts else ""
    elif node:
        said = f"on {one_line(node, 40)}"
    elif one.acted:
        said += f", {one.acted}" if mode == "solo" else f"  {one.acts}"
    return PaneModel(one.id, title, one.state, tokens, said, one_line(note, 300))


def status_line(
    state: RunState | None,
    batch: Batch | None,
    line_facts: SessionStatus,
    evaluating: ev.EvaluationProgressed | None,
    *,
    doing: str = "",
) -> Line:
    """One sentence: what the run is doing, or what it waits for, and the key that helps.

    `doing` is what goes on between two steps.
    """
    if line_facts.starting:
        return line((f" starting the run: {starting_text(line_facts)}", "title"))
    if line_facts.opening:
        return line((" opening the run …", "title"))
    if state is None or state.started is None:
        return line((" no run is open: ", "dim"), ("0", "key"), (" starts or resumes one", "dim"))
    if state.ending:
        return ending_line(state)
    if line_facts.parted:
        said = " the connection to the run's process is lost; trying again, and no record is lost"
        return line((said, "failed"))
    if line_facts.replay and not line_facts.living:
        return line((" the replay is over; the run itself may have gone on", "dim"))
    if not line_facts.living:
        said = " no process of it runs; what is recorded is safe: "
        return line((said, "failed"), ("s r", "key"), " resumes it")
    waiting = len(state.undecided_operations)
    if waiting:
        flagged = sum(op.is_flagged for op in state.undecided_operations)
        what = "operation" if waiting == 1 else "operations"
        what = "weight update" if state.step_trains else what
        more = f", {flagged} flagged" if flagged else ""
        return line(" ", ("2", "key"), (f" review: {waiting} {what} to decide{more}", "flag"))
    if state.status == "reviewing":
        if line_facts.ready:
            said = " everything is decided: "
            return line((said, "title"), ("c", "key"), " commits, ", ("2", "key"), " shows it")
        what = "weight update" if state.step_trains else "lesson"
        return line((f" committing the {what} of step {state.step} …", "title"))
    if state.status == "paused":
        busy = " paused: what is under way ends, nothing new begins; "
        return line((busy, "flag"), ("s p", "key"), " goes on")
    if evaluating is not None:
        when = f"after step {evaluating.step}" if evaluating.step else "baseline"
        done = f"{evaluating.done} of {evaluating.total}"
        mean = f", reward {mean_text(evaluating)}" if evaluating.known else ""
        on = f", on {one_line(evaluating.data, 40)}"  # last: where it is cut, the panes name it
        return line((f" evaluating {when}: ", "title"), f"{done}{mean}{on}")
    return line((f" {doing or _progress_text(state, batch)}", "title"))


def starting_text(line_facts: SessionStatus) -> str:
    """What a process that starts does; it says so itself as soon as it takes time."""
    return one_line(line_facts.starting_stage, 160) or "reading the run file …"


def is_working(
    state: RunState | None, line_facts: SessionStatus, evaluating: ev.EvaluationProgressed | None
) -> bool:
    """Whether it just goes on with its rollouts: nothing is waited for or out of the ordinary."""
    return (
        state is not None
        and state.status == "running"
        and not state.ending
        and line_facts.living
        and not line_facts.parted
        and evaluating is None
        and state.current is not None
    )


def _progress_text(state: RunState, batch: Batch | None) -> str:
    step = state.current
    if step is None or batch is None:
        return "waiting for the next step …" if state.step else "waiting for the first step …"
    if step.committed:
        if state.step_trains:
            return f"step {step.step} is through: policy v{state.policy_version}"
        return f"step {step.step} is committed as v{step.committed_version}"
    n, used = len(batch.problems), batch.outcomes["used"]
    if n and len(batch.reflections) == n:
        source = count_text(used, "group") if batch.size else f"{n} demonstrations"
        what = "computing a weight update" if state.step_trains else "drawing operations"
        return f"step {step.step}: {what} from {source} …"
    if not batch.rollouts:
        problems, size = count_text(n, "problem"), batch.size
        return f"step {step.step}: waiting for the first of {size} rollouts, {problems} …"
    reward = step.rewards.mean
    so_far = "" if reward is None else f", reward so far {reward:.3f} (n={step.rewards.n})"
    if (ended := len(batch.rollouts)) < batch.size:
        return f"step {step.step}: {ended} of {batch.size} rollouts ended{so_far}"
    if len(batch.verdicts) < batch.size:
        return (
            f"step {step.step}: judging, {len(batch.verdicts)} of {batch.size} verdicts{so_far} …"
        )
    done = f"{len(batch.reflections)} of {n} groups"
    return f"step {step.step}: reflecting, {done}{so_far} …"


def ending_line(state: RunState) -> Line:
    why = f": {one_line(state.reason, 160)}" if state.reason else ""
    match state.ending:
        case "finished" if state.open_operations:
            said = to_decide_text(len(state.open_operations), len(state.put_off_operations))
            return line(" ", ("2", "key"), (f" review: {said}", "flag"))
        case "finished":
            learned = (("3", "key"), " shows what was learned, ")
            return line((" finished; ", "title"), *learned, ("4", "key"), " what changed")
        case "held":
            what = "weight update" if state.step_trains else "operation"
            said = f" held for review: {count_text(len(state.open_operations), what)} to decide; "
            return line((said, "flag"), ("2", "key"), " decides, then ", ("s r", "key"), " goes on")
        case "budget":
            said, style = f" the budget is reached{why}; ", "flag"
        case "failed":
            said, style = f" failed{why}; ", "failed"
        case _:
            said, style = f" stopped{why}; ", "title"
    more = " resumes with more" if state.ending == "budget" else " resumes it"
    return line((said, style), ("s r", "key"), more)


def run_summary_lines(state: RunState, width: int, signs: Glyphs = GLYPHS_UNICODE) -> list[Line]:
    """The whole of a run that ended: rewards with their n, held-out change, library, cost."""
    from studio.facts.run import run_facts
    from studio.render.run_lines import doubts_text, practice_sections
    from studio.render.run_lines import status_line as status_line_of
    from studio.render.words import lost_text

    started, facts = state.started, run_facts(state)
    assert started is not None
    out = paragraph([(curation_text(state) or status_line_of(facts), "title")], width)
    if state.reason:
        out += paragraph([(one_line(state.reason, 600), "")], width, "  ")
    if started.rehearsal:
        out += paragraph([("replies were scripted (rehearsal), not a model's", "dim")], width)
    out += _next_action_lines(state, width)
    if curated := no_practice_text(state):
        out += [BLANK, *paragraph([(curated, "")], width)]
    sections = [] if curated else practice_sections(facts, training_view.levels(signs))
    for heading, texts in sections:
        out += [BLANK, line((heading, "title"))]
        for text in texts:
            out += paragraph([("  " + text, "")], width, "    ")
    out.append(BLANK)
    if doubted := doubts_text(facts):
        out += paragraph([(doubted, "flag")], width, "  ")
    if state.alternates or not state.trains_weights:
        grown = f"library    {one_line(started.library, 60)} v{started.library_version} -> "
        out.append(line(f"{grown}v{state.library_version}"))
    out.append(line(f"spent      {usage_text(state.total_usage)}"))
    lost = lost_text(state.lost) or "nothing"
    out += paragraph([(f"lost       {lost}", "failed" if state.lost else "")], width, " " * 11)
    return out


def _next_action_lines(state: RunState, width: int) -> list[Line]:
    moves = [("3", "what was learned"), ("4", "what changed"), ("5", "every run")]
    if state.ending != "finished":
        moves.insert(0, ("s r", "resume it"))
    if state.open_operations or state.repairs:
        moves.insert(0, ("2", "decide what is open"))
    keys = [span for key, what in moves for span in ((key, "key"), (f" {what}  ", ""))]
    return paragraph([("next: ", "dim"), *keys], width, "      ")


_LEAST_S = 1.0


class StageClock:
    """Times the sentence that is shown: one that ends in an ellipsis says what goes on."""

    def __init__(self) -> None:
        self._said, self._since = "", 0.0

    @property
    def is_running(self) -> bool:
        return self._said.endswith("…")

    def add_time(self, shown: Line, now: float) -> Line:
        """The sentence with its seconds so far, if it is one that takes time."""
        said = plain_text(shown).rstrip()
        if said != self._said:
            self._said, self._since = said, now
        if not self.is_running or now - self._since < _LEAST_S:
            return shown
        from studio.report.progress import duration_text

        return (*shown, (f" {duration_text(now - self._since)}", ""))
