"""Images of problems: addresses as they are, files beside the data by their absolute path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engines.core.errors import DataError
from engines.core.types import Problem

_ADDRESSES = ("http://", "https://", "data:image/")


def find_images(place: str, problem: Problem, folder: Path) -> Problem:
    """The problem with the files that its field "images" (or "image") names found in a folder.

    Raises DataError: there is no such file.
    """
    if not problem.images:
        return problem
    found = []
    for image in problem.images:
        path = folder / image
        if not image.startswith(_ADDRESSES):
            if not path.is_file():
                cause = f'"images" names {image}, and there is no such file in {folder}.'
                raise DataError(place, cause, "Put it there, or write its address.")
            image = str(path.resolve())
        found.append(image)
    return replace(problem, meta={**problem.meta, "images": found})
