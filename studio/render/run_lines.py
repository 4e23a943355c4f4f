"""A run, one of its steps and one of its rollouts as lines: `studio runs show`, and a run's end."""

from collections.abc import Sequence
from shlex import quote

from engines.core.codec import JsonMapping
from engines.core.text.tool_text import CallMark, argument_text, said_text, split_marks
from engines.core.types import GATE, NOT_ONE, LostWork, Message, Operation, WeightUpdate
from studio.facts.run import EndFacts, ReviewerFacts, RunFacts, StepRow
from studio.facts.step import GroupFacts, ModelCall, RolloutFacts, StepFacts
from studio.facts.training import FIGURE_NAMES, TrainingFacts
from studio.render import evaluation_lines, library_lines, words
from studio.render.lines import indent_text, table
from studio.render.training_lines import figure_text, training_lines
from studio.secrets.sanitize import one_line, sanitize

Section = tuple[str, list[str]]
"""A heading and its lines."""
_MOST_LOSSES, _MOST_STEPS, _MOST_TEXT = 10, 50, 150
_NAME_CHARS, _TIER_CHARS = 80, 200
NO_WORKER = "no worker of the cluster is left; tries wait until it has room for one"


def sandbox_text(facts: JsonMapping) -> str:
    """The layers that contain programs, and what an agent of one's own may reach; "" for none."""
    text = one_line(str(facts.get("sandbox") or ""), _TIER_CHARS)
    return f"{text}; network {facts['network']}" if "network" in facts else text


def tool_texts(facts: JsonMapping) -> list[str]:
    """Each tool with what contains it and what it may reach."""
    shown = []
    for tool in facts.get("tools") or ():
        inside = one_line(str(tool["tier"] or ""), _TIER_CHARS) or "in the studio's process"
        once = "" if tool["repeatable"] else "; made once, never again after a kill"
        name = one_line(str(tool["name"]), _NAME_CHARS)
        shown.append(f"{name}: {inside}; network {tool['network']}{once}")
    return shown


def agent_lines(facts: JsonMapping) -> list[str]:
    sandbox = sandbox_text(facts)
    lines = [f"sandbox: {sandbox}"] if sandbox else []
    absent = [one_line(str(said), _TIER_CHARS) for said in facts.get("absent") or ()]
    return lines + [f"tool {text}" for text in tool_texts(facts)] + absent


def run_text(facts: RunFacts) -> str:
    """Return the whole of a run."""
    lines = [head_text(facts), *_origin_lines(facts)]
    library = f"library {facts.library} v{facts.library_before} -> v{facts.library_after}"
    if facts.training:
        policy = f"policy v{facts.policy_before} -> v{facts.training.policy_version}"
        library = f"{policy}   {library}"
    lines += [f"reviewer {facts.reviewer}   {library}", ""]
    sections = practice_sections(facts)
    if facts.steps:
        sections.append(("steps", _step_lines(facts)))
    places = [f"{name:<10} {sanitize(path)}" for name, path in facts.places.items()]
    sections += [*record_sections(facts), ("places", places)]
    for title, texts in sections:
        if texts:
            lines += [title, *(indent_text(text) for text in texts), ""]
    return "\n".join(lines).rstrip()


def record_sections(facts: RunFacts) -> list[Section]:
    """Return what waits, what was decided, lost and spent; `runs show` and a report tell it."""
    stages = [f"{stage}: {words.usage_text(usage)}" for stage, usage in facts.spent_on.items()]
    stages = stages if len(stages) > 1 else []
    sections = [
        ("open weight updates" if _waits_for_updates(facts) else "open operations",
         [words.operation_line(op) for op in facts.open]),
        ("replies to mend", _repair_lines(facts)),
        ("curation", curation_lines(facts)),
        ("lost", _loss_lines(facts, _MOST_LOSSES) if facts.lost else ["nothing"]),
        ("doubted verdicts",
         [f"{name}  {one_line(why, 200)}" for name, why in facts.doubts.items()]),
        ("acts with", agent_lines(facts.agent)),
        ("notes", [one_line(remark, 300) for remark in facts.remarks]),
        ("spent", [words.usage_text(facts.usage), *stages]),
    ]  # fmt: skip
    return [(title, lines) for title, lines in sections if lines]


