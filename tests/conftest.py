"""What makes all tests quicker: folders in memory, kept bytecode, a heap not searched again."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.asserts import rewrite_asserts
from tests.support.made_once import keep_in

# On a busy machine both would tell of the machine, not of what is tested.
settings.register_profile(
    "any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")

_MEMORY = Path("/dev/shm")
_LONGEST = (
    "test_readme.py",
    "test_screen_processes.py",
    "test_processes.py",
    "test_typing_speed.py",
)
"""After the first they mostly wait: for processes, terminals and frames of the screen."""
_ROOM = 2 << 30
"""Bytes that must be free there; a whole run needs about a tenth of it."""


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders into memory where there is one, unless a place was chosen.

    A run flushes each durable event to disk, which is most of what its tests would wait for.
    Bytecode is kept also where the environment says not to: else each of a hundred real processes
    compiles the whole program again, a quarter of what it takes.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    chosen = config.getoption("basetemp") or os.environ.get("TMPDIR")
    if not chosen and _has_room(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)  # also that of workers and of real processes
        tempfile.tempdir = None
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        rewrite_asserts(config, Path(__file__).parent)


def _has_room(folder: Path) -> bool:
    return (
        folder.is_dir()
        and os.access(folder, os.W_OK | os.X_OK)
        and shutil.disk_usage(folder).free >= _ROOM
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest and cannot be shared out, else all wait for it in the end."""
    place = {name: at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for no garbage while tests are imported: there is hardly any in all that is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt what was imported from the search for garbage: a quarter of a screen's test.

    What tests make is searched less often than by default, which takes a tenth of the rest.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let workers find what one of them has made: they have the folder above in common."""
    own = tmp_path_factory.getbasetemp()
    keep_in(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
