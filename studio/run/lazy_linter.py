"""The linter of a run without a process, opened when it is first needed.

Most sittings edit and mend nothing; they need not read a run file and its data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.core.errors import StudioError
from engines.core.library import Library
from engines.core.protocols import Linter
from engines.core.types import NO_USAGE, Flag, Operation, Problem, Usage
from engines.record.run_dir import RunDir, Workspace


class LazyLinter:
    """Implements `engines.core.protocols.Linter` from a run's own run file and data.

    Where the data cannot be read any more it finds no leaks; where the run file cannot, it
    finds nothing. Either is told, once.
    """

    def __init__(self, workspace: Workspace, run: RunDir, tell: Callable[[str], None]) -> None:
        self._workspace, self._run, self._tell = workspace, run, tell
        self._linter: Linter | None = None
        self._tried = False

    async def flags(
        self, operation: Operation, library: Library, others: Sequence[Operation] = ()
    ) -> tuple[Flag, ...]:
        """See `engines.core.protocols.Linter.flags`."""
        if not self._tried:
            self._linter, self._tried = self._open(), True
        if self._linter is None:
            return ()
        return await self._linter.flags(operation, library, others)

    def take_usage(self) -> Usage:
        """Nothing: no model is asked here."""
        return NO_USAGE

    def _open(self) -> Linter | None:
        from engines.data.dataset import read_problems
        from studio.config.loading import load_run
        from studio.run.held_out import held_out_sets
        from studio.run.linter import make_linter

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
        return make_linter(config, practised, held_out)
