"""`studio train` and `studio export`: update weights by practice, and write them out."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from engines.core.errors import ConfigError
from studio.commands import (
    AcceptChanges,
    AsJson,
    EventsAsJson,
    Name,
    Overrides,
    PlayedCassette,
    Record,
    RestartStep,
    Run,
    RunFile,
    flag,
    open_workspace,
    option,
    read_tape,
)
from studio.render.json import print_json
from studio.render.lines import tell_next, to_stderr
from studio.secrets.sanitize import sanitize

Stage = Literal["sft", "grpo", "all", "distil", "reward"]


def train(
    context: typer.Context,
    runfile: RunFile = None,
    overrides: Overrides = None,
    stage: Annotated[
        Stage,
        option(
            "sft|grpo|all|distil|reward",
            "What to do: grpo, supervised fine-tuning (sft), sft and then grpo from what it "
            "made (all), fine-tuning on what a library achieved (distil), or a reward model from "
            "the verdicts of the newest run of this name (reward).",
        ),
    ] = "grpo",
    name: Name = None,
    restart_step: RestartStep = None,
    review: Annotated[
        str | None,
        option(
            "auto|wait|rules:FILE",
            "Who decides weight updates, after the bounds of the run file. Default: auto.",
        ),
    ] = None,
    accept_changes: AcceptChanges = False,
    record: Record = None,
    cassette: PlayedCassette = None,
    json: EventsAsJson = False,
    pipeline: Annotated[
        Path | None,
        option("FILE.json", "Carry out the stages of HelloAgents' pipeline."),
    ] = None,
) -> int:
    """Train the weights of a policy. Each stage starts or resumes a run.

    Stages sft and distil are runs of their own, called like the experiment with the stage behind
    it. With --stage all one that is done is not repeated; --restart-step 0 starts both afresh.

    Examples:
        studio train grpo-tiny practice.epochs=1
        studio train grpo-calculator --stage all
    """
    import asyncio

    from studio.config.source import parse_source
    from studio.run.new_or_resume import RunRequest
    from studio.training import stages

    if pipeline is not None:
        return _run_pipeline(pipeline, runfile, context.obj, json)
    if (record or cassette) and stage not in ("grpo", "sft"):
        raise ConfigError(
            f"--stage {stage}",
            "a cassette is of one run that asks models.",
            "Carry out one stage at a time: --stage sft, or --stage grpo.",
        )
    source = parse_source("studio train", "practice", runfile, overrides, example="grpo-tiny")
    asked = RunRequest(
        workspace=open_workspace(context),
        source=source,
        name=name,
        restart_step=restart_step,
        review=review,
        accept_changes=accept_changes,
        tape=read_tape(record, cassette),
    )
    return asyncio.run(stages.train(asked, stage, json=json))


def _run_pipeline(file: Path, runfile: str | None, workspace: Path, json: bool) -> int:
    from studio.api.hello import run_pipeline
    from studio.render.json import print_result

    if runfile is not None:
        raise ConfigError("--pipeline", "it takes no run file.", f"Leave {runfile} out.")
    stages = run_pipeline(file, workspace)
    shown = {n: one.get("accuracy") or one.get("output_dir", "") for n, one in stages.items()}
    print_result(stages, "\n".join(f"{n}: {text}" for n, text in shown.items() if text), json=json)
    return max([0, *(int(one.get("exit_code", 0)) for one in stages.values())])


_ServeWith = Annotated[
    str | None,
    option(
        "SERVER", "Print the command that serves it with vllm, and run it where it is installed."
    ),
]


def export(
    context: typer.Context,
    run: Run,
    to: Annotated[Path, option("DIR", "A new or empty folder to write to.", "--to")],
    merged: Annotated[bool, flag("Write base model and adapter as one model.", "--merged")] = False,
    adapter: Annotated[bool, flag("Write the adapter alone.", "--adapter")] = False,
    step: Annotated[
        int | None,
        option("N", "Take the checkpoint of step N.", show_default="newest"),
    ] = None,
    best: Annotated[
        bool, flag("Take the checkpoint that did best on held-out problems.", "--best")
    ] = False,
    serve_with: _ServeWith = None,
    json: AsJson = False,
) -> None:
    """Export trained weights with tokenizer and model card. Give --merged or --adapter.

    Examples:
        studio export grpo-tiny --adapter --to tiny-adapter
        studio export grpo-tiny --merged --best --to tiny-model --serve-with vllm
    """
    from studio.training import export as exporting

    if merged == adapter:
        wrong = "they contradict each other." if merged else "both are missing."
        raise ConfigError("--merged, --adapter", wrong, "Give exactly one of the two.")
    if best and step is not None:
        raise ConfigError("--best", "--step names a checkpoint too.", "Give one of them.")
    if serve_with is not None:
        exporting.check_server(serve_with)
    exported = exporting.prepare_export(
        open_workspace(context),
        run,
        to.expanduser().absolute(),
        "merged" if merged else "adapter",
        step=step,
        best=best,
    )
    exported.write()
    for remark in exported.remarks:
        to_stderr(remark)
    command = None if serve_with is None else exported.command(serve_with)
    if json:
        print_json({**exported.facts, "command": command})
    else:
        print(sanitize(shlex.join(command) if command else str(exported.folder)))
        tell_next("" if command else exporting.try_command(exported, context.obj), context.obj)
    sys.stdout.flush()  # before a server takes the terminal over
    if command and not exporting.serve(command):
        to_stderr("vLLM is not installed here: run that command where it is.")
