"""Start: resume what waits, attach to what lives, or begin, after a look at what it would take.

Looking asks no model and writes nothing. It blocks, and is done in a thread, one at a time.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from engines.core.errors import ConfigError, StudioError
from engines.core.frozen import frozen
from engines.record.run_dir import Workspace
from studio.render.words import count_text
from studio.secrets.sanitize import one_line, sanitize
from studio.tui.drawing.cells import cell_width, fit, pad
from studio.tui.drawing.lines import Line, Row, holds_words, labelled_lines, line, paragraph
from studio.tui.page import resume_run
from studio.tui.pages.lists import Loader
from studio.tui.pages.runs.page import WorkspacePage, detail_lines, state_span
from studio.tui.widgets.line_view import RowList

if TYPE_CHECKING:
    from studio.config.source import Source
    from studio.run.new_or_resume import RunPlan
    from studio.workspace.listing import KnownRun

MOST_RESUMED = 6
"""Ended runs that are offered; the others are on the page of runs."""
Doing = Literal["resume", "attach", "open", "new"]
_VERBS = {"resume": "Resume", "attach": "Attach", "open": "Open", "new": "New"}


@frozen
class Choice:
    """One thing to do. `argument` is a run-id, a preset or the path of a run file."""

    do: Doing
    argument: str
    name: str
    text: str
    style: str = ""
    run: KnownRun | None = None

    @property
    def key(self) -> str:
        return f"{self.do} {self.argument}"


def list_choices(
    runs: Sequence[KnownRun], presets: Sequence[tuple[str, str]], files: Sequence[tuple[str, str]]
) -> list[Choice]:
    """What waits for a person first, then what lives, what can go on, and what could begin.

    Runs come newest first; presets and paths of run files with what to say of them.
    """
    waiting, living, ended = [], [], []
    for run in runs:
        choice = _run_choice(run)
        if choice is None:
            continue
        if choice.style == "flag":
            waiting.append(choice)
        elif choice.do == "attach":
            living.append(choice)
        else:
            ended.append(choice)
    new = [Choice("new", path, path.rpartition("/")[2], what) for path, what in files]
    new += [Choice("new", name, name, what) for name, what in presets]
    return [*waiting, *living, *ended[:MOST_RESUMED], *new]


def _run_choice(run: KnownRun) -> Choice | None:
    row, shown, back = run.listed.row, run.listed.shown, run.background
    is_over = shown.status == "finished" and not row["open"]
    if shown.status == "damaged" or (is_over and not shown.alive):
        return None  # the page of runs says what is wrong with it
    steps = f", step {back.step}/{back.steps}" if back else ""
    text, style = state_span(run)
    do: Doing = "attach" if shown.alive else "open" if shown.status == "finished" else "resume"
    if row.get("ending") == "budget":
        style = ""
    text = f"{text}; epoch {row['epoch']}/{row['epochs']}{steps}"
    return Choice(do, run.run, run.run, text, style, run=run)


def first_choice(choices: Sequence[Choice]) -> str:
    """Where the cursor begins: on what waits or lives, else on what costs nothing to begin."""
    keys = [choice.key for choice in choices if choice.style == "flag" or choice.do == "attach"]
    keys += [choice.key for choice in choices if choice.key == "new rehearsal"]
    return keys[0] if keys else ""


def same_choice(choices: Sequence[Choice], key: str) -> str:
    """The same choice as before, or what can be done with its run by now; else the first one."""
    keys = {choice.argument: choice.key for choice in choices}
    if any(choice.key == key for choice in choices):
        return key
    return keys.get(key.partition(" ")[2]) or first_choice(choices)


def choice_rows(choices: Sequence[Choice], width: int) -> list[Row]:
    """A row each; new ones stand under a heading."""
    room = min(28, max((cell_width(one_line(choice.name, 60)) for choice in choices), default=0))
    rows: list[Row] = []
    for choice in choices:
        if choice.do == "new" and (not rows or not rows[-1].key.startswith("new ")):
            rows.append(Row("", line(("new run from a run file or a preset", "dim"))))
        name = pad(fit(one_line(choice.name, 60), room), room)
        text = fit(one_line(choice.text, 400), max(8, width - room - 12))
        verb = (pad(_VERBS[choice.do], 7), "key")
        rows.append(Row(choice.key, line(verb, " ", (name, "title"), "  ", (text, choice.style))))
    return rows


# -- what starting something would mean --------------------------------------------------------

_READ_AT_MOST = 65_536
_REVIEWERS = {
    "wait": "by you: a run holds until every operation is decided",
    "auto": "auto: every operation that fits is approved by itself",
}
_RUN_FILE_KEYS = ("policy:", "exp_id:", "practice:", "agent:")


@frozen
class RunFacts:
    """What a run file would do; once it was checked also what it takes, and what was looked at."""

    run: str
    mode: str  # "new", "resume", "fork", "finished"; "beside": only as a new one, see `notes`
    costs: bool  # a model is asked that may cost money
    rows: tuple[tuple[str, str], ...]  # data, model and so on, each in words
    notes: tuple[str, ...] = ()
    likely: str = ""  # "": not checked
    most: str = ""
    checks: tuple[tuple[bool, str], ...] = ()  # False where somebody should know of it


@frozen
class Asked:
    """What is to be found out of a choice; with `checks` also what it would take."""

    choice: str  # its key
    overrides: str
    checks: bool = False


def find_run_files(workspace: Workspace, folder: Path) -> list[tuple[str, str]]:
    """Run files in a folder and in the workspace's `configs/`: YAML that names a policy, say.

    Each with what to say of it.
    """
    files = []
    for place, about in (
        (folder, "in this folder"),
        (workspace.configs, f"in {workspace.configs}"),
    ):
        for path in sorted((*place.glob("*.yaml"), *place.glob("*.yml"))):
            try:
                with path.open(encoding="utf-8") as file:
                    text = file.read(_READ_AT_MOST)
            except (OSError, UnicodeDecodeError):
                continue
            if any(row.startswith(_RUN_FILE_KEYS) for row in text.splitlines()):
                files.append((str(path), about))
    return files


def load_facts(workspace: Workspace, asked: Asked) -> RunFacts:
    """Read the run file, the data and what there is of the run already; check it if asked to.

    Raises StudioError: it could not be started so; the same that `studio headless` would say.
    """
    from studio.config.source import Source

    words = tuple(shlex.split(asked.overrides))
    do, _, argument = asked.choice.partition(" ")
    source = Source(words, argument) if do == "new" else Source(words, resume=argument)
    plan, facts = _plan_run(workspace, source)
    return _check_run(workspace, plan, facts) if asked.checks else facts


def load_expected_answers(workspace: Workspace, run: str) -> dict[str, str]:
    """The true answers of a run's problems by their ids, as its data has them now.

    Raises StudioError: its run file or its data cannot be read.
    """
    from studio.config.source import Source

    plan, _ = _plan_run(workspace, Source((), resume=run))
    return {problem.id: problem.answer for problem in plan.problems if problem.answer is not None}


def _plan_run(workspace: Workspace, source: Source) -> tuple[RunPlan, RunFacts]:
    """The plan; a new run's where one of its name is there that it cannot go on with."""
    from studio.run.new_or_resume import RunRequest, load_plan

    notes: list[str] = []
    review = None if source.resume is not None else "wait"
    request = RunRequest(workspace=workspace, source=source, review=review, keyless=True)
    try:
        plan = load_plan(request, notes.append)
        mode: str = plan.mode
    except ConfigError as error:
        if source.runfile is None:
            raise
        notes = [str(error)]
        try:
            plan = load_plan(replace(request, restart_step="0"), notes.append)
        except StudioError:
            raise error from None
        mode = "beside"
    return plan, _run_facts(plan, mode, notes)


