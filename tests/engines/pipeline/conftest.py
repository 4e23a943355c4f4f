"""A run that many tests look at, practised once."""

from __future__ import annotations

import asyncio

import pytest

from engines.record.run_dir import Workspace
from tests.support.harness import Practised, practised
from tests.support.made_once import made_once


@pytest.fixture(scope="session")
def learned() -> Practised:
    """The rehearsal as its preset has it, to be looked at only; it asked in another process."""
    workspace = Workspace(made_once("learned", lambda folder: asyncio.run(practised(folder))))
    run = workspace.run("rehearsal")
    return Practised(run.state(), run, workspace.library("rehearsal").head(), asked=0, reused=0)