def summary_text(end: EndFacts) -> str:
    """Return how a run went: what the end of `studio headless` prints."""
    facts = end.facts
    place = facts.places.get("folder", "")
    lines = [status_line(facts), *_origin_lines(facts)]
    for heading, texts in practice_sections(facts, place=place):
        lines += ["", heading, *(f"  {text}" for text in texts)]
    lines += _library_lines(end)
    losses = _loss_lines(facts, 3) if facts.lost else ["nothing"]
    lines += ["", f"spent    {words.usage_text(facts.usage)}"]
    lines += [f"lost     {losses[0]}", *(f"           {text}" for text in losses[1:])]
    lines += [f"note     {one_line(remark, 300)}" for remark in facts.remarks]
    if doubts := doubts_text(facts):
        lines.append(f"doubted  {one_line(doubts, 200)}: studio runs show {facts.run}")
    lines += [f"curated  {line}" for line in curation_lines(facts)]
    if facts.repairs:
        lines.append(f"to mend  {words.unparsed_replies_text(len(facts.repairs), facts.run)}")
    if facts.open:
        what = "weight update" if _waits_for_updates(facts) else "operation"
        lines.append(
            f"open     {words.count_text(len(facts.open), what)}: studio review {facts.run}"
        )
    lines.append(f"folder   {sanitize(place)}")
    return "\n".join(lines)


def head_text(facts: RunFacts) -> str:
    """Say where a run stands and what to do about it; of a curation run also what it is."""
    where = f"after step {facts.steps_finished} of {facts.steps_planned}"
    if facts.curates:
        where = sanitize(facts.curates)
    reason = f", {sanitize(facts.reason)}" if facts.reason else ""
    process = "its process is alive" if facts.standing.alive else "no process"
    return f"run {facts.run}: {facts.standing.text}\n{where}{reason}; {process}"


def status_line(facts: RunFacts) -> str:
    """Say how far a run came, and why no further, in one line."""
    if facts.curates:
        return f"run {facts.run}: {facts.standing.curation_status}"
    # Its first clause only: the whole reason was printed as the run ended; `runs show` has it.
    reason = f" ({one_line(facts.reason.partition(': ')[0], 120)})" if facts.reason else ""
    status = "budget reached" if facts.ending == "budget" else facts.standing.status
    where = f"step {facts.steps_finished} of {facts.steps_planned}"
    return f"run {facts.run}: {status}{reason} after {where}"


def _origin_lines(facts: RunFacts) -> list[str]:
    lines = [facts.scripted] if facts.scripted else []
    if facts.forked_from:
        lines.append(f"steps 1-{facts.forked_steps} adopted from run {facts.forked_from}")
    return lines


def practice_sections(
    facts: RunFacts, *, place: str = "", every_epoch: bool = False
) -> list[Section]:
    """Return rewards, training and held-out sets, for every face.

    See `training_lines` for `place`.
    """
    names = {"library": "library", "policy": "policy", "both": "library and the policy"}
    learned = names[facts.learned]
    sections: list[Section] = []
    if facts.practises:
        title = f"practice reward (with the {learned} as it was at each step)"
        sections.append((title, _practice_lines(facts)))
    if facts.training:
        sections.append(("training", training_lines(facts.training, place=place)))
    if facts.evaluations:
        title = f"held-out reward (one version of the {learned} each)"
        measured = [evaluation_lines.measured_line(evaluation) for evaluation in facts.evaluations]
        sections.append((title, [*change_lines(facts), *measured]))
    for diagnosis in facts.diagnosis[0 if every_epoch else -1 :]:
        if lines := evaluation_lines.diagnosis_lines(diagnosis):
            sections.append((evaluation_lines.diagnosis_title(diagnosis), lines))
    if facts.cells:
        title = "weights and library, each without the other (held-out reward)"
        sections.append((title, evaluation_lines.cell_lines(facts.cells)))
    return sections


