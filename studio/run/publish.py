"""What follows from a committed library: the agent with its experiences, and the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from engines.core.library import Library
from engines.core.state.run_state import RunState
from engines.record.appender import write_atomic
from engines.record.export import format_agent_body, format_agent_head
from engines.record.libraries import LibraryFolder
from engines.record.run_dir import RunDir, Workspace
from engines.record.seal import add_seal
from engines.secrets.mask import MASK
from studio.config.agent_file import names_only_variables
from studio.config.loading import LoadedRun
from studio.config.run_yaml import storable_tree
from studio.config.settings.run import RunConfig
from studio.config.tree import replace_value, walk_texts
from studio.run.models import endpoint_of


def make_publisher(
    loaded: LoadedRun,
    run: RunDir,
    workspace: Workspace,
    state: RunState,
    folder: LibraryFolder,
    only: Path | None = None,
) -> Callable[[Library], None]:
    """Writes `agent.yaml`, beside it the agent that did best on the held-out sets, and the rows.

    `only` is the one of the two files to write; None: both.
    """
    from engines.record.derived.catalogue import write_library_rows

    config, mask = loaded.config, loaded.mask

    def adapter(step: int | None = None) -> str | None:
        """Of what was trained so far, or as it was after a step."""
        # Step 0 was measured before any training, so its weights are the base model's.
        trained = config.trains and state.policy_version and step != 0
        at = "" if step is None else f"@{step}"
        return f"run:{run.run}{at}" if trained else None

    in_catalogue: Hashable = None
    in_files: dict[Path, Hashable] = {}  # most steps of a long run change none
    made: tuple[Hashable, bytes] = ((), b"")  # the best agent is often the last one

    def write(file: Path, library: Library, trained: str | None, made_by: str) -> None:
        nonlocal made
        held = (trained, library.name, library.version, library.experiences)
        if in_files.get(file) == held or only not in (None, file):
            return
        if made[0] != held:
            made = (held, format_agent_body(agent_description(config, trained), library, mask))
        write_atomic(file, add_seal(format_agent_head(library, made_by) + made[1]))
        in_files[file] = held

    def publish(library: Library) -> None:
        nonlocal in_catalogue
        write(run.agent_file, library, adapter(), run.run)
        if (step := state.best_step) is not None:
            version = next(e.library_version for e in state.evaluations if e.step == step)
            made_by = f"{run.run}, best on the held-out sets"
            write(run.best_agent_file, folder.at(version), adapter(step), made_by)
        held = (library.name, library.version, library.experiences)
        if held != in_catalogue:
            write_library_rows(workspace, library)
            in_catalogue = held

    return publish


_BROUGHT = (
    *("model", "api_key", "temperature", "top_p", "max_tokens", "timeout_s", "max_retries"),
    *("extra_body", "headers", "price_in_usd_per_mtok", "price_out_usd_per_mtok", "adapter"),
    "price_cached_usd_per_mtok",
)
"""What an agent's model keeps: all that a call of it needs, and what it costs."""


def agent_description(config: RunConfig, adapter: str | None = None) -> dict[str, Any]:
    """What `agent.yaml` holds besides the experiences, `${` in its texts escaped.

    Of a key and of a secret header it holds the reference, `${oc.env:NAME}`; one that was written
    as its value is masked, and asked for where the agent is mounted. No address has a user.
    `adapter` names the weights that the run trained; None: as the run file says.
    """
    model, agent = config.role("policy"), config.agent
    given = model.model_dump(include=set(_BROUGHT), exclude_defaults=True)
    brought = storable_tree(given, ("policy",), config.origins)
    for key, text in walk_texts(brought):
        if not names_only_variables(text):
            replace_value(brought, key, MASK)  # it names another setting of the run file
    address = {} if model.base_url is None else {"base_url": endpoint_of(model).url}
    usual = {"name", "instructions", "cite", "experiences", "model"}
    acts = agent.model_dump(exclude=usual, exclude_defaults=True)
    if acts:
        acts |= {"kind": agent.kind, "max_turns": agent.max_turns}
    named = ("name", "instructions", "cite", *acts)
    described = storable_tree({**agent.model_dump(include=usual), **acts}, ("agent",), {})
    weights = {} if adapter is None else {"adapter": adapter}
    first = {"model": brought.pop("model"), **address}
    return {**{n: described[n] for n in named}, "model": {**first, **brought, **weights}}
