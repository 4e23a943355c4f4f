"""Of a large library each problem gets the pinned experiences and those that fit it best."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engines.core.errors import ConfigError
from engines.core.library import Experience, Library
from engines.pipeline import guidance
from engines.pipeline.guidance import PromptWriter
from engines.record.journal import read_journal
from engines.record.run_dir import Workspace
from engines.training_free.reading import library_before_text, library_seen
from studio.config.loading import load_run
from studio.config.run_yaml import fingerprint
from studio.run import held_out
from studio.run import library as publish
from tests.support.builders import a_group
from tests.support.harness import practised

SMALL = ("data.truncate=4", "practice.batch_size=4", "practice.group_size=2", "practice.epochs=2")
TOPICS = ("fractions", "angles", "dates", "money", "percent", "面积", "primes", "speed")
LIBRARY = Library(
    "l",
    1,
    tuple(Experience(f"E{n}", f"Rule {n} on {topic}: check it.") for n, topic in enumerate(TOPICS)),
)


def test_a_small_library_is_shown_whole() -> None:
    assert PromptWriter(above=8).write(LIBRARY, "money?") == (LIBRARY.guidance(), None)
    assert PromptWriter(above=None).choose(LIBRARY, "money?") is None
    assert PromptWriter().write(None, "money?") == ("", None)


def test_of_a_large_one_what_fits_the_question_is_shown_in_its_order() -> None:
    writer = PromptWriter(above=5, most=2)
    text, shown = writer.write(LIBRARY, "How much money is twelve percent of it?")
    assert shown == ("E3", "E4")
    assert "E3" in text and "E4" in text and "E5" not in text
    assert writer.choose(LIBRARY, "求 面积") == ("E0", "E5")  # the oldest, where nothing fits
    assert writer.choose(LIBRARY, "") == ("E0", "E1")


@pytest.mark.filterwarnings("error")
def test_experiences_without_words_are_chosen_from_too() -> None:
    library = replace(
        LIBRARY, experiences=tuple(replace(e, text="!?") for e in LIBRARY.experiences)
    )
    assert PromptWriter(above=5, most=2).choose(library, "angles") == ("E0", "E1")


def test_what_is_pinned_is_always_shown_and_does_not_count() -> None:
    pinned = tuple(replace(e, pinned=e.id == "E7") for e in LIBRARY.experiences)
    library = replace(LIBRARY, experiences=pinned)
    assert PromptWriter(above=5, most=1).choose(library, "angles") == ("E1", "E7")


def test_a_choice_follows_the_library_that_it_is_made_from() -> None:
    writer = PromptWriter(above=5, most=1)
    assert writer.choose(LIBRARY, "primes") == ("E6",)
    other = replace(LIBRARY, experiences=LIBRARY.experiences[:6])
    assert writer.choose(other, "primes") == ("E0",)
    assert PromptWriter(above=5, most=1).describe(LIBRARY) != LIBRARY.guidance()


def test_what_chance_leaves_out_was_chosen_before() -> None:
    writer = PromptWriter(above=5, most=2)
    question = "How much money is twelve percent of it?"
    assert writer.write(LIBRARY, question, lambda name: name != "E3")[1] == ("E4",)
    assert writer.write(LIBRARY, question, lambda name: True)[1] == ("E3", "E4")
    whole = PromptWriter().write(LIBRARY, question, lambda name: True)
    assert whole == (LIBRARY.guidance(), None)
    text, shown = PromptWriter().write(LIBRARY, question, lambda name: name > "E5")
    assert shown == ("E6", "E7") and text == LIBRARY.guidance(shown=shown)
    assert PromptWriter().write(LIBRARY, question, lambda name: False) == ("", ())


async def test_a_run_records_what_was_shown_and_evaluates_likewise(tmp_path: Path) -> None:
    run = (
        *SMALL,
        "library.select_above=1",
        *("evaluation.do_eval=true", "evaluation.limit=2"),
    )
    done = await practised(tmp_path, *run)
    assert len(done.library.experiences) > 1
    events = [entry.event for entry in read_journal(done.run.journal)]
    shown = {e.step: e.shown for e in events if type(e).__name__ == "RolloutFinished"}
    assert shown[1] is None  # the library was empty
    assert all(len(ids) == 1 for step, ids in shown.items() if step == 2)
    library = Workspace(tmp_path).library(done.run.run).head()
    asked = [path.read_text() for path in done.run.records.glob("eval-0002*")]
    for line in (line for text in asked for line in text.splitlines()):
        assert sum(f"[{e.id}]" in line for e in library.experiences) == 1


async def test_what_grows_with_the_library_is_not_done_where_requests_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 experiences left `studio ctl status` waiting for 623 ms."""
    here, done_by = threading.current_thread(), list[tuple[str, bool]]()

    def watch(place: ModuleType, name: str) -> None:
        work = getattr(place, name)

        def watched(*args: Any, **more: Any) -> Any:
            done_by.append((name, threading.current_thread() is here))
            return work(*args, **more)

        monkeypatch.setattr(place, name, watched)

    watch(guidance, "_index_words")
    watch(publish, "format_agent_body")
    watch(held_out, "ScoreBook")
    settings = ("library.select_above=1", "evaluation.limit=2")
    await practised(tmp_path, *SMALL, *settings, "evaluation.do_eval=true")
    names = {name for name, _ in done_by}
    assert names == {"_index_words", "format_agent_body", "ScoreBook"}
    assert not [name for name, here in done_by if here]


def test_the_reflector_is_shown_what_the_tries_were_shown() -> None:
    whole = a_group([1, 0])
    some = replace(whole, rollouts=tuple(replace(r, shown=("E1", "E3")) for r in whole.rollouts))
    assert library_seen(LIBRARY, (whole, some)) is LIBRARY
    seen = library_seen(LIBRARY, (some,), ("E6", None))
    assert [e.id for e in seen.experiences] == ["E1", "E3", "E6"]
    assert seen.version == LIBRARY.version


def test_a_small_library_does_not_bring_numpy_along() -> None:
    code = (
        "import sys; from engines.pipeline.guidance import PromptWriter; "
        "from tests.engines.pipeline.test_guidance import LIBRARY; "
        "PromptWriter().write(LIBRARY, 'x'); assert 'numpy' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_the_reflector_is_told_that_chance_left_some_out() -> None:
    group = a_group([1, 0])
    parts = zip(group.rollouts, (("E1", "E3"), None), strict=True)
    drawn = replace(group, rollouts=tuple(replace(r, shown=shown) for r, shown in parts))
    assert "Not all of it stood in front of every attempt" in library_before_text(drawn, LIBRARY)


def test_dropout_is_part_of_what_a_resume_compares_and_not_for_training(tmp_path: Path) -> None:
    found = load_run("rehearsal", ["practice.dropout=0.1"], tmp_path)
    assert fingerprint(found.config)["practice.dropout"] == 0.1
    with pytest.raises(ConfigError, match="weights are updated"):
        load_run("grpo-tiny", ["practice.dropout=0.1"], tmp_path)