def _run_facts(plan: RunPlan, mode: str, notes: Sequence[str]) -> RunFacts:
    from studio.render.estimate_lines import limits_text
    from studio.run.models import endpoint_roles, limits_of

    config = plan.loaded.config
    practice, limits = config.practice, limits_of(config)
    models = [config.role(role).model for role in endpoint_roles(config)]
    if config.lint.embedding is not None:
        models.append(config.lint.embedding.model)
    costs = any(name.startswith("openai:") and name != "openai:rehearsal" for name in models)
    problems = count_text(len(plan.problems), "problem")
    sizes = f"batch {practice.batch_size}, groups of {practice.group_size}"
    steps = f"epochs {practice.epochs}; {plan.sampler.total_steps} steps, seed {config.seed}"
    model = config.policy.model
    if config.policy.base_url:
        model += f" @ {config.policy.base_url}"
    model += f", temperature {practice.temperature:g}, {practice.concurrency} at a time"
    if config.reflector is not None:
        model += f"; lessons by {config.reflector.model}"
    judged = config.verifier.name
    if config.evaluation.do_eval:
        judged += f"; measured on {', '.join(config.evaluation.data)}"
    rows = (
        ("data", f"{config.data.practice} ({problems}); {sizes}, {steps}"),
        ("model", model if costs else f"{model}  (no model that costs is asked)"),
        ("judged", judged),
        ("review", _REVIEWERS.get(plan.reviewer, plan.reviewer)),
        ("budget", limits_text(limits) if limits else "no limit"),
    )
    return RunFacts(plan.run.run, mode, costs, rows, tuple(notes))


