"""What follows from a committed library: the agent with its experiences, and the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.record.appender import write_atomic
from engines.record.export import format_agent_yaml
from engines.record.libraries import LibraryFolder
from studio.config.settings.run import RunConfig
from studio.run.models import endpoint_of
from studio.run.new_or_resume import RunPlan


def make_publisher(
    plan: RunPlan, state: RunState, folder: LibraryFolder
) -> Callable[[Library], None]:
    """Writes `agent.yaml`, beside it the agent that did best on the held-out sets, and the rows."""
    from engines.record.catalogue import write_library_rows

    config, mask, run = plan.loaded.config, plan.loaded.mask, plan.run

    def adapter(step: int | None = None) -> str | None:
        """Of what was trained so far, or as it was after a step."""
        # Step 0 was measured before any training, so its weights are the base model's.
        trained = config.trains and state.policy_version and step != 0
        at = "" if step is None else f"@{step}"
        return f"run:{run.run}{at}" if trained else None

    in_catalogue: Library | None = None

    def publish(library: Library) -> None:
        nonlocal in_catalogue
        agent = agent_description(config, adapter())
        write_atomic(run.agent_file, format_agent_yaml(agent, library, run.run, mask))
        best = best_library(state, folder)
        if best is not None:
            agent = agent_description(config, adapter(state.best_step))
            text = format_agent_yaml(agent, best, f"{run.run}, best on the held-out sets", mask)
            write_atomic(run.best_agent_file, text)
        if library != in_catalogue:  # training alone commits one at each step that changes nothing
            write_library_rows(plan.workspace, library)
            in_catalogue = library

    return publish


def agent_description(config: RunConfig, adapter: str | None = None) -> dict[str, Any]:
    """What `agent.yaml` holds besides the experiences: no key, no header, no address's user.

    `adapter` names the weights that the run trained; None: as the run file says.
    """
    model, agent = config.role("policy"), config.agent
    described = {
        "model": model.model,
        "base_url": None if model.base_url is None else endpoint_of(model).url,
        "temperature": model.temperature,
        "top_p": model.top_p,
        "max_tokens": model.max_tokens,
        "adapter": adapter or model.adapter,
    }
    turns = (
        {} if agent.kind == "single_turn" else {"kind": agent.kind, "max_turns": agent.max_turns}
    )
    return {
        "name": agent.name,
        "instructions": agent.instructions,
        "cite": agent.cite,
        **turns,
        "model": {name: value for name, value in described.items() if value is not None},
    }


def best_library(state: RunState, folder: LibraryFolder) -> Library | None:
    """The version that did best on the held-out sets; None where nothing was measured."""
    if (step := state.best_step) is None:
        return None
    version = next(e.library_version for e in state.evaluations if e.step == step)
    return folder.at(version)
