"""Rollouts of a run as documents of ATIF, for other programs."""

from importlib.metadata import version
from pathlib import Path

import orjson

from engines.core.errors import ConflictError
from engines.core.types import rollout_id
from engines.record.appender import write_atomic
from engines.record.derived.run_state import read_history
from engines.record.ledger import read_record
from engines.record.run_dir import RunDir
from engines.record.yaml_text import load_yaml
from engines.secrets.mask import Mask
from engines.tracing.atif import write_trajectory


def export_trajectories(run: RunDir, folder: Path, mask: Mask, rollout: str | None = None) -> int:
    """Write `ID.json` of every rollout of a run, or of one, into a folder; returns how many.

    Raises ConflictError: there is no such rollout, or the folder is not empty. DamagedError.
    """
    found = {one.id: one for one in read_history(run.journal).rollouts}
    if rollout is not None and rollout not in found:
        move = f"See them: studio runs show {run.run}."
        raise ConflictError(f"run {run.run}, rollout {rollout}", "it has no such rollout.", move)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(str(folder), "it is not an empty folder.", "Choose another one.")
    folder.mkdir(parents=True, exist_ok=True)
    described = load_yaml(run.run_file.read_text("utf-8")) if run.run_file.is_file() else {}
    name = str((described.get("agent") or {}).get("name") or "agent")
    agent = {"name": name, "version": f"practice-studio {version('practice-studio')}"}
    wanted = [one for one in found.values() if rollout in (None, one.id)]
    for one in wanted:
        place = (one.finished.step, one.finished.position, one.finished.index)
        document = write_trajectory(
            run=run.run,
            name=rollout_id(*place),
            agent=agent,
            rollout=one.finished,
            verdict=one.verdict,
            records=[read_record(run.records, ref) for ref in one.finished.refs],
        )
        body = orjson.dumps(mask.tree(document), option=orjson.OPT_INDENT_2)
        write_atomic(folder / f"{one.id}.json", body + b"\n")
    return len(wanted)