def _check_run(workspace: Workspace, plan: RunPlan, facts: RunFacts) -> RunFacts:
    """Add what it would take and all that `--dry-run` and the doctor look at."""
    import asyncio

    from studio.estimate.cost import estimate_run
    from studio.render.estimate_lines import amounts_text, exceeded_limits_text, limits_text
    from studio.run.models import check_budget, limits_of, open_budget

    config = plan.loaded.config
    check_budget(plan.loaded, config)
    asyncio.run(_check_verifier(plan))
    total = estimate_run(plan)
    checks = [
        (True, f"{count_text(len(plan.problems), 'problem')} in {config.data.practice}"),
        (True, f"verifier {config.verifier.name} is there"),
        *((False, note.removeprefix("note: ")) for note in facts.notes),
    ]
    if facts.costs:
        if total.cost_usd is None:
            text = f"no price for {config.policy.model}: cost shows as tokens only"
            checks.append((False, text))
        checks.append((False, f"{config.policy.base_url or 'the endpoint'} was not asked"))
    if limits := limits_of(config):
        budget = open_budget(plan.loaded, config, plan.run.records, lambda _: None)
        short = exceeded_limits_text(total, budget.remaining if budget is not None else {})
        text = f"not do: {short}" if short else f"do: {limits_text(limits)}"
        checks.append((not short, f"the budget will likely {text}"))
    return replace(
        facts,
        checks=(*checks, *_machine_checks(workspace.path)),
        likely=amounts_text(total, most=False),
        most=amounts_text(total, most=True),
        notes=total.notes,
    )


async def _check_verifier(plan: RunPlan) -> None:
    from contextlib import AsyncExitStack

    from studio.run.assemble import check_verifier

    async with AsyncExitStack() as stack:
        await check_verifier(plan, stack)


def _machine_checks(path: Path) -> list[tuple[bool, str]]:
    from studio.workspace.machine import basic_findings, machine_facts

    try:
        machine = machine_facts(path)
        findings = [each for each in basic_findings(path, machine) if each.place != "process"]
    except (OSError, StudioError) as error:
        return [(False, str(error))]
    if not findings:
        return [(True, f"{machine['free_bytes'] / 1e9:.1f} GB free for the workspace")]
    return [(False, f"{each.place}: {each.cause} {each.move}") for each in findings]


def facts_lines(facts: RunFacts, width: int, overrides: str = "") -> list[Line]:
    """A run file's own words for what it would do."""
    rows = [("run", _mode_text(facts)), *facts.rows]
    if overrides:
        rows.append(("set", overrides))
    out: list[Line] = []
    for label, text in rows:
        out += labelled_lines(label, one_line(text, 400), width)
    return out


def _mode_text(facts: RunFacts) -> str:
    run = one_line(facts.run, 120)
    return {
        "new": f"{run}, new",
        "resume": f"{run} is there and goes on (enter offers a new one too)",
        "fork": f"{run}, new, beginning with the steps of another",
        "beside": f"{run}, new: the one that is there began with other settings",
        "finished": f"{run} is finished (enter offers a new one; more practice.epochs go on)",
    }[facts.mode]


def check_lines(facts: RunFacts, width: int) -> list[Line]:
    """What it would take, then `[ok]` and `[!]`; nothing where it was not checked."""
    if not facts.likely:
        return []
    doing = "" if facts.mode in ("new", "beside") else " still to be done"
    out = labelled_lines("likely", facts.likely + doing, width)
    out += labelled_lines("at most", facts.most, width)
    for is_good, text in facts.checks:
        mark = ("[ok] ", "won") if is_good else ("[!]  ", "flag")
        out += paragraph([mark, (one_line(text, 600), "")], width, " " * 5)
    for note in facts.notes:
        out += labelled_lines("note", sanitize(note), width)
    return [*out, ()]


