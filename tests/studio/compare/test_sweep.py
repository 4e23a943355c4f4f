"""A grid of runs: its words, its spread, and that it goes on after any end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core.errors import ConfigError, ConflictError
from engines.pipeline.evaluation.statistics import Interval
from engines.pipeline.evaluation.verdict import Comparison
from engines.record.run_dir import Workspace
from engines.record.seal import seal_fits
from studio.compare import sweep
from studio.compare.sweep import Grid, parse_grid, remember_grid, sweep_facts
from studio.config.loading import load_run
from studio.facts.sweep import Gain, SweepFacts, decompose, f_tail
from studio.render.comparison_page import sweep_page
from studio.render.json import json_data
from studio.render.page import render_text
from tests.support.figures import missing_figures
from tests.support.run_studio import studio

SHARED = (
    *("practice.epochs=1", "data.truncate=4", "practice.batch_size=4", "evaluation.k=1"),
    *("evaluation.data=[arithmetic-heldout]", "evaluation.limit=8"),
)
GRID = ("seed=1,2", "practice.group_size=2,3")


def a_grid(*words: str, name: str = "mine") -> Grid:
    return Grid(name, "rehearsal", *parse_grid("rehearsal", words))


# -- words -----------------------------------------------------------------------------------


def test_values_are_parted_at_commas_outside_of_quotes_and_brackets(tmp_path: Path) -> None:
    words = ("seed=1,2", 'agent.instructions="Add, then stop.",Think', "policy.top_p=0.5")
    grid = a_grid(*words, "evaluation.data=[arithmetic-heldout],[planner-heldout]")
    assert grid.fixed == ("policy.top_p=0.5",) and len(grid.cells) == 8
    assert grid.keys["seed"] == ("1", "2")
    assert grid.keys["evaluation.data"] == ("[arithmetic-heldout]", "[planner-heldout]")
    loaded = load_run("rehearsal", grid.cells[0].overrides, tmp_path, {})
    assert loaded.config.agent.instructions == "Add, then stop."
    model = a_grid("policy.model=openai:gpt-4,rehearsal").cells[0]
    assert model.shown == {"policy.model": "openai:gpt-4"}
    assert (
        load_run("rehearsal", model.overrides, tmp_path, {}).config.policy.model == "openai:gpt-4"
    )


def test_the_name_of_a_cell_is_that_of_a_run_and_tells_its_settings() -> None:
    names = [cell.name for cell in a_grid(*GRID).cells]
    assert names[:2] == ["mine-seed_1.group_size_2", "mine-seed_1.group_size_3"]
    alike = a_grid("policy.temperature=0,1", "judge.temperature=0,1").cells
    assert alike[1].name == "mine-policy.temperature_0.judge.temperature_1"
    # What a name cannot tell, or only too long a one, has a hash of the settings behind it.
    spaced, plain = a_grid("agent.instructions=a b,a_b").cells
    assert re.fullmatch(r"mine-instructions_a_b\.[0-9a-f]{12}", spaced.name)
    assert plain.name == "mine-instructions_a_b"
    long, short = a_grid(f"agent.instructions={'x' * 99},y").cells
    assert short.name == "mine-instructions_y" and len(long.name) < 70
    grown = a_grid(f"agent.instructions=z,{'x' * 99},y").cells
    assert [cell.name for cell in grown[1:]] == [long.name, short.name]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("seed=1",), "no key has several values"),
        (("seed=1,,2",), "seed=1,,2: it cannot be read"),
        (("seed=range(1,600)", "practice.group_size=2,3"), "1,198 runs or more, and at most 1,000"),
        (("seed=range(1,100000000)",), "1,001 runs or more"),
        (("seed=range(0)",), "no key has several values"),
        (("seed=glob(*)",), "it cannot be read"),
        (("seed=1,2", "seed=3,4"), "seed=3,4: seed is there already"),
        (("seed=1,2", "seed=3"), "seed=3: seed is there already"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_grid("rehearsal", words)


def test_a_remembered_grid_may_grow_and_is_no_other(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    remember_grid(a_grid("seed=1,2", "practice.epochs=1"), workspace)
    file = tmp_path / "sweeps" / "mine.json"
    assert seal_fits(file.read_bytes()) and json.loads(file.read_bytes())["keys"] == {
        "seed": ["1", "2"]
    }
    remember_grid(a_grid("seed=3,2,1", "practice.epochs=1"), workspace)
    for words in (("seed=1,2", "practice.epochs=1"), ("seed=1,2,3", "practice.epochs=2")):
        with pytest.raises(ConflictError, match=r"another one of this name.*--name NAME"):
            remember_grid(a_grid(*words), workspace)


# -- spread ----------------------------------------------------------------------------------


def a_gain(size: float, error: float | None = 0.1) -> Gain:
    """On eleven questions."""
    comparison = Comparison(
        questions=11,
        difference=size,
        interval=Interval(-1, 1),
        better=0,
        worse=0,
        level=0,
        p=1.0,
        verdict="cannot tell",
    )
    return Gain(
        data="x",
        from_step=0,
        to_step=1,
        means=(0.0, size),
        n=(11, 11),
        error=error,
        comparison=comparison,
    )


def gains(rows: dict[tuple[str, str], float]) -> list[tuple[dict[str, str], Gain]]:
    return [({"size": a, "seed": b}, a_gain(gain)) for (a, b), gain in rows.items()]


def test_a_grid_without_interactions_is_split_between_its_keys() -> None:
    rows = {(a, b): 0.1 * s + 0.2 * g for g, a in enumerate("AB") for s, b in enumerate("xyz")}
    # Means by size 0.1 and 0.3, by seed 0.1, 0.2, 0.3; mean 0.2.
    # SS total = 2·(0.2² + 0.1² + 0)... each of the 6: -.2 -.1 0 0 .1 .2 → 0.10
    # SS size = 3·(0.1² + 0.1²) = 0.06; SS seed = 2·(0.1² + 0 + 0.1²) = 0.04; rest 0.
    found = decompose(gains(rows))
    assert found is not None and not found.by_noise and found.rest == pytest.approx(0, abs=1e-9)
    size, seed = found.keys
    assert (size.share, seed.share) == (pytest.approx(0.6), pytest.approx(0.4))
    # σ size = √(0.06/1 · 2/6), σ seed = √(0.04/2 · 3/6)
    assert (size.deviation, seed.deviation) == (pytest.approx(0.02**0.5), pytest.approx(0.1))
    assert size.means == {"A": pytest.approx(0.1), "B": pytest.approx(0.3)}
    assert (size.verdict, seed.verdict) == ("matters", "matters")


def test_what_is_no_larger_than_the_rest_cannot_be_told() -> None:
    # A: 0 2, B: 2 0. Both keys have equal means: all of it is their interaction.
    found = decompose(gains({("A", "x"): 0, ("A", "y"): 2, ("B", "x"): 2, ("B", "y"): 0}))
    assert found is not None and found.rest == 1
    assert {one.verdict for one in found.keys} == {"cannot tell"}
    assert [(one.share, one.deviation, one.p) for one in found.keys] == [(0, 0, 1)] * 2
    # 1 2 / 3 8: SS size = 4·... means 1.5, 5.5 → 16; seed 2, 5 → 9; total 29; rest 4, df 1.
    found = decompose(gains({("A", "x"): 1, ("A", "y"): 2, ("B", "x"): 3, ("B", "y"): 8}))
    assert found is not None and found.rest == pytest.approx(4 / 29)
    # F(1, 1) = 4: p = 1 - (2/π)·atan(√4) = 0.295
    assert found.keys[0].p == pytest.approx(0.295167, abs=1e-5)
    assert found.keys[0].verdict == "cannot tell"
    assert found.keys[0].deviation == pytest.approx(((16 - 4) / 2) ** 0.5)


def test_a_grid_of_one_key_is_compared_with_the_noise_of_measuring() -> None:
    rows = [({"seed": str(n)}, a_gain(g)) for n, g in enumerate((0.1, 0.2, 0.3))]
    found = decompose(rows)
    # MS = 0.02 / 2 = 0.01 = 0.1²: F(2, 10) = 1, p = (1 + 2/10)^-5 = 0.402
    assert found is not None and found.by_noise
    (seed,) = found.keys
    assert (seed.share, seed.deviation) == (pytest.approx(1), pytest.approx(0, abs=1e-6))
    assert seed.p == pytest.approx(1.2**-5) and seed.verdict == "cannot tell"
    sure = decompose([(settings, replace(gain, error=0.01)) for settings, gain in rows])
    assert sure is not None and sure.keys[0].verdict == "matters"
    assert decompose([({"seed": n}, a_gain(0.5)) for n in "123"]) is None
    assert f_tail(0, 2, 10) == 1


# -- runs ------------------------------------------------------------------------------------


def words(workspace: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "studio", "--workspace", str(workspace), "sweep"]
    return [*command, "rehearsal", *GRID, *SHARED, "--json", *more]


@contextmanager
def sweeping(workspace: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    asked = words(workspace, *more)
    pipe = subprocess.PIPE
    with subprocess.Popen(asked, stdout=pipe, stderr=pipe, text=True) as process:
        yield process


def wait_for(process: subprocess.Popen[str], said: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            return
    raise AssertionError(f"it never said {said}")


def kill_all(process: subprocess.Popen[str]) -> None:
    """The sweep and its runs, at once."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def single_runs(workspace: Path) -> SweepFacts:
    """The facts of the same grid whose cells were made each by itself."""
    grid = a_grid(*GRID, name="rehearsal")
    for cell in grid.cells:
        asked = ("headless", "rehearsal", "--name", cell.name, *SHARED, *cell.overrides)
        assert studio(*asked, workspace=workspace).code == 0
    return sweep_facts(grid, Workspace(workspace))


