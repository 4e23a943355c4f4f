"""`studio version`: what is installed here."""

from __future__ import annotations

import platform

from studio.commands import AsObject
from studio.report.tables import print_result, table

PACKAGES = ("practice-studio", "textual", "openai", "torch", "transformers", "peft")


def version(json: AsObject = False) -> None:
    """Print the versions of the studio and of its libraries.

    Examples:
        studio version
        studio version --json
    """
    found = {"practice-studio": installed_version(PACKAGES[0]), "python": platform.python_version()}
    found |= {name: installed_version(name) for name in PACKAGES[1:]}
    rows = [(name, number or "not installed") for name, number in found.items()]
    print_result(found, table(("NAME", "VERSION"), rows), json=json)


def installed_version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as find_version

    try:
        return find_version(package)  # read from its metadata: importing torch takes seconds
    except PackageNotFoundError:
        return None
