"""The batch a run is at, as the live page shows it: groups of rollouts, stages, counts.

A view of `engines.core.state.run_state`. Pure.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby

from engines.core import events as ev
from engines.core.frozen import frozen
from engines.core.state.run_state import Live, RunState
from engines.core.types import (
    GroupOutcome,
    Names,
    RecordRef,
    Reflection,
    Verdict,
    group_id,
    rollout_id,
)
from studio.facts.training import trained_step
from studio.render.run_lines import NO_WORKER, sandbox_text, tool_texts
from studio.render.words import (
    acted_text,
    acts_cell,
    count_text,
    no_practice_text,
    reward_text,
    to_decide_text,
)
from studio.secrets.sanitize import one_line
from studio.tui.drawing import canvas, cells
from studio.tui.drawing.cells import GLYPHS as _SIGNS
from studio.tui.drawing.lines import (
    BLANK,
    Line,
    Row,
    Span,
    legend_line,
    line,
    paragraph,
    plain_text,
    width_of,
)
from studio.tui.header import SessionStatus
from studio.tui.pages.training_view import panel_lines

WON = 0.5
"""The least reward that counts as won, as in the evidence of an operation."""


@frozen
class RolloutStatus:
    """One rollout. `state` is the name of a glyph and of a style; "open" waits for a verdict."""

    id: str
    position: int
    index: int
    state: str  # won | lost | streaming | queued | error | open
    tokens: int | None = None  # of its replies; None until it ends
    reward: float | None = None
    said: str = ""  # its reward or what came instead, in a word or two
    trouble: str = ""  # why it failed or has no reward; "" for most
    refs: tuple[RecordRef, ...] = ()
    tail: str = ""
    acts: str = ""  # its turns and tool calls, `4/3`; "" until it ends
    acted: str = ""  # the same in words; "" of a single reply
    problem: str = ""  # its id, of a rollout of an evaluation

    @property
    def has_ended(self) -> bool:
        return self.state not in ("streaming", "queued")


@frozen
class Batch:
    """The rollouts of one step.

    The mappings are the step's own and go on being filled. `fold` gives a finished step new,
    empty ones, so that whoever has these still sees the batch until the next one begins.
    """

    step: int
    problems: Names
    sizes: tuple[int, ...]  # tries of each problem
    rollouts: Mapping[tuple[int, int], ev.RolloutFinished]
    verdicts: Mapping[tuple[int, int], Verdict]
    reflections: Mapping[int, Reflection]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def acts(self) -> bool:
        """Whether any try that has ended called a tool, or gave more than one reply."""
        return any(rollout.acts for rollout in self.rollouts.values())

    @property
    def outcomes(self) -> Counter[GroupOutcome]:
        """Of the groups that are through."""
        return Counter(reflection.outcome for reflection in self.reflections.values())

    def place(self, rollout: str) -> tuple[int, int] | None:
        """Position and index of a rollout of this batch; None where it is not one."""
        match = re.fullmatch(r"s(\d{1,9})p(\d{1,9})r(\d{1,9})", rollout)
        if match is None:
            return None
        step, position, index = map(int, match.groups())
        known = position < len(self.problems) and index < self.sizes[position]
        return (position, index) if step == self.step and known else None

    def group(self, position: int) -> str:
        return group_id(self.step, position)

    def group_rollouts(self, position: int, under_way: Set[str]) -> tuple[RolloutStatus, ...]:
        """One group, in index order; `under_way` are ids of rollouts that have begun."""
        return tuple(self.rollout_at(position, at, under_way) for at in range(self.sizes[position]))

    def rollout_at(self, position: int, index: int, under_way: Set[str]) -> RolloutStatus:
        name = rollout_id(self.step, position, index)
        place = position, index
        found, verdict = self.rollouts.get(place), self.verdicts.get(place)
        is_under_way = name in under_way
        return describe_rollout(name, position, index, found, verdict, is_under_way=is_under_way)


def current_batch(state: RunState | None) -> Batch | None:
    """The step under way, or None between steps."""
    step = state.current if state is not None else None
    if state is None or state.started is None or step is None:
        return None
    sizes = state.group_sizes(step)
    return Batch(step.step, step.problems, sizes, step.rollouts, step.verdicts, step.reflections)


def describe_rollout(
    name: str,
    position: int,
    index: int,
    rollout: ev.RolloutFinished | None,
    verdict: Verdict | None,
    *,
    is_under_way: bool,
) -> RolloutStatus:
    """A rollout by what is known of it: None where it has not ended, or was not judged."""
    if rollout is None:
        state = "streaming" if is_under_way else "queued"
        return RolloutStatus(name, position, index, state)
    cut = " cut" if rollout.status == "truncated" else ""  # it reached its most tokens
    reward = verdict.reward if verdict is not None else None
    trouble = ""
    if rollout.status == "failed":
        state, said, trouble = "error", "error", rollout.error or "it failed"
    elif reward is not None:
        state, said = reward_state(reward), f"reward {reward_text(reward)}{cut}"
    elif verdict is None:
        state, said = "open", f"judging{cut}"
    else:
        state, said = "open", f"unknown{cut}"
        trouble = verdict.error or "the verifier had no opinion"
    return RolloutStatus(
        id=name,
        position=position,
        index=index,
        state=state,
        tokens=rollout.usage.completion_tokens or None,
        reward=reward,
        said=said,
        trouble=one_line(trouble, 200),
        refs=rollout.refs,
        tail=rollout.tail,
        acts=acts_cell(rollout),
        acted=acted_text(rollout),
    )


def reward_state(reward: float) -> str:
    return "won" if reward >= WON else "lost"


MOST_SHOWN = 12
"""Rollouts of an evaluation that have a pane; the others are only counted."""


class HeldOut:
    """Follows one evaluation. A rollout that has ended keeps its pane until another begins."""

    def __init__(self) -> None:
        self.progress: ev.EvaluationProgressed | None = None  # None: nothing is measured
        self.rollouts: list[RolloutStatus] = []  # in the order of their panes
        self._begun: Set[str] = frozenset()  # under way at the last look

    def update(self, live: Live) -> None:
        """Follow what goes on now."""
        before, self.progress = self.progress, live.evaluation
        if self.progress is None or before is None:
            self.rollouts.clear()
            self._begun = frozenset()
        elif (before.data, before.step) != (self.progress.data, self.progress.step):
            self.rollouts.clear()
        if self.progress is None:
            return
        for number, rollout in enumerate(self.rollouts):
            if not rollout.has_ended and rollout.id not in live.tries:
                self.rollouts[number] = _end_measured(rollout, live.rewards.get(rollout.id))
        for name, started in live.tries.items():
            is_new = name not in self._begun and self.find(name) is None
            if is_new and started is not None and started.key.purpose == "evaluation":
                key = started.key
                self._give_pane(
                    RolloutStatus(
                        name, key.position, key.index, "streaming", problem=started.problem
                    )
                )
        self._begun = set(live.tries)

    def find(self, name: str) -> RolloutStatus | None:
        return next((rollout for rollout in self.rollouts if rollout.id == name), None)

    def _give_pane(self, rollout: RolloutStatus) -> None:
        """Give it the pane of one that ended, or a new one while there is room."""
        for number, other in enumerate(self.rollouts):
            if other.has_ended:
                self.rollouts[number] = rollout
                return
        if len(self.rollouts) < MOST_SHOWN:
            self.rollouts.append(rollout)


def _end_measured(rollout: RolloutStatus, reward: float | None) -> RolloutStatus:
    if reward is None:
        return replace(rollout, state="error", said="not judged")
    return replace(rollout, state=reward_state(reward), said=f"reward {reward_text(reward)}")


class BatchTracker:
    """Follows one run: between two steps it goes on showing the batch before."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.held_out = HeldOut()
        self._seen: dict[str, ev.RolloutStarted | None] = {}  # under way at the last look
        self._live = Live()

    @property
    def under_way(self) -> Set[str]:
        """Ids of rollouts that have begun and not ended."""
        return self._live.tries.keys()

    @property
    def evaluating(self) -> ev.EvaluationProgressed | None:
        """How far the evaluation under way is; None where there is none."""
        return self.held_out.progress

    @property
    def nodes(self) -> Names | None:
        """Where workers of a cluster are ready; None: there is no cluster."""
        return self._live.nodes.nodes if self._live.nodes is not None else None

    @property
    def places(self) -> dict[str, str]:
        """Rollouts under way on a cluster, and the node of each."""
        return {name: placed.node for name, placed in self._live.placed.items()}

    @property
    def doing(self) -> str:
        """What is done before the first step, or with a lesson before anybody decides."""
        stage = self._live.stage
        if stage is None:
            return ""
        match stage.stage:
            case "restore":
                return f"restoring the weights after step {stage.step} …"
            case "choice":
                return f"trying {stage.detail['lessons']} lessons to choose one"
            case "gate":
                tries = f"{stage.detail['made']} of at most {stage.detail['most']} tries"
                return f"trying {count_text(stage.detail['operations'], 'operation')}: {tries}"
        return ""

    def update(self, state: RunState | None) -> None:
        """Take the batch under way from the state; between two steps the one before stays."""
        self.batch = current_batch(state) or self.batch
        self._live = state.live if state is not None else Live()
        self.held_out.update(self._live)

    def take_begun(self) -> set[str]:
        """Return the rollouts that have begun, or begun again, since the last look."""
        before, self._seen = self._seen, dict(self._live.tries)
        return {name for name, start in self._seen.items() if before.get(name, self) is not start}

    def handle_snapshot(self, state: RunState | None, *, anew: bool) -> None:
        """The state is another object, of another run where `anew`."""
        if anew:
            self.batch = None
        self.held_out = HeldOut()  # one under way is told of again
        self.update(state)
        self.take_begun()

    def restore_batch(self, batch: Batch | None, state: RunState | None) -> None:
        """Take the journal's last batch between two steps: only there it is still known whole.

        A batch that the state does not know of will be told by its own events.
        """
        if batch is None or state is None or state.current is not None:
            return
        if batch.step in state.steps and (self.batch is None or self.batch.step <= batch.step):
            self.batch = batch

    def handle_text(self, rollout: str) -> None:
        """A text grows, so its rollout is under way, whether its beginning was heard or not."""
        place = self.batch.place(rollout) if self.batch else None
        if self.batch is not None and place is not None and place not in self.batch.rollouts:
            self._live.tries.setdefault(rollout, None)
            self._seen.setdefault(rollout, None)