def _practice_lines(facts: RunFacts) -> list[str]:
    lines = []
    for epoch in facts.epochs:
        ends = f" [{epoch.interval.low:.2f}, {epoch.interval.high:.2f}]" if epoch.interval else ""
        rate = words.reward_rate_text(epoch.mean_reward, epoch.n)
        lines.append(f"epoch {epoch.epoch}  {rate}{ends}")
    if acts := acts_text(facts):
        lines.append(f"tools    {acts}")
    lines.append(f"groups   {words.counted_outcomes(facts.groups)}")
    if facts.nothing_read:
        lines.append(facts.nothing_read)
    elif facts.training and 0 < facts.groups["unjudged"] == sum(facts.groups.values()):
        lines.append("the verifier had no opinion on any try, so nothing was learned: look at it")
    return lines


def acts_text(facts: RunFacts) -> str:
    """`3.1 turns and 2.3 tool calls a try (n=24), 4 calls failed`; "" of single replies."""
    if (acts := facts.acts) is None:
        return ""
    failed = f", {words.count_text(acts.failed_calls, 'call')} failed" if acts.failed_calls else ""
    turns, calls = acts.turns_per_rollout, acts.tool_calls_per_rollout
    return f"{turns:.1f} turns and {calls:.1f} tool calls a try (n={acts.rollouts}){failed}"


def change_lines(facts: RunFacts) -> list[str]:
    """Say whether practice helped, set by set, and which step was the best."""
    lines = [evaluation_lines.change_line(change) for change in facts.changes]
    if facts.best_step is not None:
        n, run = facts.comparable, facts.run
        # The maximum of noisy means is biased upwards.
        of = f"best of {n} evaluations (optimistic)" if n > 1 else "the only evaluation of its kind"
        # The names stand for versions of a library, which a training run leaves as it was.
        names = "" if facts.training else f" ({run}@best); last: {run}@last"
        lines.append(f"{of}: after step {facts.best_step}{names}")
    return lines


def doubts_text(facts: RunFacts) -> str:
    """Say how many verdicts the reflector doubts; "" where there is none."""
    if not facts.doubted:
        return ""
    one = facts.doubted == 1
    what = "verdict contradicts its" if one else "verdicts contradict their"
    first = "".join(f", as {name}: {why}" for name, why in [*facts.doubts.items()][:1])
    return f"{facts.doubted} {what} attempt, says the reflector{first}"


def curation_lines(facts: RunFacts) -> list[str]:
    """Say how each reviewer decided, a line each; what the gate itself refused comes last."""
    lines = []
    for name, stats in facts.curation.items():
        if name != GATE and stats.accept_rate is not None:
            lines.append(_reviewer_line(name, stats))
    if gate := facts.curation.get(GATE):
        lines.append(f"the gate: {words.count_text(gate.n, 'approval')} did not fit the library")
    if facts.withheld:
        lines.append(words.withheld_text(facts.withheld))
    return lines


def _reviewer_line(name: str, stats: ReviewerFacts) -> str:
    line = f"{sanitize(name)}: accepted {stats.accept_rate:.3f} (n={stats.n})"
    if stats.edited:
        line += f", {stats.edited} edited"
    if stats.approved_flagged:
        which = ", since auto lets such flags pass" if name == "auto" else ""
        line += f", {words.count_text(stats.approved_flagged, 'flagged operation')} approved{which}"
    if stats.timed:
        times = f"median {stats.median_s:.1f} s, mean {stats.mean_s:.1f} s"
        line += f"; {times} (n={stats.timed})"
    return line


def _library_lines(end: EndFacts) -> list[str]:
    library = end.library
    if not end.facts.training or library.before != library.after:
        versions = f"v{library.before} -> v{library.after}"
        tokens = library_lines.tokens_text(library.difference)
        counts = f"{library_lines.counts_text(library.difference)}; {tokens}"
        changes = [
            f"  {library_lines.experience_line(change)}" for change in library.difference.changes()
        ]
        return ["", f"library {library.name}  {versions}  {counts}", *changes]
    if library.experiences:
        held = words.count_text(len(library.experiences), "experience")
        return ["", f"library {library.name}  v{library.after}, unchanged: {held} in the prompt"]
    return []