@pytest.mark.nightly
def test_a_sweep_that_was_killed_and_stopped_goes_on_and_equals_its_single_runs(
    tmp_path: Path,
) -> None:
    with sweeping(tmp_path / "swept") as process:
        wait_for(process, "run 2 of 4, rehearsal-seed_1.group_size_3: begins")
        kill_all(process)
    with sweeping(tmp_path / "swept") as process:
        wait_for(process, "run 1 of 4, rehearsal-seed_1.group_size_2: finished already")
        wait_for(process, "run 3 of 4, rehearsal-seed_2.group_size_2: begins")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and "the same command goes on" in stderr
    known = json.loads(stdout)["runs"]
    assert [one["status"] for one in known[:2]] == ["finished", "finished"]
    assert known[3]["status"] == "not begun"
    with sweeping(tmp_path / "swept", "--jobs", "2") as process:
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    table = json.loads(stdout)
    single = single_runs(tmp_path / "single")
    held_out = [json_data(run.held_out) for run in single.runs]
    assert [run["held_out"] for run in table["runs"]] == held_out
    assert missing_figures(render_text(sweep_page(single)), single) == []
    assert [run["settings"] for run in table["runs"]] == [
        {"seed": seed, "practice.group_size": size} for seed in "12" for size in "23"
    ]
    spread = table["spread"]["arithmetic-heldout"]
    names = {key["key"] for key in spread["keys"]}
    assert spread["unknown"] or names == {"seed", "practice.group_size"}
    # Once all is done nothing is begun, and each form has the same figures.
    again = studio("sweep", "rehearsal", *GRID, *SHARED, workspace=tmp_path / "swept")
    assert again.code == 0 and "begins" not in again.stderr
    assert again.stdout.count("arithmetic-heldout") >= 4 and "SEED  GROUP_SIZE" in again.stdout
    html = studio(
        "sweep", "rehearsal", *GRID, *SHARED, "--format", "html", workspace=tmp_path / "swept"
    )
    assert "What the gain depends on" in html.stdout or "gained the same" in html.stdout
    runs = json.loads(studio("runs", "list", "--json", workspace=tmp_path / "swept").stdout)
    assert len(runs) == 4


