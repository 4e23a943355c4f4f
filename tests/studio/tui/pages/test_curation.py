"""A curation run on the screen: what each page says of a run that practises nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engines.record.run_dir import Workspace
from tests.studio.tui.pages.test_review_offline import a_table
from tests.studio.tui.stage import picture
from tests.support.run_studio import studio


async def test_an_import_is_reviewed_on_the_screen_and_committed_by_a_key(tmp_path: Path) -> None:
    (tmp_path / "lab.md").write_text("[a-1] helpful=1 harmful=0 :: Put it back.\n", "utf-8")
    workspace = Workspace(tmp_path / "practice")
    words = ("library", "import", "lab.md")
    assert (await asyncio.to_thread(studio, *words, workspace=workspace.path)).code == 0
    async with a_table(workspace.run("import-lab")) as table:
        shown = "\n".join(picture(table.app))
        assert "curation: 0 of 1 decided" in shown and "epoch 0/0" not in shown
        assert "no process: decided here; c commits" in shown
        for page, said in (
            ("live", "curation: 0 of 1 decided"),
            ("runs", "curates   import of lab.md; curation: 0 of 1 decided; lab@0"),
            ("progress", "no step is through yet"),
            ("inspect", ""),
            ("diff", ""),
            ("library", ""),
        ):
            table.app.open_page(page)
            await table.rest()
            for _ in range(200):
                if said in (shown := "\n".join(picture(table.app))):
                    break
                await table.pilot.pause()
            assert said in shown and "step 0" not in shown, shown
        table.app.open_page("review")
        await table.press("a", "c")
        for _ in range(200):
            if workspace.library("lab").head().version:
                break
            await table.pilot.pause()
        await table.rest()
        assert [e.text for e in workspace.library("lab").head().experiences] == ["Put it back."]
        assert "curation: 1 of 1 decided" in "\n".join(picture(table.app))
