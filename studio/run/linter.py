"""The linter of a run: it compares with problems, outputs of tools, and an embedding model."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from engines.core.errors import DamagedError, DataError, StudioError
from engines.core.library import Library
from engines.core.protocols import Linter
from engines.core.state.run_state import RunState
from engines.core.types import NO_USAGE, CallKey, Flag, Operation, Problem, Usage, rollout_id
from engines.data.dataset import read_problems
from engines.pipeline.budget import BYTES_A_TOKEN, Amounts, Budget
from engines.pipeline.evaluation.evaluate import HeldOutSet
from engines.policies.chat.embedding import Reserve
from engines.record.cassette import Cassette, OpenEmbedder
from engines.record.ledger import RecordLedger, read_trajectory
from engines.record.run_dir import RunDir, Workspace
from engines.training_free.lint import OperationLinter
from studio.config.loading import LoadedRun, load_run
from studio.config.settings.policy import EmbeddingConfig
from studio.run.held_out import held_out_sets
from studio.run.models import embedding_terms, open_vectors
from studio.run.new_or_resume import RunPlan


async def open_run_embedder(
    loaded: LoadedRun,
    workspace: Workspace,
    stack: AsyncExitStack,
    budget: Budget | None = None,
    ledger: RecordLedger | None = None,
    cassette: Cassette | None = None,
) -> OpenEmbedder | None:
    """The embedding model of a run file, once it has answered; closed with the stack.

    Requests come out of the budget. The ledger records what each has cost, so that a resumed run
    counts it too.
    """
    config = loaded.config
    if (wanted := config.lint.embedding) is None:
        return None

    reserve = count_vectors(wanted, budget, ledger)
    embedder = open_vectors(config, wanted, workspace.path, reserve, cassette)
    stack.push_async_callback(embedder.aclose)
    await embedder.ping()
    return embedder


def count_vectors(
    wanted: EmbeddingConfig, budget: Budget | None, ledger: RecordLedger | None
) -> Reserve:
    """Takes what vectors cost out of the budget, and has it recorded."""
    terms = embedding_terms(wanted)

    def record_cost(usage: Usage) -> None:
        if ledger is not None and usage.calls:
            ledger.record_cost(CallKey("embedding", 0, 0), wanted.model, usage, "vectors of texts")

    async def reserve(texts: Sequence[str]) -> Callable[[Usage], None]:
        if budget is None:
            return record_cost
        # By bytes, as for replies: the endpoint's tokenizer is not here.
        tokens = sum(len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1 for text in texts)
        settle = await budget.reserve(Amounts(1, tokens, terms.cost_usd(tokens, 0)))

        def record_paid(usage: Usage) -> None:
            settle(terms.amounts_of(usage))
            record_cost(usage)

        return record_paid

    return reserve


def tool_output_reader(state: RunState, records: Path) -> Callable[[str], Sequence[str]]:
    """Reads what tools returned to a rollout of the current step; of earlier ones nothing."""

    def read_outputs(rollout: str) -> Sequence[str]:
        step = state.current
        # A copy: this runs in a thread while rollouts come in.
        for place, done in tuple(step.rollouts.items()) if step else ():
            # A rollout of a single reply called no tool.
            if rollout_id(done.step, *place) == rollout and len(done.refs) > 1:
                try:
                    messages = read_trajectory(records, done.refs)
                except DamagedError:  # a resume reports it; a missing flag stops nothing
                    return ()
                return tuple(m.content for m in messages if m.role == "tool")
        return ()

    return read_outputs


def open_run_linter(
    plan: RunPlan, sets: Sequence[HeldOutSet], state: RunState, embedder: OpenEmbedder | None
) -> OperationLinter:
    loaded = plan.loaded
    if not sets and not loaded.config.evaluation.do_eval:
        # Also where the run does not evaluate: `studio eval` may do so later.
        with suppress(DataError):
            sets = held_out_sets(loaded)
    return OperationLinter(
        loaded.config.lint,
        practised=plan.problems,
        held_out=[problem for held_out in sets for problem in held_out.problems],
        tool_output=tool_output_reader(state, plan.run.records),
        embedder=embedder,
    )


class LazyLinter:
    """Implements `engines.core.protocols.Linter` from a run's own run file and data.

    It is opened when it is first needed, since most reviews edit nothing. Without the data it
    finds no leaks, without the run file nothing at all; `tell` gets a note of either, once.
    """

    def __init__(self, workspace: Workspace, run: RunDir, tell: Callable[[str], None]) -> None:
        self._workspace, self._run, self._tell = workspace, run, tell
        self._linter: Linter | None = None
        self._tried = False

    async def flags_of(
        self, operations: Sequence[Operation], library: Library, others: Sequence[Operation] = ()
    ) -> tuple[tuple[Flag, ...], ...]:
        if not self._tried:
            self._linter, self._tried = self._open(), True
        if self._linter is None:
            return ((),) * len(operations)
        return await self._linter.flags_of(operations, library, others)

    def take_usage(self) -> Usage:
        return NO_USAGE

    def _open(self) -> Linter | None:
        try:
            # Keys may be masked or not set here: no model is asked.
            loaded = load_run(str(self._run.run_file), [], self._workspace.path, keyless=True)
        except StudioError as error:
            self._tell(f"note: nothing is linted, since the run file cannot be read: {error}")
            return None
        config = loaded.config
        practised: tuple[Problem, ...] = ()
        held_out: tuple[Problem, ...] = ()
        try:
            if config.data.practice is not None:
                path = loaded.data_path(config.data.practice)
                practised = read_problems(path, fields=config.data.fields, needs_answer=False)
            held_out = tuple(p for found in held_out_sets(loaded) for p in found.problems)
        except StudioError as error:
            self._tell(f"note: leaks are not looked for as the run did: {error}")
        if config.lint.embedding is not None:
            self._tell("note: edits are compared by their wording; no embedding model is asked")
        return OperationLinter(config.lint, practised=practised, held_out=held_out)
