"""A run that ends because nothing works any more: exit code, words, and the way back."""

from __future__ import annotations

from pathlib import Path

from studio import exit_codes
from tests.support.fake_endpoint import an_endpoint, refuses, says
from tests.support.run_studio import studio

RUN = (
    *("practice.epochs=1", "practice.group_size=4", "practice.concurrency=2"),
    "practice.read_without_contrast=0",  # the model that answers says nothing to learn from
)
MODEL = ("policy.model=openai:m", "policy.max_retries=0")


def test_an_endpoint_that_refuses_everything_ends_the_run_with_4_and_its_cause(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "practice"
    data = ("data.truncate=40", "practice.batch_size=40", "evaluation.do_eval=false")
    with an_endpoint(says("OK"), refuses(403, "no such plan")) as fake:
        run = ("rehearsal", *RUN, *MODEL, *data, f"policy.base_url={fake.base_url}")
        found = studio("headless", *run, workspace=workspace)
        asked = len(fake.requests)
    assert found.code == exit_codes.WITH_LOSSES
    assert "ended early: the last " in found.stderr and "no such plan" in found.stderr
    assert found.stderr.count("a rollout failed") == 3  # the others are only counted
    assert (
        "next: studio --workspace" in found.stderr and "headless --resume rehearsal" in found.stderr
    )
    assert asked < 80  # of 160
    shown = studio("runs", "list", workspace=workspace).stdout
    assert "failed (resume: studio headless --resume rehearsal)" in shown

    with an_endpoint(says("OK"), says("#### 1")) as fake:
        resume = ("--resume", "rehearsal", f"policy.base_url={fake.base_url}")
        found = studio("headless", *resume, workspace=workspace)
    assert found.code == exit_codes.DONE
    assert "lost     nothing" in found.stdout


def test_a_held_out_evaluation_whose_endpoint_is_gone_ends_with_4(tmp_path: Path) -> None:
    with an_endpoint(says("OK"), refuses(403, "no such plan")) as fake:
        held_out = ("evaluation.data=[arithmetic-heldout]", "evaluation.limit=200")
        run = ("rehearsal", *RUN, *MODEL, *held_out, f"policy.base_url={fake.base_url}")
        found = studio("eval", *run, workspace=tmp_path / "practice")
        asked = len(fake.requests)
    assert (found.code, found.stdout) == (exit_codes.WITH_LOSSES, "")
    assert "held-out rollouts failed" in found.stderr and "no such plan" in found.stderr
    assert asked < 100  # of 200
