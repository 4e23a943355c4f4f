"""The four cells of an alternating run: {first, trained weights} x {no library, its library}.

Measured once, after the last step, on the same problems and seeds; what is known is not paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from engines.core.events import CellMeasured
from engines.core.library import Library
from engines.core.waiting.threads import run_to_end
from engines.pipeline.evaluation.evaluate import Evaluation, PinnedVersion, measure_set, write_whole
from engines.pipeline.recorder import Recorder

FirstWeights = Callable[[], AbstractAsyncContextManager[None]]
"""Has the policy answer, for the time of a block, with the weights that the run began with."""


async def measure_cells(
    evaluation: Evaluation,
    recorder: Recorder,
    library: Library,
    weights: Callable[[], str],
    first_weights: FirstWeights,
) -> None:
    """Measure and journal each cell of each set that has no result yet."""
    state, writer = recorder.state, evaluation.writer
    last = state.steps_finished
    done = {(c.trained, c.with_library, c.result.data) for c in state.cells if c.step == last}
    every = [(trained, shown) for trained in (True, False) for shown in (True, False)]
    stage = f"cells after step {last}"
    await writer.prepare(library)
    for trained, with_library in every:
        left = [s for s in evaluation.sets if (trained, with_library, s.name) not in done]
        if not left:
            continue
        shown = library if with_library else None
        # Replies are recorded by step: with the first weights they are those from before step 1.
        step, policy = (last, state.policy_version) if trained else (0, 0)
        version = library.version if with_library else 0
        pinned = PinnedVersion(write_whole(writer, shown), version, policy)
        async with nullcontext() if trained else first_weights():
            opening = partial(evaluation.book, writer.describe(shown), weights())
            book = await run_to_end(opening)
            try:
                for held_out in left:
                    found = await measure_set(
                        evaluation, recorder, book, held_out, pinned, step=step, stage=stage
                    )
                    await recorder.record(CellMeasured(last, trained, with_library, found))
            finally:
                book.close()
