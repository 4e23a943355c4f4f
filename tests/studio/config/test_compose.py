"""Run files are composed as Hydra composes them, and Hydra is loaded for overrides alone."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from engines.core.errors import ConfigError
from engines.record.yaml_text import unescape_interpolation
from studio.config.compose import compose_run, resolve
from studio.config.tree import REFERENCE, map_tree
from tests.support.youtu_checkout import write

FILE = """\
policy: {model: "rehearsal:v1"}
agent: {kind: single_turn, instructions: "a ${oc.env:HOME} and \\\\${literal}"}
data: {practice: arithmetic, fields: {question: q}, on: 2026-01-02, off: yes}
practice: &base {epochs: 2, batch_size: 4, rate: 1e-5, 3: three}
other: {<<: *base, batch_size: 5}
evaluation: {data: [arithmetic-heldout]}
"""
OVERRIDES: tuple[tuple[str, ...], ...] = (
    (),
    ("practice.epochs=1", "exp_id=x", "new.key.here=[1, two]"),
    ("policy={name: other, temperature: 1}", "policy.max_tokens=5"),
    ("data.fields={answer: a}", "data.practice=null", "practice.lr=1e-5"),
    ("evaluation.data=[]", "agent.instructions='its ${data.practice}'"),
    ("policy.model='a \\${x} \\\\\\${y}'",),
    ("practice.epochs=",),
    ("~practice.epochs",),
    ("practice.epochs.deeper=1",),
)
PARTS = {
    "agents/a": "name: a\nmodel: {model: m, seed: 1}\n",
    "agents/b": "# @package agent\nname: b\n",
    "agents/deep/c": "# @package _global_\n"
    "defaults: [/agents/a@agent, _self_]\nagent: {cite: false}\n",
    "agents/deep/d": "defaults: [c, _self_]\nname: d\n",
    "eval/e": "defaults:\n  - /agents: a\n  - _self_\nk: 2\n",
    "base": "seed: 3\nagent: {name: base}\n",
}
DEFAULTS = (
    "[base, _self_]",
    "[_self_, base]",
    "[/agents/a@agent, _self_]",
    "[agents: a, _self_]",
    "[agents@agent: a, eval: e, _self_]",
    "[agents: [a, b], _self_]",
    "[agents/deep: c, _self_]",
    "[agents/deep: d, _self_]",
    "[/eval/e@evaluation, _self_]",
    "[agents: null, _self_]",
    "[agents@_global_: a, _self_]",
    "[/agents@x.y: a, /agents@x.z: b, _self_]",
)


def by_hydra(file: Path, overrides: list[str]) -> Any:
    with initialize_config_dir(str(file.parent), version_base="1.3"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = compose(file.stem, overrides)
    return map_tree(OmegaConf.to_container(config, resolve=False))


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_a_file_alone_is_composed_as_hydra_composes_it(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    file = write(tmp_path / "run.yaml", FILE)
    forced = [text if text.startswith("~") else f"++{text}" for text in overrides]
    assert compose_run(file, overrides, ()).tree == by_hydra(file, forced)


@pytest.mark.parametrize("defaults", DEFAULTS)
def test_what_a_file_mounts_is_composed_as_hydra_composes_it(tmp_path: Path, defaults: str) -> None:
    for name, text in PARTS.items():
        write(tmp_path / f"{name}.yaml", text)
    file = write(tmp_path / "run.yaml", f"defaults: {defaults}\nagent: {{instructions: own}}\n")
    assert compose_run(file, (), ()).tree == by_hydra(file, [])


def test_a_plain_text_keeps_its_model_where_another_key_is_set(tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", "policy: rehearsal:v1\nverifier: [math, text]\n")
    tree = compose_run(file, ["policy.temperature=0.3", "policy.seed=1"], ()).tree
    assert tree["policy"] == {"model": "rehearsal:v1", "temperature": 0.3, "seed": 1}
    tree = compose_run(file, ["verifier.k=2", "verifier=text"], ()).tree
    assert tree["verifier"] == {"name": "text", "k": 2}


@pytest.mark.parametrize(
    ("defaults", "overrides", "cause"),
    [
        ("[agents/a, agents/loop]", [], "mounts itself"),
        ("text", [], "no list of names"),
        ("[_self_]", ["practice.epochs=choice(1,2)"], "several runs"),
        ("[_self_]", ["practice.epochs=[1"], "does not fit"),
        ("[_self_]", ["~nobody"], "no nobody to take away"),
    ],
)
def test_what_does_not_compose_is_refused(
    tmp_path: Path, defaults: str, overrides: list[str], cause: str
) -> None:
    write(tmp_path / "agents/a.yaml", "name: a\n")
    write(tmp_path / "agents/loop.yaml", "defaults: [loop]\n")
    file = write(tmp_path / "run.yaml", f"defaults: {defaults}\n")
    with pytest.raises(ConfigError, match=cause):
        compose_run(file, overrides, ())


PROGRAM = """
import sys
from pathlib import Path
from studio.config.compose import compose_run
compose_run(Path(sys.argv[1]), sys.argv[2:], [])
print("hydra" in sys.modules)
"""


@pytest.mark.parametrize("overrides", [(), ("seed=4",)])
def test_a_file_without_overrides_does_not_wait_for_hydra(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    write(tmp_path / "base.yaml", FILE)
    file = write(tmp_path / "own.yaml", "defaults: [base, _self_]\n")
    command = [sys.executable, "-c", PROGRAM, str(file), *overrides]
    assert subprocess.check_output(command, text=True).strip() == str(bool(overrides))


def test_what_is_escaped_reads_as_omegaconf_reads_it() -> None:
    chance = random.Random(3)
    parts = ["\\", "\\", "$", "{", "${", "}", "a", "\\${", " ", ":", "'"]
    texts = {"".join(chance.choices(parts, k=chance.randint(1, 9))) for _ in range(4_000)}
    escaped = [text for text in texts if "${" in text and not REFERENCE.search(text)]
    assert len(escaped) > 200
    for text in escaped:
        assert unescape_interpolation(text) == OmegaConf.create({"a": text})["a"], text


def test_omegaconf_does_not_see_a_long_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of 10,000 experiences cost two milliseconds."""
    rows = "".join(f"  - {{id: E{n}, text: Text {n}.}}\n" for n in range(250))
    file = write(tmp_path / "run.yaml", f"exp_id: ${{seed}}\nseed: 7\nexperiences:\n{rows}")
    create, sizes = OmegaConf.create, list[int]()

    def create_measured(tree: object) -> object:
        sizes.append(len(repr(tree)))
        return create(tree)

    monkeypatch.setattr(OmegaConf, "create", create_measured)
    tree = resolve(compose_run(file, [], ()), {})
    assert tree["exp_id"] == 7 and len(tree["experiences"]) == 250
    assert max(sizes) < 1_000
