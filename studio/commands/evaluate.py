"""`studio eval`, `studio compare`, `studio try`: measure on held-out problems, compare, try one."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from engines.core.errors import ConfigError
from studio import exit_codes
from studio.commands import (
    AsObject,
    ConfigName,
    DryRun,
    FromYoutu,
    Overrides,
    PlayedCassette,
    Record,
    argument,
    choose_form,
    flag,
    open_workspace,
    option,
    read_tape,
)
from studio.render.lines import tell_next, to_stderr

if TYPE_CHECKING:
    from engines.record.run_dir import RunDir
    from studio.config.loading import LoadedRun

_Library = Annotated[
    str | None,
    option(
        "NAME[@V]|none",
        "Experiences in the prompt; also RUN@best, RUN@last, RUN@epoch:N or a FILE. "
        "Default: those that a run begins with.",
    ),
]
_Form = Annotated[
    Literal["text", "md", "json", "html"] | None,
    option("text|md|json|html", "How to print it.", show_default="text"),
]
_FormJson = Annotated[bool, flag("As --format json.", "--json")]
_Step = Annotated[
    Literal["all", "rollout", "judge"],
    option(
        "all|rollout|judge",
        "Only make the tries (rollout), or only judge those that were made (judge).",
    ),
]


def evaluate(
    context: typer.Context,
    runfile: Annotated[
        str | None,
        argument("RUNFILE|PRESET", "Names the model, the data and the verifier."),
    ] = None,
    overrides: Overrides = None,
    library: _Library = None,
    agent: Annotated[
        Path | None,
        option("FILE", "An agent.yaml, whose instructions and experiences are used."),
    ] = None,
    baseline: Annotated[
        str | None,
        option("NAME[@V]|none", "Experiences to compare with. Default: there is no comparison."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Tries of each problem. Default: evaluation.k."),
    ] = None,
    from_youtu: FromYoutu = None,
    config_name: ConfigName = None,
    step: _Step = "all",
    record: Record = None,
    cassette: PlayedCassette = None,
    dry_run: DryRun = False,
    json: AsObject = False,
) -> int:
    """Measure experiences on held-out problems. Only what is not measured yet is paid for.

    Examples:
        studio eval rehearsal --library none --dry-run
        studio eval rehearsal --library rehearsal --baseline none --k 2
    """
    from studio.config.source import parse_source
    from studio.evaluation.evaluate import load_eval, plan_eval, print_eval_dry_run, run_eval

    if agent is not None and library is not None:
        raise ConfigError("--agent", "--library names other experiences.", "Leave one of them out.")
    source = parse_source(
        "studio eval", "eval", runfile, overrides, from_youtu=from_youtu, config_name=config_name
    )
    keyless = dry_run or cassette is not None
    loaded = load_eval(source, context.obj, agent=agent, k=k, keyless=keyless)
    loaded = replace(loaded, tape=read_tape(record, cassette))
    workspace, own = open_workspace(context), agent is not None
    plan = plan_eval(loaded, workspace, library=library, baseline=baseline, agent=own, step=step)
    return print_eval_dry_run(plan, json=json) if dry_run else run_eval(plan, json=json)


def compare(
    context: typer.Context,
    logs: Annotated[
        list[str],
        argument(
            "A B [C…]",
            "First the baseline: RUN, RUN@step:N, RUN@epoch:N, a file or folder of "
            "results, or FILE#NAME for one of several logs in it.",
        ),
    ],
    only: Annotated[str | None, option("NAME", "Compare this set alone.", "--set")] = None,
    metric: Annotated[
        str | None, option("NAME", "Which score of a file. Default: its first.")
    ] = None,
    fail_if_worse: Annotated[
        bool, flag("Exit with 6 where a verdict is: hurts.", "--fail-if-worse")
    ] = False,
    min_effect: Annotated[
        float | None,
        option("D", "Exit with 6 unless every interval begins at D or above.", min=-1, max=1),
    ] = None,
    seed: Annotated[int, option("N", "Of the bootstrap.")] = 1,
    format: _Form = None,
    json: _FormJson = False,
) -> int:
    """Compare runs and other programs' logs by problem.

    It reads logs of inspect, lm-eval, promptfoo, verifiers, agentskills, and CSV.

    Examples:
        studio compare rehearsal@step:0 rehearsal
        studio compare before.csv after.csv --fail-if-worse --format md
    """
    from studio.compare.open import open_logs
    from studio.facts.comparison import compare_logs
    from studio.render.comparison_page import comparison_page
    from studio.render.page import print_facts

    form = choose_form(json, format)
    opened = open_logs(logs, open_workspace(context), metric)
    facts = compare_logs(opened, only, seed, min_effect)
    print_facts(facts, comparison_page(facts), form)
    failed = (fail_if_worse and facts.worse) or facts.short_of_effect()
    return exit_codes.WORSE if failed else exit_codes.DONE


def sweep(
    context: typer.Context,
    runfile: Annotated[str, argument("RUNFILE|PRESET", "A run file, or a preset.")],
    words: Annotated[
        list[str],
        argument("KEY=A,B…", "Values to try, separated by commas; others hold for all."),
    ],
    name: Annotated[str | None, option("NAME", "Name of the sweep. Default: exp_id.")] = None,
    jobs: Annotated[int, option("N", "How many runs at a time.", min=1, max=1000)] = 1,
    budget: Annotated[
        float | None,
        option("USD", "Of all runs together, those before included.", min=0),
    ] = None,
    format: _Form = None,
    json: _FormJson = False,
) -> int:
    """Run a grid of settings and compare what they gain.

    Each run is one of the workspace. The same command goes on where it was stopped or killed.
    It tells how much of a gain is the seed's.

    Examples:
        studio sweep my-run.yaml seed=1,2,3 practice.group_size=4,8
    """
    from studio.compare.sweep import sweep as carry_out

    form = choose_form(json, format)
    workspace = open_workspace(context)
    return carry_out(workspace, runfile, words, name=name, jobs=jobs, budget_usd=budget, form=form)


def try_once(
    context: typer.Context,
    runfile: Annotated[str, argument("RUNFILE|PRESET", "A run file, or a preset.")],
    overrides: Overrides = None,
    problem: Annotated[
        str | None,
        option("ID", "A problem. Default: the first, or one that was learned from."),
    ] = None,
    question: Annotated[str | None, option("TEXT", "Ask this instead of a problem.")] = None,
    answer: Annotated[str | None, option("TEXT", "The expected answer to --question.")] = None,
    library: _Library = None,
    versus: Annotated[
        str | None, option("RUN", "Try it again with what this run has learned.")
    ] = None,
    without: Annotated[str | None, option("ID", "Try it again without this experience.")] = None,
    record: Record = None,
    cassette: PlayedCassette = None,
    json: AsObject = False,
) -> int:
    """Take one problem from prompt to verdict. Nothing is kept.

    Examples:
        studio try rehearsal --question "What is 17 + 25?" --answer 42
        studio try rehearsal --versus rehearsal
        studio try rehearsal --library rehearsal --without E1
    """
    from studio.config.loading import load_run
    from studio.evaluation import try_problem
    from studio.run.models import limits_of

    given = runfile, overrides or []
    loaded = load_run(*given, context.obj, keyless=cassette is not None)
    loaded = replace(loaded, tape=read_tape(record, cassette))
    if limits_of(loaded.config):
        to_stderr("note: a try asks once and keeps nothing, so the budget is not kept either")
    workspace = open_workspace(context)
    run = None if versus is None else workspace.run(versus)
    if problem is None and question is None and without is not None:
        problem = try_problem.suggest_problem(loaded, workspace, library, without)
    one = try_problem.choose_problem(loaded, problem, question, answer)
    tries = try_problem.trials_of(loaded, run, one, workspace, library, without, *given)
    code = try_problem.print_trials(tries, workspace, json=json)
    if not json and code == exit_codes.DONE and (run or Path(runfile).name != "run.yaml"):
        tell_next(_after_try(loaded, run, *given), context.obj)  # the file of a run is practised
    return code


def _after_try(
    loaded: "LoadedRun", run: "RunDir | None", runfile: str, overrides: Sequence[str]
) -> str:
    practise = "train" if loaded.config.trains else "headless"
    words = ["runs", "show", run.run] if run else [practise, runfile, *overrides]
    return shlex.join(["studio", *words])
