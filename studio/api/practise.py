"""Practice and evaluation from other code; what a command says on stderr goes to `tell`.

Settings replace those of the run file: `practice__epochs=2`, or `**{"practice.epochs": 2}`.
"""

import asyncio
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

from engines.core import codec, errors, user_code
from engines.core.codec import JsonMapping
from engines.core.frozen import frozen
from engines.core.library import Experience, Library
from engines.core.types import Tell, Usage
from engines.pipeline import guidance, step
from engines.pipeline.evaluation.statistics import Interval, mean_at_k, mean_interval
from engines.pipeline.evaluation.verdict import Comparison
from engines.record import appender, yaml_text
from engines.record.derived.catalogue import refresh_catalogue
from engines.record.run_dir import RunDir, Workspace
from studio import exit_codes
from studio.config.source import Source
from studio.evaluation import evaluate as evaluation
from studio.evaluation.evaluate import EarlyEnd
from studio.facts.evaluation import question_rewards, rate_changes
from studio.library.references import find_version
from studio.report.progress import LinePrinter
from studio.run import assemble, new_or_resume
from studio.secrets import output, run_files
from studio.session.server import serve

RunFile = str | Path | JsonMapping
"""A path, the name of a preset, or what would stand in the file."""
Folder = str | Path | None
_Made = TypeVar("_Made")


@frozen
class Rate:
    """A mean reward over n tries, with its 95 % interval."""

    mean: float | None
    n: int
    interval: Interval | None


@frozen
class Result:
    """How a run went (first and last measurement), or an evaluation (baseline and measured)."""

    exit_code: int
    run: str  # "" of an evaluation
    library: str  # NAME@V
    before: Mapping[str, Rate]
    after: Mapping[str, Rate]
    differences: Mapping[str, Comparison]
    cost: Usage
    losses: Mapping[str, int]
    reason: str = ""  # why it ended early


@frozen
class LibraryVersion:
    name: str
    version: int
    experiences: tuple[Experience, ...]
    content: Library

    def prompt(self, question: str = "", *, cite: bool = True) -> str:
        """What stands in front of a prompt; of a large library what fits the question best."""
        return guidance.PromptWriter(cite=cite).write(self.content, question)[0]


def practice(runfile: RunFile, **settings: Any) -> Result:
    """`practice_async` in a thread of its own: in a notebook this one has a loop already."""
    refuse_while_loaded()  # before there is a coroutine that nobody would await
    return run_in_thread(practice_async(runfile, **settings))


def evaluate(runfile: RunFile, **settings: Any) -> Result:
    """`evaluate_async` in a thread of its own: in a notebook this one has a loop already."""
    refuse_while_loaded()
    return run_in_thread(evaluate_async(runfile, **settings))


async def practice_async(
    runfile: RunFile,
    *,
    name: str | None = None,
    restart_step: int | str | None = None,
    accept_changes: bool = False,
    workspace: Folder = None,
    tell: Tell | None = None,
    **settings: Any,
) -> Result:
    """Practise, or resume the newest run of that name, to its end; 0 as a step starts afresh."""
    folder, say = open_workspace(workspace, tell)
    asked = new_or_resume.RunRequest(
        workspace=folder,
        source=Source(as_overrides(settings), find_or_write(runfile, folder)),
        name=name,
        restart_step=None if restart_step is None else str(restart_step),
        accept_changes=accept_changes,
    )
    return await carry_out(new_or_resume.load_plan(asked, say), say)


async def carry_out(plan: new_or_resume.RunPlan, say: Tell) -> Result:
    """Practise a planned run to its end; nothing is printed."""
    if plan.mode != "finished":
        async with AsyncExitStack() as stack:
            context = await assemble.open_run_context(plan, stack, say)
            # `studio attach` and `studio ctl` find it like any other.
            await stack.enter_async_context(serve(context, plan.run.socket))
            context.recorder.listen(LinePrinter(context.recorder.state, say))
            await step.practise(context)
        refresh_catalogue(plan.workspace)
    return run_result(plan.run)


async def evaluate_async(
    runfile: RunFile,
    *,
    library: str | None = None,
    baseline: str | None = None,
    workspace: Folder = None,
    tell: Tell | None = None,
    **settings: Any,
) -> Result:
    """Measure on held-out problems what is not measured yet, as `studio eval` does."""
    folder, say = open_workspace(workspace, tell)
    source = Source(as_overrides(settings), find_or_write(runfile, folder))
    loaded = evaluation.load_eval(source, folder.path)
    plan = evaluation.plan_eval(loaded, folder, library=library, baseline=baseline)
    return await measure_plan(plan, say)