# -- the page ----------------------------------------------------------------------------------

_Named = list[tuple[str, str]]  # presets or run files, and what to say of each


class StartPage(WorkspacePage):
    """Reads the workspace and run files in threads; starts nothing that was not asked for."""

    scope = "start"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path()  # where run files are looked for besides the workspace
        self._files = Loader[Path, tuple[_Named, _Named]](self, self._load_files)
        # One for all: Hydra's state is one for all threads.
        self.loader = Loader[Asked, RunFacts](
            self, lambda asked: load_facts(self.host.workspace, asked), self.draw_detail
        )
        self.overrides: dict[str, str] = {}  # by key of a choice, as typed
        self.refusal = ""
        self._target = ""  # what the cursor is to stand on once it was read

    # -- what can be chosen ----------------------------------------------------------------

    def open_at(self, target: str = "") -> None:
        self._target = target
        self.loader.forget()
        self._files.request(self.folder, again=True)
        super().open_at()

    def _load_files(self, folder: Path) -> tuple[_Named, _Named]:
        """Presets and run files, with what to say of each."""
        from studio.presets import list_presets

        return list(list_presets()), find_run_files(self.host.workspace, folder)

    @property
    def choices(self) -> list[Choice]:
        """All of them, once both runs and files were read."""
        if self.reader.value is None or self._files.value is None:
            return []
        return list_choices(self.reader.value, *self._files.value)

    @property
    def selected_choice(self) -> Choice | None:
        key = self.list_pane.key
        return next((choice for choice in self.choices if choice.key == key), None)

    def go_to(self, name: str) -> bool:
        keys = (choice.key for choice in self.choices if choice.name == name)
        return super().go_to(next(keys, ""))

    def draw(self) -> None:
        choices, words = self.choices, self.filter_text
        listed = [
            choice
            for choice in choices
            if holds_words(f"{choice.do} {choice.name} {choice.text}", words)
        ]
        self.fit_height(len(choices))
        self.show_list(
            choice_rows(listed, self.list_width),
            self.reader,
            "Start or resume",
            nothing=line(("reading …", "dim")),
            key=same_choice(listed, self.list_pane.key) or None,
        )
        self.draw_detail()
        if self._target and choices:
            target, self._target = self._target, ""
            self.go_to(target)

    # -- what a choice would mean ----------------------------------------------------------

    def _asked(self, choice: Choice, *, checks: bool = False) -> Asked:
        return Asked(choice.key, self.overrides.get(choice.key, ""), checks)

    def _is_about(self, asked: Asked | None, choice: Choice) -> bool:
        return asked is not None and replace(asked, checks=False) == self._asked(choice)

    async def _load(self, choice: Choice, *, checks: bool = False) -> RunFacts | None:
        """What was found out of it; None where it could not be: the reason is shown."""
        self.loader.request(self._asked(choice, checks=checks))
        await self.loader.wait()
        if self.loader.trouble or not self._is_about(self.loader.key, choice):
            self.draw_detail()
            self.host.tell("it cannot be started so; the reason stands below", "failed")
            return None
        return self.loader.value

    def draw_detail(self) -> None:
        pane, choice = self.detail_pane, self.selected_choice
        if choice and choice.do == "new" and not self._is_about(self.loader.wanted, choice):
            self.loader.request(self._asked(choice))
        name = sanitize(choice.name) if choice is not None else ""
        pane.border_title = Text("It could not be started" if self.refusal else name)
        pane.say_below("reading or checking it …" if self.loader.is_reading else "")
        lines: list[Line] = []
        if self.refusal:
            lines = paragraph([(sanitize(self.refusal), "failed")], pane.line_width)
        elif choice is not None:
            lines = self._facts_lines(choice, pane.line_width)
        pane.show_lines(lines)

    def _facts_lines(self, choice: Choice, width: int) -> list[Line]:
        loader, facts = self.loader, None
        if self._is_about(loader.key, choice):
            facts = loader.value
        out: list[Line] = []
        if self._is_about(loader.wanted, choice) and loader.trouble:
            out = paragraph([(sanitize(loader.trouble), "failed")], width)
            out += [line(("e", "key"), " changes the settings"), ()]
        if facts is not None:
            out += check_lines(facts, width)
        if choice.run is not None:
            out += detail_lines(choice.run, width)
        elif facts is not None:
            out += facts_lines(facts, width, self.overrides.get(choice.key, ""))
        if choice.do != "open" and not (facts is not None and facts.likely):
            out += [(), line(("C", "key"), " checks it and says what it would cost")]
        return out

    # -- keys ------------------------------------------------------------------------------

    def on_row_list_moved(self, event: RowList.Moved) -> None:
        if self.is_open:
            self.refusal = ""  # before the details are drawn: Textual calls the base's, too

    def show_refusal(self, text: str) -> None:
        """What was asked to start could not: show why, whole, where the person looks."""
        self.refusal = text
        if not self.is_open:
            self.host.open_page("start")
        self.draw()
        self.detail_pane.action_move_to_end(-1)

    def go_back(self) -> bool:
        if self.refusal:
            self.refusal = ""
            self.draw_detail()
            return True
        return super().go_back()

    def action_open(self) -> None:
        choice = self.selected_choice
        if choice is None:
            self.host.tell("nothing is under the cursor", "failed")
            return
        self.refusal = ""
        match choice.do:
            case "attach" | "open":
                session = self.session
                if session is None or not session.living or session.run.run != choice.argument:
                    self.host.attach(choice.argument)
                self.host.open_page("live" if choice.do == "attach" else "review")
            case "resume":
                self.run_exclusive("open", partial(self._resume, choice))
            case "new":
                self.run_exclusive("open", partial(self._start_new_run, choice))

    async def _resume(self, choice: Choice) -> None:
        given = shlex.split(self.overrides.get(choice.key, ""))
        row = choice.run.listed.row if choice.run is not None else {}
        how, why = str(row.get("ending")), str(row.get("reason"))
        await resume_run(self.host, choice.argument, how, why, given)
        self._watch_start()

    def _watch_start(self) -> None:
        """Show on Live what a process that starts says it does; a refusal leads back here."""
        if self.host.session_status.starting:
            self.host.open_page("live")

    async def _start_new_run(self, choice: Choice) -> None:
        """Start a new run: at once where nothing costs, else after the estimate was seen."""
        facts = await self._load(choice)
        if facts is not None and facts.costs:
            facts = await self._load(choice, checks=True)
        if facts is None:
            return
        overrides = self.overrides.get(choice.key, "")
        words = shlex.split(overrides)
        is_there = facts.mode in ("resume", "finished", "beside")
        if is_there or facts.costs:
            keys = {"y": "start it"}
            if is_there:
                keys["n"] = "new run"
            if facts.mode == "finished":
                keys["o"] = "open it"
            title = "It is there already."
            if facts.costs:
                title = "It asks a model that may cost money."
            width = min(96, self.app.size.width * 8 // 10 - 4)  # of a box over the page
            lines = [*facts_lines(facts, width, overrides), (), *check_lines(facts, width)]
            match await self.host.confirm(title, lines, keys):
                case "":
                    return
                case "o":
                    self.host.attach(facts.run)
                    return
                case "n":
                    words += ["--restart-step", "0"]
        self.host.start_run([choice.argument, *words, "--review", "wait"])
        self._watch_start()

    def action_check(self) -> None:
        choice = self.selected_choice
        if choice is None or choice.do == "open":
            text = "it is over, and costs nothing: enter opens it"
            self.host.tell(text if choice else "nothing is under the cursor", "failed")
            return
        self.refusal = ""
        self.loader.request(self._asked(choice, checks=True), again=True)
        self.draw_detail()

    def action_set(self) -> None:
        choice = self.selected_choice
        if choice is None or choice.do in ("attach", "open"):
            self.host.tell("only what is to be started takes settings", "failed")
            return
        self.run_exclusive("set", partial(self._ask_overrides, choice))

    async def _ask_overrides(self, choice: Choice) -> None:
        text = await self.host.ask("key=value ...:", self.overrides.get(choice.key, ""))
        if text is None:
            return
        try:
            words = shlex.split(text)
        except ValueError as error:
            self.host.tell(f"{text}: {error}", "failed")
            return
        if wrong := next((word for word in words if "=" not in word or word.startswith("-")), ""):
            self.host.tell(f"{wrong}: a setting is written key=value", "failed")
            return
        self.overrides[choice.key] = text.strip()
        self.refusal = ""
        self.draw_detail()
