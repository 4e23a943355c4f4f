"""`studio version`: what is installed here."""

import platform

from engines.core.errors import installed_version
from studio.commands import AsObject
from studio.render.json import print_result
from studio.render.lines import table

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