STRIP_CELLS = 16
"""A longer strip of glyphs gives way to numbers."""
_SAID_CELLS = len("0.0 cut")
_ACTS_CELLS = len("12/11!")
ACTS_MEANING = "4/3: turns/tool calls, ! failed"
_ORDER = ("won", "lost", "streaming", "queued", "error", "open")
_STYLES = {"error": "failed", "open": "flag"}
SKIPPED: tuple[GroupOutcome, ...] = ("all-right", "all-equal", "all-wrong", "unjudged")


def style_of(state: str) -> str:
    return _STYLES.get(state, state)


def rollout_glyphs(tries: Sequence[RolloutStatus]) -> Line:
    """`++-+>>>>`, one glyph a rollout; numbers where a group is large: `+12 -3 >1`."""
    if len(tries) <= STRIP_CELLS:
        runs = groupby(tries, key=lambda one: one.state)
        return tuple(
            (getattr(_SIGNS, state) * sum(1 for _ in many), style_of(state)) for state, many in runs
        )
    counted = Counter(one.state for one in tries)
    return tuple(
        (f"{getattr(_SIGNS, state)}{counted[state]} ", style_of(state))
        for state in _ORDER
        if counted[state]
    )


def group_line(batch: Batch, position: int, under_way: Set[str]) -> Line:
    """`s3p0  ++-+>>>>  3/4 =`: won of those with a reward, whether it is skipped."""
    tries = batch.group_rollouts(position, under_way)
    known = sum(one.state in ("won", "lost") for one in tries)
    won = sum(one.state == "won" for one in tries)
    through = batch.reflections.get(position)
    begun = any(one.state != "queued" for one in tries)
    score = f"{won}/{known}" if begun else ""
    mark = ("  ", "")
    if through is not None and through.outcome in SKIPPED:
        mark = (f" {_SIGNS.skipped}", "skipped")
    elif through is not None and through.outcome == "failed":
        mark = (f" {_SIGNS.error}", "failed")
    shown = rollout_glyphs(tries)
    room = " " * max(0, min(max(batch.sizes), STRIP_CELLS) - width_of(shown))
    name = (f"{batch.group(position):<6}", "")
    return (name, *shown, (f"{room} {score:>4}", ""), mark, (" ", ""))


