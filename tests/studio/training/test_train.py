"""`studio train` on the bundled policy: a run that is cut ends in the same weights."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.core import events as ev
from engines.core.errors import ConfigError
from engines.record.run_dir import RunDir
from studio.config.loading import load_run
from tests.support.forked_studio import STUDIO, ForkedStudio
from tests.support.run_studio import Result, studio

QUICK = (
    "seed=5",  # with which there is contrast in every step of two epochs
    "policy.local.threads=1",
    "policy.max_tokens=64",
    "data.truncate=8",
    "practice.batch_size=2",
    "practice.group_size=4",
    "practice.epochs=1",
    "grpo.checkpoint_steps=2",
    "tensorboard=false",
    "evaluation.do_eval=false",
)
STEPS = 4
ROOT = Path(__file__).parents[3]


def train(workspace: Path, *words: str, command: str = "train") -> Result:
    return studio(command, "grpo-tiny", *QUICK, *words, workspace=workspace)


def weights(workspace: Path, step: int = STEPS) -> bytes:
    (folder,) = workspace.glob(f"runs/grpo-tiny/checkpoints/*/*/global_step_{step}")
    return (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "practice"
    done = train(folder)
    assert done.code == 0, done.stderr
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained_once, tmp_path / "practice")
    return tmp_path / "practice"


@pytest.fixture(scope="module")
def trained_longer(
    trained_once: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result]:
    """The run after it went on for a second epoch, and what that printed."""
    folder = tmp_path_factory.mktemp("longer") / "practice"
    shutil.copytree(trained_once, folder)
    return folder, train(folder, "practice.epochs=2")


@pytest.fixture(scope="module")
def forked_once(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `grpo-tiny-2` beside it keeps its first three steps."""
    folder = tmp_path_factory.mktemp("forked") / "practice"
    shutil.copytree(trained_once, folder)
    done = train(folder, "--restart-step", "3")
    assert done.code == 0, done.stderr
    return folder


@pytest.fixture
def forked(forked_once: Path, tmp_path: Path) -> Path:
    shutil.copytree(forked_once, tmp_path / "practice")
    return tmp_path / "practice"


def test_headless_trains_to_the_same_weights(trained_once: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "practice", command="headless")
    assert done.code == 0, done.stderr
    assert weights(tmp_path / "practice") == weights(trained_once)


def test_another_seed_gives_other_weights(trained_once: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "practice", "seed=2", "tensorboard=true").code == 0
    assert weights(tmp_path / "practice") != weights(trained_once)
    curves = "runs/grpo-tiny/checkpoints/*/*/monitor/tensorboard"
    assert list((tmp_path / "practice").glob(curves))
    assert not list(trained_once.glob(curves)), "they were not asked for"


def test_every_step_is_one_update_that_the_gate_let_through(trained_once: Path) -> None:
    state = RunDir(trained_once / "runs" / "grpo-tiny").state()
    assert list(state.training) == [1, 2, 3, 4]
    assert state.policy_version == STEPS
    assert state.library_version == 0
    assert state.engine_facts["threads"] == 1
    assert [saved.step for saved in state.checkpoints] == [2, 4]


def cut(workspace: Path, line: int, records: tuple[int, int] | None = None) -> None:
    """Leave the first lines of the journal, as a kill might; of a step's records as well."""
    run = workspace / "runs" / "grpo-tiny"
    kept = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)[:line]
    (run / "journal.jsonl").write_bytes(b"".join(kept))
    state = RunDir(run).state()
    known = {saved.folder for saved in state.checkpoints}
    for folder in run.glob("checkpoints/*/*/global_step_*"):
        if folder.relative_to(run).as_posix() not in known:
            shutil.rmtree(folder)
    for file in run.glob("records/step-*.jsonl"):
        step = int(file.stem.removeprefix("step-"))
        if step > state.step:
            file.unlink()
        elif records is not None and step == records[0]:
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(lines[: records[1]]))


def line_of(workspace: Path, kind: type[object], step: int, number: int = 0) -> int:
    """How many lines the journal has up to the event, itself included."""
    entries = RunDir(workspace / "runs" / "grpo-tiny").entries()
    found = [
        at
        for at, entry in enumerate(entries, start=1)
        if isinstance(entry.event, kind) and getattr(entry.event, "step", None) == step
    ]
    return found[number]


