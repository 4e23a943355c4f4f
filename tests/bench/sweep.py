"""A sweep of twelve short runs, killed at several points: its table and that of the single runs.

    python -m tests.bench.sweep [KILLS]

Prints JSON: kills, seconds of each command, and whether every figure of the table is that of the
same run made by itself.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engines.record.run_dir import Workspace
from studio.compare.sweep.grid import Grid, parse_grid
from studio.facts.evaluation import change_facts, rate_changes
from tests.studio.compare.test_sweep import SHARED, kill_all
from tests.support.run_studio import studio

GRID = ("seed=1,2,3", "practice.group_size=2,3", "practice.temperature=0.5,0.9")


def main(kills: int) -> None:
    chance, took = random.Random(1), list[float]()
    with tempfile.TemporaryDirectory() as place:
        swept, single = Path(place, "swept"), Path(place, "single")
        asked = [sys.executable, "-m", "studio", "--workspace", str(swept), "sweep", "rehearsal"]
        asked += [*GRID, *SHARED, "--json", "--jobs", "2"]
        for number in range(kills + 1):
            began = time.monotonic()
            with subprocess.Popen(
                asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as process:
                if number < kills:
                    time.sleep(chance.uniform(4, 14))
                    kill_all(process)
                else:
                    table = json.loads(process.communicate()[0])
            took.append(round(time.monotonic() - began, 1))
        equal = 0
        for cell in Grid("rehearsal", "rehearsal", *parse_grid("rehearsal", GRID)).cells:
            words = ("headless", "rehearsal", "--name", cell.name, *SHARED, *cell.overrides)
            studio(*words, workspace=single)
            state = Workspace(single).run(cell.name).state()
            figures = [change_facts(change) for change in rate_changes(state.evaluations)]
            (found,) = (run for run in table["runs"] if run["run"] == cell.name)
            equal += bool(figures) and figures == found["held_out"]
    runs, code = len(table["runs"]), process.returncode
    print(json.dumps({"kills": kills, "took_s": took, "code": code, "runs": runs, "equal": equal}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
