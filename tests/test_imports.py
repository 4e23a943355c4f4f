"""Which modules load which, looked at from outside: import-linter only reads the source."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import {package}
for found in pkgutil.walk_packages({package}.__path__, "{package}."):
    if not found.name.startswith({left_out!r}) and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(*sys.modules)
"""


@cache
def loaded_by(package: str, left_out: tuple[str, ...] = ()) -> set[str]:
    """Modules in memory once every module of a package is imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(package=package, left_out=left_out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_engines_never_loads_a_face_or_its_widgets() -> None:
    loaded = loaded_by("engines")
    assert {"engines.pipeline.step", "engines.core.types", "engines.policies.open"} <= loaded
    assert not {"textual", "rich", "typer", "studio"} & loaded


def test_engines_loads_its_heavy_libraries_only_when_they_are_used() -> None:
    # The task is loaded by name in a child process that checks answers, and nowhere else.
    own = ("engines.grpo", "engines.policies.hf_local", "engines.verifiers.math_task")
    own += ("engines.rollouts.remote.ray_cluster",)
    loaded = loaded_by("engines", own)
    # httpx2 is not among them: the rehearsal's transport is a class of it, in a module of its own.
    heavy = {"openai", "uvicorn", "sympy", "math_verify", "torch", "ray", "opentelemetry"}
    assert not heavy & loaded


@pytest.mark.parametrize("library", ["textual", "torch", "openai", "sympy"])
def test_studio_without_its_screen_loads_nothing_of(library: str) -> None:
    loaded = loaded_by("studio", ("studio.tui",))
    assert "studio.run.assemble" in loaded
    assert library not in loaded