async def test_a_run_that_only_begins_is_ended_without_its_python_calling_that_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Python does while it imports its own modules: an interrupt ends it with 1.
    begins = "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(1)); "
    command = [sys.executable, "-c", f"{begins}print(flush=True); signal.pause()"]
    monkeypatch.setattr(sweep.detached, "studio_command", lambda *_: command)
    told: list[str] = []
    work = sweep.SweepRun(a_grid("seed=1,2"), Workspace(tmp_path), told.append)
    carrying = asyncio.ensure_future(work.carry_out())
    while not work._running:
        await asyncio.sleep(0)
    work._interrupt("SIGINT")
    assert await carrying == 130
    assert any("was ended by signal 15" in text for text in told), told


PRICED = (
    *("policy.price_in_usd_per_mtok=100", "policy.price_out_usd_per_mtok=100"),
    *("policy.max_tokens=400", "policy.concurrency=1"),
)


@pytest.mark.nightly
def test_a_budget_is_over_all_and_what_it_leaves_out_is_said(tmp_path: Path) -> None:
    asked = ("sweep", "rehearsal", "seed=1,2", *SHARED, *PRICED, "--json")
    done = studio(*asked, "--budget", "0.5", workspace=tmp_path / "swept")
    assert done.code == 5
    assert "seed_2: not begun, too little is left of the budget of $0.5" in done.stderr
    first, second = json.loads(done.stdout)["runs"]
    assert (first["status"], second["status"]) == ("budget", "not begun")
    assert 0.1 < first["cost_usd"] <= 0.5
    more = studio(*asked, "--budget", "9", workspace=tmp_path / "swept")  # the same goes on
    assert more.code == 0, more.stderr  # what the budget cut is tried again
    assert [one["status"] for one in json.loads(more.stdout)["runs"]] == ["finished"] * 2
    unpriced = studio(*asked[:3], *SHARED, "--budget", "1", "--name", "b", workspace=tmp_path)
    assert unpriced.code == 2 and "costs is unknown" in unpriced.stderr