def _waits_for_updates(facts: RunFacts) -> bool:
    return bool(facts.open) and all(op.kind == "weights" for op in facts.open)


def _repair_lines(facts: RunFacts) -> list[str]:
    waiting, lines = facts.repairs, []
    for reply in waiting[:_MOST_LOSSES]:
        reasons = one_line(" ".join(reply.reasons), _MOST_TEXT)
        lines.append(f"{reply.id}  {reply.kind} reply that could not be understood: {reasons}")
    if len(waiting) > _MOST_LOSSES:
        lines.append(f"… {len(waiting) - _MOST_LOSSES} more")
    if waiting:
        them = "it" if len(waiting) == 1 else "them"
        lines.append(f"open, mend or drop {them}: studio review {quote(facts.run)}")
    return lines + [f"{name}  {sanitize(outcome)}" for name, outcome in facts.repaired.items()]


def _loss_lines(facts: RunFacts, most: int) -> list[str]:
    """Return what was lost by kind, and the first losses with their reasons."""
    lines = [words.lost_text(facts.lost)]
    for loss in facts.losses[:most]:
        lines.append(one_line(f"{loss.kind} {loss.where}: {loss.reason}", _MOST_TEXT))
    more = facts.losses_in_all - min(most, len(facts.losses))
    if more > 0:
        lines.append(f"and {more} more: studio runs show {quote(facts.run)} --json")
    return lines


def _step_lines(facts: RunFacts) -> list[str]:
    steps, earlier = facts.steps[-_MOST_STEPS:], len(facts.steps) - _MOST_STEPS
    lines = []
    if earlier > 0:
        lines.append(f"… {earlier} earlier steps: --step N shows one, --json tells of all")
    text = _training_table(facts.training, steps) if facts.training else _steps_table(steps)
    return lines + text.split("\n")


def _steps_table(steps: Sequence[StepRow]) -> str:
    # Of agents that give a single reply there is nothing to say.
    acts = any(step.acts for step in steps)
    rows = []
    for step in steps:
        figures = [f"{step.turns_per_rollout:.1f}", f"{step.tool_calls_per_rollout:.1f}"]
        groups = ", ".join(f"{n} {name}" for name, n in sorted(step.groups.items()))
        rows.append(
            [
                str(step.step),
                str(step.epoch),
                words.reward_rate_text(step.mean_reward, step.n, "-"),
                *(figures if acts else []),
                groups or "-",
                str(step.operations),
                str(step.changed),
                "-" if step.library_version is None else f"v{step.library_version}",
                "done" if step.finished else "under way",
            ]
        )
    headings = ["STEP", "EPOCH", "REWARD", *(["TURNS/TRY", "TOOLS/TRY"] if acts else []), "GROUPS"]
    return table([*headings, "PROPOSED", "CHANGED", "LIBRARY", "STATE"], rows)


_PRACTICE_COLUMNS = {
    "kl": "KL", "clip_share": "CLIP", "entropy": "ENTROPY", "grad_norm": "|G|", "length": "LENGTH",
}  # fmt: skip
_DEMONSTRATION_COLUMNS = {
    "loss": "LOSS", "grad_norm": "|G|", "learning_rate": "RATE", "examples": "EXAMPLES",
    "tokens": "TOKENS",
}  # fmt: skip
"""Figures of an update with their headings; a step on demonstrations has no reward besides."""


def _training_table(training: TrainingFacts, steps: Sequence[StepRow]) -> str:
    has_reward = not training.demonstrations
    figures = _PRACTICE_COLUMNS if has_reward else _DEMONSTRATION_COLUMNS
    rows = []
    for trained, step in zip(training.steps[-len(steps) :], steps, strict=True):
        cells = [str(step.step)]
        if has_reward:
            cells.append(words.reward_rate_text(step.mean_reward, step.n, "-"))
        for name in figures:
            value = trained.metrics.get(name)
            cells.append("-" if value is None else figure_text(name, value))
        update = f"rolled back to {trained.back_to}" if trained.back_to else trained.update
        if step.changed:
            update += f", {step.changed} changed: v{step.library_version}"
        rows.append([*cells, update])
    headings = ["STEP", *(["REWARD"] if has_reward else []), *figures.values(), "UPDATE"]
    return table(headings, rows)