def group_rows(
    batch: Batch | None,
    under_way: Set[str],
    filter_text: str,
    *,
    questions: Mapping[str, str],
    width: int,
) -> list[Row]:
    """A row for each group; its key is the group's id."""
    if batch is None:
        return []
    rows = []
    for position, problem in enumerate(batch.problems):
        through = batch.reflections.get(position)
        asked = questions.get(problem, "")
        shown = group_line(batch, position, under_way)
        # Without a question the problem's id stands in its place.
        text = cells.fit(asked or one_line(problem, 24), max(1, width - width_of(shown)))
        row = Row(batch.group(position), (*shown, (text, "dim")))
        words = f"{plain_text(row.line)} {problem} {asked} {through.outcome if through else ''}"
        if filter_text.casefold() in words.casefold():
            rows.append(row)
    return rows


def strip_line(rows: Sequence[Row], chosen: int, width: int) -> Line:
    """As many groups beside each other as fit, without their questions; the chosen one is there."""
    end: Line = (("[ ] group", "dim"),)
    each = width_of(rows[chosen].line[:-1]) + len("| ")
    room = (width - width_of(end)) // each
    spans: list[Span] = [(" ", "")]
    for number in canvas.visible_range(len(rows), room, chosen):
        name, *others, _question = rows[number].line
        if number == chosen:
            name = (name[0], "focus")
        spans += [name, *others, ("| ", "dim")]
    return (*spans, *end)


