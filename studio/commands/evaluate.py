"""`studio eval`: measure experiences on held-out problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engines.core.errors import ConfigError
from studio.commands import AsObject, Overrides, open_workspace


def evaluate(
    context: typer.Context,
    runfile: Annotated[
        str | None, typer.Argument(metavar="RUNFILE|PRESET", help="Model, data and verifier.")
    ] = None,
    overrides: Overrides = None,
    library: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@V]|none",
            help="Experiences in the prompt (also RUN@best, RUN@epoch:N, FILE); default: as a "
            "run begins.",
        ),
    ] = None,
    agent: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An agent.yaml: its instructions and experiences."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME[@V]|none", help="Experiences to compare with.")
    ] = None,
    k: Annotated[
        int | None, typer.Option(min=1, help="Tries a problem instead of evaluation.k.")
    ] = None,
    from_youtu: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Measure by a config of this Youtu-Agent checkout."),
    ] = None,
    config_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of its configs/eval, as math/NAME.")
    ] = None,
    json: AsObject = False,
) -> int:
    """Measure experiences on held-out sets; pays only for what is not measured yet."""
    from studio.config.source import parse_source
    from studio.evaluation.evaluate import load_eval, plan_eval
    from studio.evaluation.session import run_eval

    if agent is not None and library is not None:
        raise ConfigError("--agent", "--library names other experiences.", "Leave one of them out.")
    source = parse_source(
        "studio eval", "eval", runfile, overrides, from_youtu=from_youtu, config_name=config_name
    )
    loaded = load_eval(source, context.obj, agent=agent, k=k)
    plan = plan_eval(
        loaded, open_workspace(context), library=library, baseline=baseline, agent=agent is not None
    )
    return run_eval(plan, json=json)
