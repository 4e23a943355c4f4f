"""The asserts of tests rewritten once, before workers start: else each does it for all of them.

Where bytecode is missing, as in a fresh checkout, that takes a worker longer than to import them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest


def rewrite_asserts(config: pytest.Config, folder: Path) -> None:
    """Keep the bytecode of each test below a folder where pytest looks for it, in two processes.

    By parts of pytest that are its own: where one is gone, workers do it as ever.
    """
    with suppress(ImportError, AttributeError):
        from _pytest.assertion import rewrite

        files = sorted(folder.rglob("test_*.py"), key=lambda path: -path.stat().st_size)
        child = os.fork()
        try:
            for path in files[bool(child) :: 2]:
                kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
                with suppress(SyntaxError, OSError):  # a worker tells of it
                    if rewrite._read_pyc(path, kept) is None:
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        of_source, code = rewrite._rewrite_test(path, config)
                        rewrite._write_pyc(
                            config.stash[rewrite.assertstate_key], code, of_source, kept
                        )
        finally:
            if not child:
                os._exit(0)
        os.waitpid(child, 0)
