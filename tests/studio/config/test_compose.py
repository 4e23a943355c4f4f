"""A run file that names no other is composed without Hydra, and as Hydra would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from studio.config import compose
from studio.config.compose import compose_run

FILE = """\
policy: rehearsal:v1  # a plain text, of which an override makes a mapping
agent: {kind: single_turn, instructions: "a ${oc.env:HOME} and \\\\${literal}"}
data: {practice: arithmetic, fields: {question: q}}
practice: &base {epochs: 2, batch_size: 4}
verifier: [math, {name: text, weight: 2}]
evaluation: {data: [arithmetic-heldout]}
"""
OVERRIDES: tuple[tuple[str, ...], ...] = (
    (),
    ("practice.epochs=1", "exp_id=x", "new.key.here=[1, two]"),
    ("policy.temperature=0.3", "policy.seed=1"),
    ("policy={name: other, temperature: 1}", "policy.max_tokens=5"),
    ("policy='a \\${x} \\\\\\${y}'", "policy.max_tokens=5"),
    ("verifier=text", "verifier.mode=contains"),
    ("data.fields={answer: a}", "data.practice=null", "practice.lr=1e-5"),
    ("evaluation.data=[]", "agent.instructions='it''s ${data.practice}'"),
    ("practice.epochs=choice(1,2)",),
    ("practice.epochs=",),
    ("~practice.epochs",),
    ("practice.epochs.deeper=1",),
    ("verifier.0=x",),
    ("practice.epochs=[1",),
)


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_a_file_alone_is_composed_as_hydra_composes_it(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text(FILE, "utf-8")

    def outcome() -> object:
        try:
            composed = compose_run(tmp_path / "run.yaml", overrides, ())
        except Exception as error:
            return type(error), str(error)
        return composed.tree, composed.places, composed.warnings

    quick = outcome()
    monkeypatch.setattr(compose, "_compose_alone", lambda path, overrides: None)
    assert quick == outcome()


def test_most_files_take_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text(FILE, "utf-8")
    monkeypatch.setattr(compose, "_compose_hydra", pytest.fail)
    compose_run(tmp_path / "run.yaml", ("practice.epochs=1", "policy.seed=2"), ())


PROGRAM = """
import sys
from pathlib import Path
from studio.config.compose import compose_run
compose_run(Path(sys.argv[1]), sys.argv[2:], [])
print("hydra" in sys.modules)
"""


@pytest.mark.parametrize("overrides", [(), ("seed=4",)])
def test_a_file_that_stands_alone_does_not_wait_for_hydra(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(FILE)
    told = subprocess.check_output(
        [sys.executable, "-c", PROGRAM, str(file), *overrides], text=True
    )
    assert told.strip() == str(bool(overrides))
