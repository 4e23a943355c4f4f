"""Every figure that a page shows of a finished run is in the JSON that commands print of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engines.record.run_dir import Workspace
from studio.facts.library import version_facts
from studio.library.references import find_version
from studio.report.page import report_facts
from studio.workspace.listing import listed_runs
from tests.studio.tui.scenes import SCENES, on_stage
from tests.studio.tui.stage import picture
from tests.support.figures import missing_figures

SIZE = (120, 36)
NO_FACTS = {
    # Figures in the text of a problem, and the bound below which p is not told.
    "live-finished": ("67", "49", "76", "0.001"),
    # Ticks of the axis, and the level of all intervals.
    "progress-finished": ("1.00", "0.50", "0.00", "95"),
    "runs-finished": (),
    # Words of a text, which stands in the JSON, and how near another text is to it.
    "library-finished": ("14", "16", "17", "20", "0.40"),
}


@pytest.mark.parametrize("scene", NO_FACTS)
async def test_a_page_shows_no_figure_of_its_own(scene: str, tmp_path: Path) -> None:
    async with on_stage(SCENES[scene], tmp_path, SIZE) as stage:
        rows = picture(stage.app)
    workspace = Workspace(tmp_path / "practice")
    facts = [
        report_facts(workspace.run("rehearsal"), workspace, alive=False),
        listed_runs(workspace),
        version_facts(find_version("rehearsal", workspace)),
    ]
    page = "\n".join(rows[1:-2])  # without header and footer
    text = re.sub(r"\d\d:\d\d(:\d\d)?|\b[0-9a-f]{10}\b", "", page)  # times of day, ids of problems
    assert missing_figures(text, facts, besides=NO_FACTS[scene]) == []
