"""`agent.yaml`: the enhanced agent as a file that another run file can mount.

It holds no key: secrets are masked in every text, before it is folded into lines.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.core.library import Library
from engines.record.appender import write_atomic
from engines.record.libraries import experience_row
from engines.record.seal import add_seal, refuse_altered
from engines.record.yaml_text import dump_yaml, escape_interpolation, load_yaml
from engines.secrets.mask import NO_SECRETS, Mask


def format_agent_yaml(
    agent: Mapping[str, Any], library: Library, run: str, mask: Mask = NO_SECRETS
) -> bytes:
    """Render `agent.yaml`, sealed; `run` is "" outside runs.

    `agent` is what the run file says of it, with `${` escaped wherever it stands for itself.
    """
    return add_seal(format_agent_head(library, run) + format_agent_body(agent, library, mask))


def format_agent_head(library: Library, run: str) -> bytes:
    """What the file says of itself."""
    return (
        "# An agent enhanced by practice. To mount it, copy it to configs/agents/NAME.yaml in\n"
        "# the workspace and write in a run file:  defaults: [/agents/NAME@agent, _self_]\n"
        "# To change it, delete the line `# sha256 …`: the file is your own then.\n"
        f"# Experiences ({library.content_hash}) of library {library.name}@{library.version}"
        f"{f', run {run}' if run else ''}.\n"
    ).encode()


def format_agent_body(agent: Mapping[str, Any], library: Library, mask: Mask) -> bytes:
    rows = [
        {**experience_row(e), "text": escape_interpolation(mask(e.text))}
        for e in library.experiences
    ]
    data = {**mask.tree(dict(agent)), "experiences": rows}
    return dump_yaml(data).encode("utf-8", "replace")


def refresh_agent(path: Path, library: Library, run: str, mask: Mask = NO_SECRETS) -> None:
    """Write a run's `agent.yaml` again with the experiences of another version.

    Raises DamagedError: it was altered, and would be sealed as if it were the studio's.
    """
    refuse_altered(path)
    described = load_yaml(path.read_text("utf-8"))
    described.pop("experiences", None)
    write_atomic(path, format_agent_yaml(described, library, run, mask))
