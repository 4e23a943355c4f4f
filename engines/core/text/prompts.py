"""The prompt templates: where they are, and their strict rendering.

A prompt is a Markdown file with front matter that lists its variables and what its reply must be.
It stands in the folder `prompts` of the package that asks with it, one of `PACKAGES`.
"""

import re
from importlib.util import find_spec
from pathlib import Path

from engines.core.codec import digest_bytes
from engines.core.frozen import frozen
from engines.core.text.sanitize import escape_unsafe

PACKAGES = (
    "engines.agents",
    "engines.core",
    "engines.policies",
    "engines.tools",
    "engines.training_free",
    "engines.verifiers",
    "studio.config",
)
"""Whose prompts a run may send; its journal names the hash of each."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@frozen
class Prompt:
    """A parsed prompt file; `hash` covers the whole file."""

    name: str
    variables: frozenset[str]
    returns: str
    body: str
    hash: str

    def render(self, **values: str) -> str:
        """Fill in every variable; raises ValueError where the values are not those it lists."""
        missing, unused = self.variables - values.keys(), values.keys() - self.variables
        if missing or unused:
            raise ValueError(
                f"prompt {self.name}: missing {sorted(missing)}, unused {sorted(unused)}"
            )
        return _PLACE.sub(lambda match: values[match[1]], self.body)


def load_prompt(package: str, name: str) -> Prompt:
    """Read `prompts/NAME.md` of a package."""
    return parse_prompt(name, (_folder(package) / f"{name}.md").read_text("utf-8"))


def prompt_hashes() -> dict[str, str]:
    """The hash of every prompt file: `core/guidance` → hash."""
    return {
        f"{package.rpartition('.')[2]}/{path.stem}": load_prompt(package, path.stem).hash
        for package in PACKAGES
        for path in sorted(_folder(package).glob("*.md"))
    }


def _folder(package: str) -> Path:
    # Not importlib.resources, which takes 18 ms to import: many commands render no prompt.
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0], "prompts")


def parse_prompt(name: str, text: str) -> Prompt:
    _, front, body = text.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.strip().splitlines())
    variables = frozenset(v.strip() for v in fields["variables"].strip("[]").split(",") if v)
    used = frozenset(_PLACE.findall(body))
    if used != variables:
        raise ValueError(f"prompt {name}: declares {sorted(variables)}, uses {sorted(used)}")
    return Prompt(name, variables, fields["returns"], body.strip(), digest_bytes(text.encode(), 6))


def quote(text: str) -> str:
    """Prefix every line with `| `, so that none can pass for a heading or an instruction.

    What hides or reorders text is shown by its code point: a model must not read more than
    a person who looks at the same prompt.
    """
    return "\n".join(f"| {escape_unsafe(line)}".rstrip() for line in text.splitlines() or [""])
