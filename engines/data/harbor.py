"""Task folders in the Harbor layout: `task.toml`, `instruction.md`, `tests/test.sh`.

A task whose agent works in an image of its own is refused: there is nothing here to run one in.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from engines.core.errors import DataError

TASK_FILE = "task.toml"


def find_tasks(folder: Path) -> tuple[Path, ...]:
    """The `task.toml` of a task folder, or of each inside a folder of them; () where is none."""
    if (folder / TASK_FILE).is_file():
        return (folder / TASK_FILE,)
    return tuple(sorted(folder.glob(f"*/{TASK_FILE}")))


def read_task(file: Path) -> dict[str, Any] | DataError:
    """A task as a row; an error where it needs an image, or a part of it is missing."""
    folder = file.parent.absolute()
    try:
        told = tomllib.loads(file.read_text("utf-8"))
        question = (folder / "instruction.md").read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        return DataError(str(file), f"The task cannot be read: {error}.", "Mend it.")
    environment = told.get("environment")
    named = isinstance(environment, dict) and environment.get("docker_image")
    if named or (folder / "environment" / "Dockerfile").exists():
        why = f"the image {named}" if named else "the image of environment/Dockerfile"
        move = "Move it elsewhere: only tasks that run without an image can be practised."
        return DataError(str(file), f"The task needs {why}.", move)
    if not (folder / "tests" / "test.sh").is_file():
        return DataError(str(file), "The task has no tests/test.sh.", "Add its grader.")
    return {"question": question, "task": str(folder), "name": folder.name}