def test_settings_that_are_wrong_in_any_cell_begin_nothing(tmp_path: Path) -> None:
    done = studio("sweep", "rehearsal", "practice.group_size=2,-1", *SHARED, workspace=tmp_path)
    assert done.code == 2 and "practice.group_size" in done.stderr
    assert not (tmp_path / "runs").exists() and not (tmp_path / "sweeps").exists()


def test_what_began_with_other_settings_is_none_of_the_grid(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    made = studio("init", "rehearsal", "--to", str(file), workspace=tmp_path)
    assert made.code == 0
    quick = ("practice.epochs=1", "data.truncate=2", "evaluation.do_eval=false")
    asked = ("sweep", str(file), "seed=1,2", *quick)
    assert studio(*asked, workspace=tmp_path).code == 0
    assert studio(*asked, workspace=tmp_path).code == 0
    text = file.read_text()
    assert "group_size: 5" in text
    file.write_text(text.replace("group_size: 5", "group_size: 3"))
    refused = studio("sweep", str(file), "seed=1,2,3", *quick, workspace=tmp_path)
    assert refused.code == 2 and "practice.group_size: 5 → 3" in refused.stderr
    assert "name this sweep anew: --name NAME" in refused.stderr
    twice = studio("sweep", "rehearsal", "seed=1,01", *quick, workspace=tmp_path)
    assert twice.code == 2 and "seed=01: this is the run of seed=1" in twice.stderr