async def measure_plan(plan: evaluation.EvalPlan, say: Tell) -> Result:
    """Measure what is missing; ended early, what is known is the result."""
    missing, early = plan.count_missing(), EarlyEnd()
    work = evaluation.measure_missing(plan, say, lambda: None, early, early.record_paid)
    early.task = asyncio.ensure_future(work)
    try:
        found, code = await early.task, exit_codes.DONE
    except asyncio.CancelledError:
        if early.cause == "interrupted":
            raise
        found, code = evaluation.known_result(plan, early.paid, missing), early.exit_code
    lost = {"verdict": found.unjudged_count} if found.unjudged_count else {}
    rates: list[dict[str, Rate]] = [{} for _ in plan.subjects]
    for one in found.sets:
        for at, (_, measured) in enumerate(one.results):
            rows = tuple(one.question_rewards(at).values())
            rate = Rate(mean_at_k(rows), measured.known_count, mean_interval(rows))
            rates[at][one.held_out.name] = rate
    return Result(
        code or (exit_codes.WITH_LOSSES if lost else exit_codes.DONE),
        run="",
        library=plan.subjects[-1].label,
        before=rates[0] if len(rates) > 1 else {},
        after=rates[-1],
        differences={one.held_out.name: one.comparison for one in found.sets if one.comparison},
        cost=found.paid,
        losses=lost,
        reason=early.reason if code else "",
    )


def find_library(reference: str, *, workspace: Folder = None) -> LibraryVersion:
    """A library as it is or was: NAME, NAME@V, RUN@best, or what else `studio diff` takes."""
    found = find_version(reference, open_workspace(workspace)[0]).library
    return LibraryVersion(found.name, found.version, found.experiences, found)


def load_run(run: str, *, workspace: Folder = None) -> Result:
    """How a run went, by its id."""
    return run_result(open_workspace(workspace)[0].run(run))


def run_result(run: RunDir) -> Result:
    """What the journal of a run adds up to."""
    state = run.state()
    ends: tuple[dict[str, Rate], dict[str, Rate]] = {}, {}
    for found in state.evaluations:
        rate = Rate(found.mean, found.n, mean_interval(tuple(question_rewards(found).values())))
        ends[found.data in ends[0]][found.data] = rate
    return Result(
        exit_codes.run_exit_code(state),
        run.run,
        f"{state.started.library if state.started else ''}@{state.library_version}",
        *ends,
        {one.first.data: one.comparison for one in rate_changes(state.evaluations)},
        state.total_usage,
        dict(state.lost),
        state.reason,
    )


def open_workspace(workspace: Folder = None, tell: Tell | None = None) -> tuple[Workspace, Tell]:
    """The workspace as the command line finds it, and where narration goes, without secrets."""
    refuse_while_loaded()
    output.remember(run_files.environment_secrets())
    path = workspace or os.environ.get("STUDIO_WORKSPACE") or "practice"
    return Workspace(
        Path(path).expanduser()
    ), lambda line: tell(output.mask_text(line)) if tell else None


def find_or_write(runfile: RunFile, workspace: Workspace) -> str:
    """The name of a run file; a mapping becomes one that replaces none of the user's own."""
    if not isinstance(runfile, Mapping):
        return str(runfile)
    text = yaml_text.dump_yaml({"exp_id": "notebook", **runfile})
    appender.make_folder(workspace.configs)
    name = re.sub(r"[^\w.-]", "-", str(runfile.get("exp_id", "notebook")))
    path = workspace.configs / f"{name}-{codec.digest(text, 4)}.yaml"
    appender.write_atomic(path, text.encode())
    return str(path)


def as_overrides(settings: JsonMapping) -> tuple[str, ...]:
    """Settings as the command line takes them."""
    return tuple(f"{key.replace('__', '.')}={_spell(value)}" for key, value in settings.items())


def _spell(value: object) -> str:
    """A plain value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {_spell(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_spell, value))}]"
    if not isinstance(value, str | Path):
        return json.dumps(value)
    # A backslash stands for itself, but before a quote.
    text = re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + m[2].replace('"', '\\"'), str(value))
    return f'"{text}"'


def run_in_thread(work: Coroutine[Any, Any, _Made]) -> _Made:
    """Wait for work that has a thread and a loop of its own."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    with closing(loop), ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(loop.run_until_complete, task).result()
        except KeyboardInterrupt:  # what is recorded is kept, and the same call goes on from there
            loop.call_soon_threadsafe(task.cancel)
            raise


def refuse_while_loaded() -> None:
    """Raises ConfigError: a run loads this file for its functions, and it would begin another."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_name == "<module>" and user_code.is_loaded_by_us(
            frame.f_globals["__name__"]
        ):
            raise errors.ConfigError(
                frame.f_code.co_filename,
                "it begins a run while another one loads it for a function.",
                'Put the call under if __name__ == "__main__":',
            )


def one_of(place: str, given: str, known: Iterable[str]) -> str:
    """The given word. Raises ConfigError: it is not among those that are known."""
    if given not in (names := [*known]):
        raise errors.ConfigError(
            place,
            f'"{given}" is not supported.',
            f"{errors.did_you_mean(given, names)}There are {', '.join(names)}.",
        )
    return given


def place_of(call: Callable[..., Any]) -> str:
    """FILE.py:NAME of a function: a process of its own may have to load it again."""
    file = Path(inspect.getsourcefile(call) or "").resolve()
    if not file.is_file() or file.suffix != ".py" or call.__qualname__ != call.__name__:
        raise errors.ConfigError(
            call.__name__,
            "it is in no file of its own, so a run could not find it again.",
            "Put it at the top level of a file (in a notebook: %%writefile my_task.py).",
        )
    return f"{file}:{call.__name__}"