@pytest.mark.parametrize(
    ("where", "kind", "step", "number", "records"),
    [
        ("before the first rollout of a step", ev.StepStarted, 3, 0, 0),
        ("with some replies recorded and none journalled", ev.StepStarted, 3, 0, 3),
        ("among the rollouts", ev.RolloutFinished, 3, 3, 5),
        ("among the verdicts", ev.RolloutJudged, 3, 5, None),
        ("with an update that nobody has decided", ev.LessonProposed, 3, 0, None),
        ("with an update that is decided", ev.OperationDecided, 3, 0, None),
        ("after the commit", ev.LessonCommitted, 3, 0, None),
        ("between two steps", ev.StepFinished, 3, 0, None),
        ("before the first checkpoint", ev.LessonCommitted, 1, 0, None),
    ],
)
def test_a_run_that_was_cut_ends_in_the_same_weights_bit_for_bit(
    trained: Path,
    trained_once: Path,
    where: str,
    kind: type[object],
    step: int,
    number: int,
    records: int | None,
) -> None:
    cut(trained, line_of(trained, kind, step, number), None if records is None else (step, records))
    done = train(trained)
    assert done.code == 0, (where, done.stderr)
    assert "other figures" not in done.stderr
    assert weights(trained) == weights(trained_once)
    before = RunDir(trained_once / "runs" / "grpo-tiny").state()
    assert RunDir(trained / "runs" / "grpo-tiny").state().training == before.training


def test_a_damaged_checkpoint_is_told_and_the_one_before_serves(
    trained: Path, trained_once: Path
) -> None:
    cut(trained, line_of(trained, ev.CheckpointSaved, 4) - 1)
    (folder,) = trained.glob("runs/grpo-tiny/checkpoints/*/*/global_step_2")
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    done = train(trained)
    assert "global_step_2" in done.stderr
    assert "the weights the run began with" in done.stderr
    assert "Going back to what was saved before" not in done.stderr  # nothing was
    assert weights(trained) == weights(trained_once)


