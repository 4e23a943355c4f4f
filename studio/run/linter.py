"""The linter of a run, put together from its run file.

Owns what the linter is shown: the problems of the run, the outputs of its tools, and the
embedding model where one is configured. Runs and the desk of `studio review` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from engines.core.errors import DamagedError, DataError
from engines.core.state.run_state import RunState
from engines.core.types import CallKey, Problem, Usage, rollout_id
from engines.pipeline.budget import BYTES_A_TOKEN, Amounts, Budget, CallPricing
from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.policies.chat.embedding import (
    EmbeddingClient,
    RehearsalEmbeddings,
    Reserve,
    open_embedder,
)
from engines.policies.chat.endpoint import EndpointSettings
from engines.record.ledger import RecordLedger, read_trajectory
from engines.record.run_dir import Workspace
from engines.training_free.lint import OperationLinter
from studio.config.loading import LoadedRun
from studio.config.settings.policy import EmbeddingConfig
from studio.config.settings.run import RunConfig
from studio.run.budget import embedding_terms
from studio.run.held_out import held_out_sets
from studio.run.models import endpoint_of


def held_out_problems(loaded: LoadedRun, sets: Sequence[HeldOutSet]) -> tuple[Problem, ...]:
    """Held-out problems, also of a run that does not evaluate: `studio eval` may do so later.

    Sets that such a run names and that cannot be read do not stop it.
    """
    if not sets and not loaded.config.evaluation.do_eval:
        try:
            sets = held_out_sets(loaded)
        except DataError:
            return ()
    return tuple(problem for held_out in sets for problem in held_out.problems)


Embedder = EmbeddingClient | RehearsalEmbeddings


async def open_run_embedder(
    loaded: LoadedRun,
    workspace: Workspace,
    stack: AsyncExitStack,
    budget: Budget | None = None,
    note: Callable[[Usage], None] = lambda _: None,
) -> Embedder | None:
    """The embedding model of a run file, once it has answered; closed with the stack.

    Args:
        loaded: the run file.
        workspace: where vectors are kept.
        stack: entered by the caller.
        budget: that it comes out of.
        note: is told what each request has cost.

    Raises:
        PolicyError: it cannot be reached.
    """
    config = loaded.config
    wanted = config.lint.embedding
    if wanted is None:
        return None
    embedder = open_embedder(
        wanted.model,
        _embedding_endpoint(config, wanted),
        workspace.path / "embeddings",
        _make_reserve(budget, embedding_terms(wanted), note),
    )
    stack.push_async_callback(embedder.aclose)
    await embedder.ping()
    return embedder


def usage_recorder(ledger: RecordLedger, config: RunConfig) -> Callable[[Usage], None]:
    """Has the records of a run tell what embeddings have cost, so that a resume knows."""
    wanted = config.lint.embedding

    def note(usage: Usage) -> None:
        if wanted is not None and usage.calls:
            ledger.record_cost(CallKey("embedding", 0, 0), wanted.model, usage, "vectors of texts")

    return note


def tool_output_reader(state: RunState, records: Path) -> Callable[[str], Sequence[str]]:
    """Reads what tools told a rollout of the step under way; of earlier ones nothing is known."""

    def read_outputs(rollout: str) -> Sequence[str]:
        step = state.current
        for place, done in step.rollouts.items() if step else ():
            # One reply and no more: there was no tool to call.
            if rollout_id(done.step, *place) == rollout and len(done.refs) > 1:
                try:
                    messages = read_trajectory(records, done.refs)
                except DamagedError:  # told of where it matters; a flag is not worth a stop
                    return ()
                return tuple(m.content for m in messages if m.role == "tool")
        return ()

    return read_outputs


def make_linter(
    config: RunConfig,
    practised: Sequence[Problem],
    held_out: Sequence[Problem],
    tool_output: Callable[[str], Sequence[str]] = lambda rollout: (),
    embedder: Embedder | None = None,
) -> OperationLinter:
    return OperationLinter(
        config.lint,
        practised=practised,
        held_out=held_out,
        tool_output=tool_output,
        embedder=embedder,
    )


def _embedding_endpoint(config: RunConfig, wanted: EmbeddingConfig) -> EndpointSettings:
    """Address and key belong together: the policy's, unless one of its own is named."""
    key = wanted.api_key
    own = EndpointSettings(
        base_url=wanted.base_url,
        api_key=key.get_secret_value() if key else None,
        timeout_s=wanted.timeout_s,
        max_retries=3,
        price_in_usd_per_mtok=wanted.price_in_usd_per_mtok,
    )
    if wanted.base_url is None and key is None and config.policy.model.startswith("openai:"):
        shared = endpoint_of(config.policy)
        return replace(
            own, base_url=shared.base_url, api_key=shared.api_key, headers=shared.headers
        )
    return own


def _make_reserve(
    budget: Budget | None, terms: CallPricing, note: Callable[[Usage], None]
) -> Reserve:
    async def reserve(texts: Sequence[str]) -> Callable[[Usage], None]:
        if budget is None:
            return note
        tokens = sum(len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1 for text in texts)
        settle = await budget.reserve(Amounts(1, tokens, terms.cost_usd(tokens, 0)))

        def record_paid(usage: Usage) -> None:
            settle(terms.amounts_of(usage))
            note(usage)

        return record_paid

    return reserve