def question_lines(name: str, question: str, width: int, most: int) -> list[Line]:
    """What the selected problem asks, whole where so many rows hold it."""
    out = paragraph([(f" {name}  ", "title"), (question, "")], width, " ")
    if len(out) > most:
        last = cells.fit(f"{plain_text(out[most - 1])} {plain_text(out[most]).strip()}", width)
        out = [*out[: most - 1], line(last)]
    return out


def legend_lines() -> list[Line]:
    rows = ("won", "lost", "streaming"), ("queued", "error", "skipped")
    return [
        *(legend_line(*((getattr(_SIGNS, s), style_of(s), s) for s in states)) for states in rows),
        ((_SIGNS.open, "flag"), (" no reward yet, or none known", "dim")),
    ]


def stage_lines(batch: Batch, state: RunState, width: int) -> list[Line]:
    """How many of how many are through each stage; demonstrations are learnt from as they are."""
    room = max(6, min(14, width - 20))
    stages = (
        ("rollout", len(batch.rollouts), batch.size),
        ("judged", len(batch.verdicts), batch.size),
        ("reflected", len(batch.reflections), len(batch.problems)),
    )
    out = [
        line((f"{name:<11}", "dim"), (_SIGNS.bar(done, of, room), "bar"), f" {done}/{of}")
        for name, done, of in stages
        if batch.size
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
) -> list[Line]:
    trains = state is not None and state.trains_weights
    # Of a training run its figures come first: below them is room for the rest on a tall screen.
    out = panel_lines(state, width) if trains and state else legend_lines()
    out += [line((ACTS_MEANING, "dim"))] if batch is not None and batch.acts else []
    if batch is not None and state is not None:
        out += [] if trains else [BLANK]
        out.append(line((f"stage of batch {batch.step}", "title")))
        out += stage_lines(batch, state, width)
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
    return [*out, BLANK, *legend_lines()] if trains else out


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


def held_out_title(rollout: RolloutStatus) -> str:
    """Return such as `problem 7`, and `problem 7 #2` of the second rollout at it."""
    again = f" #{rollout.index + 1}" if rollout.index else ""
    return f"problem {rollout.position + 1}{again}"


def pane_model(
    rollout: RolloutStatus,
    mode: canvas.Mode,
    has_text: bool,
    *,
    acts: bool = False,
    title: str = "",
    footer: str = "",
) -> canvas.PaneModel:
    """How the canvas shows a rollout; the zoom says how much of its id.

    `acts`: rollouts of the batch call tools.
    `title`: instead of its place in the batch.
    `footer`: below a text under way, until there is a reward.
    """
    said = rollout.said or footer
    if mode == "wall":
        title = title or f"p{rollout.position}r{rollout.index}"
        # A column of its own, so that texts begin below each other.
        title, said = f"{title:<6}", f"{rollout.said.removeprefix('reward '):<{_SAID_CELLS}}"
        said += f" {rollout.acts:<{_ACTS_CELLS}}" if acts else ""
    elif mode == "group":
        title = title or f"r{rollout.index}"
        said += f"  {rollout.acts}" if rollout.acted else ""
    else:
        title = title or rollout.id
        said += f", {rollout.acted}" if rollout.acted else ""
    note = ""
    if rollout.trouble and (mode == "wall" or not has_text):
        note = rollout.trouble
    elif not has_text:
        waiting = {"queued": "queued", "streaming": "no text yet"}
        note = waiting.get(rollout.state, rollout.tail)
    return canvas.PaneModel(
        rollout.id, title, rollout.state, rollout.tokens, said, one_line(note, 300)
    )


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
        # It says what takes time as soon as it knows.
        stage = one_line(line_facts.starting_stage, 160) or "reading the run file …"
        return line((f" starting the run: {stage}", "title"))
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
        n, mean = evaluating.known, ""
        if n:
            mean = f", reward {evaluating.right / n:.3f} (n={n})"
        on = f", on {one_line(evaluating.data, 40)}"  # last: where it is cut, the panes name it
        return line((f" evaluating {when}: ", "title"), f"{done}{mean}{on}")
    return line((f" {doing or _progress_text(state, batch)}", "title"))


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


def run_summary_lines(state: RunState, width: int) -> list[Line]:
    """The whole of a run that ended: what to do next, rewards with their n, losses, cost."""
    from studio.facts.run import run_facts
    from studio.render import run_lines

    facts = run_facts(state)
    out = paragraph([(run_lines.status_line(facts), "title")], width)
    if state.reason:
        out += paragraph([(one_line(state.reason, 600), "")], width, "  ")
    out += _next_action_lines(state, width)
    if curated := no_practice_text(state):
        out += [BLANK, *paragraph([(curated, "")], width)]
    sections = run_lines.practice_sections(facts)
    for heading, texts in [*sections, *run_lines.record_sections(facts)]:
        out += [BLANK, line((heading, "title"))]
        for text in texts:
            out += paragraph([("  " + text, "")], width, "    ")
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