@pytest.mark.nightly
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path, trained_once: Path) -> None:
    """A real one, as soon as its second step is committed."""
    words = [*STUDIO, "--workspace", str(tmp_path / "practice"), "train", "grpo-tiny", *QUICK]
    process = ForkedStudio(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 2/4"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    done = train(tmp_path / "practice")
    assert done.code == 0, done.stderr
    assert weights(tmp_path / "practice") == weights(trained_once)


def test_bounds_reject_an_update_and_training_goes_on(tmp_path: Path) -> None:
    done = train(tmp_path / "practice", "grpo.reject_grad_norm_above=1e-9", "--json")
    assert done.code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    decided = [event["decision"] for event in events if event.get("kind") == "OperationDecided"]
    assert decided
    assert {decision["reviewer"] for decision in decided} == {"bounds"}
    assert all("grad_norm" in decision["reason"] for decision in decided)
    assert RunDir(tmp_path / "practice" / "runs" / "grpo-tiny").state().policy_version == 0


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """A hang ends the test instead of holding all of them up."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"hung for {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("budget", "code", "steps"),
    [
        ("budget.tokens=2500", 5, 1),  # the second step does not fit
        ("budget.tokens=4200", 0, 2),  # all fit in the end, of a second batch only some at a time
        ("budget.calls=40", 5, 1),
    ],
)
def test_a_batch_that_a_budget_does_not_cover_goes_on_with_those_that_it_does(
    tmp_path: Path, budget: str, code: int, steps: int
) -> None:
    with within(60):
        words = ("practice.batch_size=4", "practice.group_size=8", budget)
        done = train(tmp_path / "practice", *words)
    assert done.code == code, done.stderr
    state = RunDir(tmp_path / "practice" / "runs" / "grpo-tiny").state()
    assert (state.steps_finished, state.lost) == (steps, {})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    raise RuntimeError('no luck')\n", "no luck"),
        ("    return [0.5] * (len(completions) + 1)\n", "2"),
    ],
)
def test_a_reward_function_that_fails_is_a_recorded_failure(
    tmp_path: Path, body: str, says: str
) -> None:
    (tmp_path / "reward.py").write_text(f"def reward(completions, **kwargs):\n{body}")
    done = train(
        tmp_path / "practice", "verifier={file: reward.py, function: reward}", "data.truncate=4"
    )
    assert done.code == 4, done.stderr
    assert says in done.stderr
    state = RunDir(tmp_path / "practice" / "runs" / "grpo-tiny").state()
    assert state.lost["verdict"] > 8  # where nothing works, the run ends early
    assert state.policy_version == 0


def test_a_finished_run_goes_on_with_more_epochs(trained_longer: tuple[Path, Result]) -> None:
    folder, done = trained_longer
    assert done.code == 0, done.stderr
    assert RunDir(folder / "runs" / "grpo-tiny").state().policy_version == 2 * STEPS


def test_a_cut_run_that_goes_on_with_more_epochs_computes_again_as_it_was_planned(
    trained: Path, trained_longer: tuple[Path, Result]
) -> None:
    whole, ended = trained_longer
    cut(trained, line_of(trained, ev.LessonCommitted, 4))
    killed = train(trained, "practice.epochs=2")
    assert (killed.code, ended.code) == (0, 0), killed.stderr + ended.stderr
    assert "computing steps 3 to 4 again" in killed.stderr
    assert "other figures" not in killed.stderr
    assert weights(trained, 2 * STEPS) == weights(whole, 2 * STEPS)


def test_a_fork_begins_with_the_weights_of_its_step(forked_once: Path) -> None:
    (kept,) = forked_once.glob("runs/grpo-tiny-2/checkpoints/*/*/global_step_3")
    (own,) = forked_once.glob("runs/grpo-tiny-2/checkpoints/*/*/global_step_4")
    adapter = "adapter_model.safetensors"
    assert (own / adapter).read_bytes() == weights(forked_once)
    assert (kept / adapter).read_bytes() != weights(forked_once)
    assert RunDir(forked_once / "runs" / "grpo-tiny-2").state().policy_version == STEPS


def test_the_agent_of_a_trained_run_is_mounted_with_its_weights(trained: Path) -> None:
    agent = trained / "runs" / "grpo-tiny" / "agent.yaml"
    assert "adapter: run:grpo-tiny" in agent.read_text()
    (trained / "configs" / "agents").mkdir(parents=True)
    shutil.copy(agent, trained / "configs" / "agents" / "mine.yaml")
    (trained.parent / "mine.yaml").write_text(
        "defaults: [/agents/mine@agent, _self_]\ndata: {practice: skills}\nverifier: text\n"
    )
    words = ("--question", "What is 17 + 25?", "policy.local.threads=1")
    done = studio("try", "mine.yaml", *words, workspace=trained)
    assert done.code == 0, done.stderr
    whole = load_run(str(trained.parent / "mine.yaml"), [], trained).config
    assert str(whole.policy.adapter).endswith("global_step_4")
    preset = load_run("grpo-tiny", [], trained, agent=agent).config  # it names the same model
    assert preset.policy.adapter == whole.policy.adapter


def test_an_adapter_is_named_by_run_and_step(trained: Path) -> None:
    words = ["policy.adapter=run:grpo-tiny@2"]
    assert str(load_run("grpo-tiny", words, trained).config.policy.adapter).endswith("step_2")
    with pytest.raises(ConfigError, match=r"no checkpoint of step 3.*steps 2, 4"):
        load_run("grpo-tiny", ["policy.adapter=run:grpo-tiny@3"], trained)


def a_model(folder: Path, offset: float = 0.0) -> Path:
    """The bundled model in a folder of its own, one of its weights moved by `offset`."""
    from safetensors.torch import load_file, save_file

    if not folder.exists():
        shutil.copytree(ROOT / "sample_data" / "tiny", folder)
    weights = load_file(folder / "model.safetensors")
    name = min(weights)
    weights[name].reshape(-1)[0] += offset
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_fork_whose_parent_is_gone_goes_on_from_its_own_checkpoint(forked: Path) -> None:
    shutil.rmtree(forked / "runs" / "grpo-tiny")
    fork = forked / "runs" / "grpo-tiny-2"
    for file in next(fork.glob("checkpoints/*/*/global_step_4")).iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    done = train(forked, "practice.epochs=2")
    assert done.code == 0, done.stderr
    assert "computing step 4 again from what was recorded, on the checkpoint of step 3" in (
        done.stderr
    )
    assert RunDir(fork).state().steps_finished == 2 * STEPS


def test_a_fork_with_neither_its_parent_nor_a_checkpoint_is_refused(forked: Path) -> None:
    shutil.rmtree(forked / "runs" / "grpo-tiny")
    fork = forked / "runs" / "grpo-tiny-2"
    for file in fork.glob("checkpoints/*/*/*/adapter_model.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    done = train(forked, "practice.epochs=2")
    assert done.code == 2, done.stderr
    assert "run grpo-tiny, whose 3 steps it adopted, is gone, and no checkpoint" in done.stderr
    shutil.rmtree(fork / "checkpoints")
    before = (fork / "journal.jsonl").read_bytes()
    done = train(forked, "practice.epochs=2")
    assert done.code == 2, done.stderr
    assert (fork / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("harm", "code", "says"),
    [
        ("newest", 0, "the checkpoint of step 4 is gone. Nothing mends it, and the run goes on"),
        ("older", 0, "the checkpoint of step 2 is gone"),
        ("damaged", 1, "Nothing mends it, and the run goes on without: an earlier one serves"),
    ],
)
def test_doctor_looks_at_the_checkpoints(trained: Path, harm: str, code: int, says: str) -> None:
    assert "checkpoint" not in studio("doctor", workspace=trained).stdout
    older, newest = (
        next(trained.glob(f"runs/grpo-tiny/checkpoints/*/*/global_step_{step}")) for step in (2, 4)
    )
    if harm == "damaged":
        (newest / "adapter_model.safetensors").write_bytes(b"")
    else:
        shutil.rmtree(older if harm == "older" else newest)
    told = studio("doctor", "--repair", workspace=trained)
    shown = " ".join(told.stdout.split())
    assert says in shown
    assert "global_step" in shown
    assert (told.code != 0) is bool(code), told.stdout


def test_doctor_misses_no_checkpoint_that_training_removed(
    trained_longer: tuple[Path, Result],
) -> None:
    folder, _ = trained_longer
    left = folder.glob("runs/grpo-tiny/checkpoints/*/*/global_step_*")
    assert sorted(path.name[-1] for path in left) == ["4", "6", "8"]  # of 2, 4, 6 and 8
    told = studio("doctor", workspace=folder)
    assert told.code == 0, told.stdout
    assert "checkpoint" not in told.stdout


@pytest.fixture(scope="module")
def with_other_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A finished run whose model was changed afterwards, and the words that began it."""
    place = tmp_path_factory.mktemp("other-model")
    folder = a_model(place / "base")
    words = (f"policy.model=hf:{folder}", "data.truncate=8")
    assert train(place / "practice", *words).code == 0
    a_model(folder, 0.5)
    return place / "practice", words


@pytest.mark.parametrize("restart", [(), ("--restart-step", "2")])
def test_a_model_that_was_changed_meanwhile_is_refused(
    with_other_model: tuple[Path, tuple[str, ...]], restart: tuple[str, ...]
) -> None:
    workspace, words = with_other_model
    runs = workspace / "runs"
    before = (runs / "grpo-tiny" / "journal.jsonl").read_bytes()
    done = train(workspace, *words, "practice.epochs=2", *restart)
    assert done.code == 2, done.stderr
    assert "is not the one it began with" in done.stderr
    assert (runs / "grpo-tiny" / "journal.jsonl").read_bytes() == before
    assert [run.name for run in runs.iterdir() if (run / "journal.jsonl").exists()] == ["grpo-tiny"]


def test_an_adapter_that_was_changed_meanwhile_is_refused(trained: Path) -> None:
    (made,) = trained.glob("runs/grpo-tiny/checkpoints/*/*/global_step_2")
    shutil.copytree(made, trained.parent / "adapter")
    words = ("data.truncate=4", "policy.adapter=adapter", "--name", "further")
    assert train(trained, *words).code == 0
    shutil.rmtree(trained.parent / "adapter")
    (other,) = trained.glob("runs/grpo-tiny/checkpoints/*/*/global_step_4")
    shutil.copytree(other, trained.parent / "adapter")
    done = train(trained, *words, "practice.epochs=2")
    assert done.code == 2, done.stderr
    assert "the adapter of" in done.stderr


def test_steps_are_not_computed_again_under_other_settings(trained: Path) -> None:
    other = "grpo.learning_rate=0.004"
    fork = train(trained, other, "--restart-step", "3")
    assert fork.code == 2, fork.stderr
    assert "steps 3 to 3 would be computed again under other settings (grpo.learning" in fork.stderr
    assert "newest checkpoint is of step 2. Go on from there (--restart-step 2)" in (fork.stderr)
    cut(trained, line_of(trained, ev.LessonCommitted, 3))
    resumed = train(trained, other, "--accept-changes")
    assert resumed.code == 2, resumed.stderr
    assert "finish the run as it is up to its next checkpoint first" in resumed.stderr
    # What decides nothing of an update may change.
    free = train(trained, "grpo.reject_kl_above=99", "--accept-changes")
    assert free.code == 0, free.stderr
    assert train(trained, other, "--restart-step", "2").code == 0


def test_accepted_settings_begin_after_a_checkpoint(trained: Path) -> None:
    cut(trained, line_of(trained, ev.CheckpointSaved, 2))
    done = train(trained, "grpo.learning_rate=0.004", "--accept-changes")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("grpo.learning_rate=1e20",),
        ("grpo.clip_low=0",),
        ("grpo.clip_high=0",),
        ("--stage", "sft", "sft.learning_rate=2"),
    ],
)
def test_settings_that_no_engine_takes_leave_no_run_behind(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = train(tmp_path / "practice", *words)
    assert done.code == 2, done.stderr
    named, _ = words[-1].split("=")
    assert named in done.stderr
    assert "unusual" not in done.stderr  # refused before anything is said or loaded
    assert "trainable" not in done.stderr
    assert not list(tmp_path.glob("practice/runs/*"))


def test_an_odd_learning_rate_is_warned_of(tmp_path: Path) -> None:
    hasty = train(tmp_path / "practice", "grpo.learning_rate=0.05", "data.truncate=2")
    assert "warning: grpo.learning_rate=0.05 is unusual" in hasty.stderr
