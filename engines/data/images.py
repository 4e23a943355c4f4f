"""Images of problems: addresses as they are, files beside the data by their absolute path."""

from __future__ import annotations

import mimetypes
from dataclasses import replace
from pathlib import Path

from engines.core.errors import DataError
from engines.core.types import Problem

_ADDRESSES = ("http://", "https://", "data:image/")


def find_images(place: str, problem: Problem, folder: Path) -> Problem:
    """The problem with what its field "images" (or "image") names found in a folder.

    What is neither an address nor named as an image is a field like any other.

    Raises DataError: there is no such file.
    """
    named = problem.meta.get("images") or problem.meta.get("image") or ()
    listed = named if isinstance(named, list) else [named]
    images = [image for image in listed if isinstance(image, str) and _is_image(image)]
    if not images:
        return problem
    for number, image in enumerate(images):
        if not image.startswith(_ADDRESSES):
            path = folder / image
            if not path.is_file():
                cause = f'"images" names {image}, and there is no such file in {folder}.'
                raise DataError(place, cause, "Put it there, or write its address.")
            images[number] = str(path.resolve())
    return replace(problem, meta={**problem.meta, "shown_images": images})


def _is_image(text: str) -> bool:
    kind = "" if text.startswith(_ADDRESSES) else mimetypes.guess_type(text)[0] or "text"
    return not kind or kind.startswith("image/")