def step_text(facts: StepFacts, *, prompts: bool) -> str:
    """Return a step as lines; with `prompts` also what the reflector was shown."""
    policy = f"policy v{facts.policy_version}, " if facts.trains else ""
    head = f"run {facts.run}, step {facts.step} (epoch {facts.epoch})"
    lines = [f"{head}, {policy}library v{facts.library_version}"]
    for group in facts.groups:
        lines += ["", *_group_lines(group, prompts)]
    if facts.trains:
        lines += ["", "weight update", *_update_lines(facts.lesson.update)]
    else:
        calls = _call_lines(facts.consolidation, prompts)
        lines += ["", "consolidation", *(calls or ["  no call: nothing was proposed"])]
    lines += _lost_and_left_out_lines(facts.lesson.losses, facts.lesson.notes)
    lines += _fate_lines(facts)
    for operation in facts.lesson.withheld:
        text = sanitize(operation.text or operation.target or "")
        lines.append(f"  not proposed again, since it was rejected before: {text}")
    for own in facts.own:
        lines.append(f"  {_operation_text(own.operation)}, proposed by {sanitize(own.reviewer)}")
    for reply in facts.repaired:
        reason = f": {sanitize(reply.reason)}" if reply.reason else ""
        lines.append(f"  {reply.repair} {reply.outcome} by {sanitize(reply.reviewer)}{reason}")
        lines += [f"    {_operation_text(operation)}" for operation in reply.operations]
    lines += _choice_lines(facts)
    committed = "not committed"
    if facts.committed_version is not None:
        learned = f"library v{facts.committed_version}"
        learned = f"policy v{facts.committed_policy}" if facts.trains else learned
        committed = f"committed: {learned}"
    lines += ["", "decisions", *_decision_lines(facts), committed]
    return "\n".join(lines)


def _group_lines(group: GroupFacts, prompts: bool) -> list[str]:
    reflection = group.reflection
    rewards = " ".join("?" if reward is None else f"{reward:g}" for reward in group.rewards)
    lines = [f"{group.id}  problem {group.problem}  {reflection.outcome}  ({rewards})"]
    lines += _call_lines(group.calls, prompts)
    for doubt in reflection.doubts:
        lines.append(f"  verdict of {doubt.rollout} doubted: {sanitize(doubt.reason)}")
    return lines + _lost_and_left_out_lines(reflection.losses, reflection.notes)


def _call_lines(calls: Sequence[ModelCall], prompts: bool) -> list[str]:
    lines = []
    for call in calls:
        name = call.purpose
        if name == "summary":
            name += f" of r{call.index}"
        elif name == "consolidation" and call.index != NOT_ONE:
            name = f"{name}, part {call.position + 1}"
        if call.turn:
            name += " (repair)"
        lines.append(f"  {name}, {sanitize(call.model)}, {call.tokens} tokens, {call.record}")
        if prompts:
            lines += [indent_text(sanitize(text), "  > ") for text in call.prompt]
        lines.append(indent_text(sanitize(call.reply), "    "))
    return lines


def _lost_and_left_out_lines(losses: Sequence[LostWork], notes: Sequence[str]) -> list[str]:
    lines = [f"  lost: {sanitize(loss.reason)}" for loss in losses]
    return lines + [f"  left out: {sanitize(note)}" for note in notes]


def _fate_lines(facts: StepFacts) -> list[str]:
    """Say which proposals an operation merges, and which became none."""
    fates = facts.lesson.fates
    proposals = [p for group in facts.groups for p in group.reflection.proposals]
    texts = [proposal.text or f"{proposal.kind} {proposal.target}" for proposal in proposals]
    lines = []
    for name in dict.fromkeys(fate.operation for fate in fates):
        if text := words.merged_text(name, fates):
            lines.append(f"  {name} merges {text}")
    return lines + [f"  dropped: proposal {text}" for text in words.dropped_texts(fates, texts)]


