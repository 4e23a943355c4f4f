"""Whether the catalogue says what the journals do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from engines.core.errors import StudioError
from engines.core.ids import digest_bytes
from engines.record import lines
from engines.record.catalogue.rows import rebuild, told_row
from engines.record.repair.trouble import Trouble
from engines.record.run_dir import Workspace
from engines.record.seal import ALTERED, seal_fits
from studio.data.catalogue import listed_data


def catalogue_troubles(
    workspace: Workspace, rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[Trouble]:
    """Rows of the catalogue that differ from the journals; a missing row is no damage.

    `rows` are those of the runs, as their journals tell them.
    """
    if not workspace.catalogue.is_file():
        return
    move = f"{lines.REPAIR} makes it anew; nothing is lost by that."

    def rebuild_catalogue() -> str:
        rebuild(workspace, _dataset_rows(workspace))
        return "made anew from the journals"

    cause = ""
    try:
        content = workspace.catalogue.read_bytes()
        tables = orjson.loads(content)
        fits = seal_fits(content)
        if not fits and (fits is False or not all(isinstance(t, dict) for t in tables.values())):
            cause = ALTERED
        runs = {row["run"]: row for row in tables.get("runs", {}).values()}
        libraries = {row["library"]: row for row in tables.get("libraries", {}).values()}
    except (ValueError, AttributeError, TypeError, KeyError):
        cause = "it cannot be read."
    if cause:
        yield Trouble(str(workspace.catalogue), cause, move, rebuild_catalogue)
        return
    wrong = []
    for name, row in rows.items():
        if name in runs and told_row(runs[name]) != json.loads(json.dumps(row)):
            wrong.append(f"run {name}")
    for folder in workspace.libraries():
        with suppress(StudioError):
            kept, head = libraries.get(folder.name), folder.head()
            made = (head.version, head.content_hash)
            if kept is not None and (kept["version"], kept["content_hash"]) != made:
                wrong.append(f"library {folder.name}")
    if wrong:
        cause = f"it does not say what the journals do of {', '.join(wrong)}."
        yield Trouble(str(workspace.catalogue), cause, move, rebuild_catalogue, damage=False)


def _dataset_rows(workspace: Workspace) -> Iterator[dict[str, Any]]:
    for data in listed_data(workspace, bundled=False):
        path = Path(data.path)
        if data.where != "workspace" or data.n is None or not path.is_file():
            continue
        content = path.read_bytes()
        about = {"name": data.name, "path": f"{path.parent.name}/{path.name}", "n": data.n}
        yield about | {"bytes": len(content), "digest": digest_bytes(content)}
