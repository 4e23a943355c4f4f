"""A curation run on the screen: what each page says of a run that practises nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engines.record.derived.catalogue import condition, find_rows
from engines.record.run_dir import Workspace
from studio.tui.palette import LearnedHits
from tests.studio.tui.pages.test_review_offline import a_table
from tests.studio.tui.stage import finished_workspace, picture
from tests.support.run_studio import studio


async def test_an_import_is_reviewed_on_the_screen_and_committed_by_a_key(tmp_path: Path) -> None:
    (tmp_path / "lab.md").write_text("[a-1] helpful=1 harmful=0 :: Put it back.\n", "utf-8")
    workspace = Workspace(tmp_path / "practice")
    words = ("library", "import", "lab.md")
    assert (await asyncio.to_thread(studio, *words, workspace=workspace.path)).code == 0
    async with a_table(workspace.run("import-lab")) as table:
        shown = "\n".join(picture(table.app))
        assert "| 0 of 1 decided | CURATION |" in shown and "epoch 0/0" not in shown
        await table.press("s", "p")
        assert "no process of it is running. Nothing is left of it to run." in table.told
        said = await asyncio.to_thread(studio, "ctl", "status", workspace=workspace.path)
        assert "run import-lab: curation, no process" in said.stdout
        assert "no process: decided here; c commits" in shown
        assert "yours" not in shown and "no rollouts: it was not drawn from practice" in shown
        for page, said in (
            ("start", "curation: 1 to decide"),
            ("live", "import of lab.md: it practises nothing, its operations are on 2 Review"),
            ("runs", "curation: 1 to decide"),
            ("runs", "curates   import of lab.md; curation: 0 of 1 decided; lab@0"),
            ("progress", "import of lab.md: it practises nothing, its operations are on 2 Review"),
            ("inspect", "practises nothing, its"),
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
            assert not any(
                word in shown for word in ("groups ", "reward (", "through", "under way")
            ), shown
        table.app.open_page("start")
        await table.press("C")
        assert "it is over, and costs nothing: enter opens it" in table.told
        table.app.open_page("progress")
        await table.press("enter")
        assert table.app.page_name == "review"
        await table.press("a", "c")
        for _ in range(200):
            if workspace.library("lab").head().version:
                break
            await table.pilot.pause()
        await table.rest()
        assert [e.text for e in workspace.library("lab").head().experiences] == ["Put it back."]
        assert "| 1 of 1 decided | CURATION |" in "\n".join(picture(table.app))
        assert table.told == "1 approved; committed: library lab is at v1"
        table.app.open_page("live")
        await table.rest()
        assert "outside its steps: library v1: 1 added" in "\n".join(picture(table.app))


async def test_what_became_of_an_imported_operation_is_found_by_its_words(tmp_path: Path) -> None:
    texts = ("Put it back.", "Abacus: use one.", "Zebra: left open.")
    rows = (f"[a-{n}] helpful=1 harmful=0 :: {text}\n" for n, text in enumerate(texts, 1))
    (tmp_path / "lab.md").write_text("".join(rows), "utf-8")
    workspace = Workspace(tmp_path / "practice")
    await asyncio.to_thread(studio, "library", "import", "lab.md", workspace=workspace.path)
    typed = "a\nr too vague\nq\n"
    words = ("review", "import-lab")
    await asyncio.to_thread(studio, *words, workspace=workspace.path, typed=typed)
    async with a_table(workspace.run("import-lab")) as table:
        app = table.app
        for word, page, said in (
            ("back operation", "progress", "op0.h1 add E1, approved by root: Put it back."),
            ("back experience", "library", ">   E1  Put it back."),
            ("zebra", "review", "Zebra: left open."),
            ("lab@1", "library", "lab v1"),
        ):
            app.open_page("progress")
            (hit,) = [hit async for hit in LearnedHits(app.screen).search(word)]
            hit.command()
            for _ in range(400):
                await table.pilot.pause(0.01)
                if said in (shown := "\n".join(picture(app))):
                    break
            assert said in shown and app.page_name == page, shown


async def test_a_hit_of_another_library_tells_the_command_that_shows_it(tmp_path: Path) -> None:
    (tmp_path / "lab.md").write_text("[a-1] helpful=1 harmful=0 :: Put it back.\n", "utf-8")
    (tmp_path / "far.md").write_text("[a-1] helpful=1 harmful=0 :: Fetch ice.\n", "utf-8")
    workspace = Workspace(tmp_path / "practice")
    for words in (("library", "import", "lab.md"), ("library", "import", "far.md")):
        await asyncio.to_thread(studio, *words, workspace=workspace.path)
    async with a_table(workspace.run("import-lab")) as table:
        (hit,) = [hit async for hit in LearnedHits(table.app.screen).search("ice")]
        hit.command()
        await table.pilot.pause()
        assert table.told.endswith("Fetch ice.; see studio review import-far")


async def test_what_a_step_only_kept_is_no_hit(tmp_path: Path) -> None:
    workspace = finished_workspace(tmp_path)
    async with a_table(workspace.run("rehearsal")) as table:
        kept = await table.propose("keep", "E1")
        assert find_rows(workspace, condition([kept]))[0]
        assert not [hit async for hit in LearnedHits(table.app.screen).search(kept)]