def _choice_lines(facts: StepFacts) -> list[str]:
    """Return the choice, and what the lessons that were not chosen held."""
    if facts.choice is None:
        return []
    lines = ["", f"choice: {facts.choice_text}"]
    for number, draft in enumerate(facts.choice.drafts):
        if number != facts.choice.chosen:
            lines.append(f"  lesson {number + 1}, not chosen")
            for operation in draft.lesson.operations:
                # Without its id: those of the chosen lesson are the same.
                lines.append(f"    {_operation_text(operation, name='-')}")
    return lines


def _operation_text(operation: Operation, name: str = "") -> str:
    text = sanitize(operation.text or operation.target or "")
    return f"{name or operation.id}  {operation.kind} {text}"


def _decision_lines(facts: StepFacts) -> list[str]:
    lines = []
    outcomes = {outcome.operation_id: outcome for outcome in facts.outcomes}
    for decision in facts.decisions:
        outcome = outcomes.get(decision.operation_id)
        result = f" -> {outcome.id}" if outcome and outcome.id else ""
        if outcome and outcome.kind == "weights":
            result = " -> applied" if outcome.applied else " -> not applied"
        reason, reviewer = sanitize(decision.reason), sanitize(decision.reviewer)
        text = words.decided_text(decision.action, reviewer, reason)
        lines.append(f"  {decision.operation_id}  {text}{result}")
        if reason and reviewer != GATE:
            word = "because" if decision.action == "reject" else "note"
            lines.append(f"      {word}: {reason}")
    return lines


def _update_lines(update: WeightUpdate | None) -> list[str]:
    if update is None:
        return ["  none was computed"]
    lines = []
    if update.rollback_to is not None:
        lines.append(f"  back to the weights of step {update.rollback_to}")
    metrics = update.metrics
    names = [name for name in FIGURE_NAMES if name in metrics]
    for name in [*names, *sorted(set(metrics) - set(FIGURE_NAMES))]:
        title = FIGURE_NAMES.get(name, sanitize(name))
        lines.append(f"  {title:<15} {figure_text(name, metrics[name])}")
    return lines + ([f"  {sanitize(update.note)}"] if update.note else [])


def rollout_text(facts: RolloutFacts) -> str:
    finished, verdict = facts.finished, facts.verdict
    reward = "?" if facts.reward is None else f"{facts.reward:g}"
    if verdict is not None:
        reward += words.metrics_text(verdict.metrics)
    spent = f"{facts.tokens} tokens  seed {finished.seed}  {', '.join(facts.records)}"
    lines = [f"{facts.id}  {finished.status}  reward {reward}  {spent}"]
    if acted := words.acted_text(finished):
        lines.append(acted)
    for message in facts.messages:
        lines += ["", *_message_lines(message)]
    if finished.cited:
        lines += ["", f"cites {sanitize(', '.join(finished.cited))}"]
    remarks = [verdict.critique, verdict.error] if verdict else []
    for text in [*remarks, finished.error]:
        if text:
            lines += ["", sanitize(text)]
    return "\n".join(lines)


def _message_lines(message: Message) -> list[str]:
    lines = [f"[{message.speaker or message.role}]"]
    if text := said_text(message):
        lines.append(sanitize(text))
    if message.reasoning:
        lines += ["[reasoning]", sanitize(message.reasoning)]
    for call in message.tool_calls:
        lines += call_lines(call.name, call.arguments)
    return lines


def call_lines(name: str, arguments: str) -> list[str]:
    text = sanitize(argument_text(arguments).strip("\n"))
    return [f"[calls {sanitize(name)}]", *([text] if text else [])]


def streamed_text(text: str) -> str:
    """Return a piece of a rollout's text as plain lines, sanitized; it holds whole marks."""
    out = ""
    for part in split_marks(text):
        if isinstance(part, str):
            out += sanitize(part)
            continue
        if isinstance(part, CallMark):
            lines = call_lines(part.name, part.arguments)
        else:
            lines = [f"[{sanitize(part.name)}: {part.status}]", sanitize(part.text)]
        out += "\n".join(("", *lines, ""))
    return out
