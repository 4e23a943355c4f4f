"""`studio train --stage reward`: a reward learned from verdicts, used as a verifier and marked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.verifiers.compose import LearnedVerifier
from studio.data.catalogue import bundled_folder
from tests.support.builders import a_problem, a_rollout
from tests.support.run_studio import studio

pytest.importorskip("peft", reason="needs the extra grpo")
torch = pytest.importorskip("torch")

from engines.core.errors import DataError  # noqa: E402
from engines.policies.hf_local.reward_head import (  # noqa: E402
    JudgedAnswer,
    features_of,
    fit_head,
    learn,
    load_head,
    pair_accuracy,
)
from engines.policies.hf_local.settings import LocalSettings  # noqa: E402
from engines.policies.open import load_local  # noqa: E402

SHORT = ("practice.epochs=1", "data.truncate=16", "evaluation.do_eval=false")
LEARNED = "verifier={name: reward_model, folder: 'run:grpo-tiny'}"


@pytest.fixture(scope="module")
def practised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward") / "practice"
    words = (*SHORT, "policy.local.threads=1", "tensorboard=false")
    assert studio("train", "grpo-tiny", *words, workspace=folder).code == 0
    return folder


def test_a_head_orders_what_its_features_tell_apart() -> None:
    chance = torch.Generator().manual_seed(1)
    features = torch.randn(60, 8, generator=chance)
    rewards = (features[:, 3] > 0).float()  # one feature decides
    groups = torch.arange(60) // 6
    head = fit_head(features, rewards, groups)
    assert pair_accuracy(head.rewards(features), rewards, groups)[0] == 1.0
    assert ((head.rewards(features) > 0.5) == (rewards > 0.5)).float().mean() > 0.9
    # Where nothing tells right from wrong, the mean reward is the best guess.
    blind = fit_head(torch.zeros(60, 8), rewards, groups)
    assert blind.rewards(torch.zeros(1, 8)).item() == pytest.approx(rewards.mean().item(), abs=0.01)
    # Three of four pairs: (0.9, 0.1), (0.9, 0.2), (0.3, 0.2) in order, (0.3, 0.4) not.
    scores, known = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, 0, 0, 1, 0])
    assert pair_accuracy(scores, known, torch.tensor([0, 0, 0, 1, 1])) == (pytest.approx(2 / 3), 3)


def test_a_reward_model_is_learned_measured_and_judges_as_a_guess(practised: Path) -> None:
    made = studio("train", "grpo-tiny", "--stage", "reward", "--json", workspace=practised)
    assert made.code == 0, made.stderr
    card = json.loads(made.stdout)
    assert (card["run"], card["model"], card["answers"]) == ("grpo-tiny", "hf:tiny", 128)
    assert card["held_out_pairs"] > 0 and card["held_out_agreement"] > 0.7
    done = studio("try", "grpo-tiny", LEARNED, workspace=practised)
    assert done.code == 0 and "note: rewards are guesses of a model" in done.stderr
    assert "learned from run grpo-tiny, with whose verifier it agrees on" in done.stdout
    # A resume notices another head.
    words = ("headless", "tiny", LEARNED, "data.truncate=8", "evaluation.do_eval=false")
    assert studio(*words, "practice.epochs=1", workspace=practised).code == 0
    head = practised / "runs/grpo-tiny/reward_model/head.safetensors"
    head.write_bytes(head.read_bytes() + b" ")
    again = studio(*words, "practice.epochs=2", workspace=practised)
    assert again.code == 2 and "verifier" in again.stderr


async def test_each_answer_gets_its_own_reward_and_silence_none() -> None:
    tries = [a_rollout("four"), a_rollout(None), a_rollout("seven")]
    verifier = LearnedVerifier(lambda pairs: [len(said) / 10 for _, said in pairs], "a guess")
    found = [(one.reward, one.error) for one in await verifier.verify(a_problem(), tries)]
    assert found == [(0.4, None), (None, "failed: there is no answer to judge"), (0.5, None)]


def test_of_a_long_text_the_end_counts_and_a_fifth_of_the_groups_measures() -> None:
    local = load_local(LocalSettings(str(bundled_folder() / "tiny"), threads=1), lambda _: None)
    end = "9" * local.window
    assert torch.equal(*features_of(local, [("How?", end), ("9", end)]))
    # Rewards that the text says nothing about are learned by heart, and not those held back.
    right = [(n + (n // 2) ** 2 // 3) % 2 for n in range(60)]
    rows = [JudgedAnswer(str(n), str(n), float(one), n // 2) for n, one in enumerate(right)]
    head, agreement, pairs = learn(local, rows)
    texts = features_of(local, [(row.question, row.answer) for row in rows])
    by_heart = pair_accuracy(head.rewards(texts), torch.tensor(right), torch.arange(60) // 2)
    assert by_heart == (1.0, 30) and agreement < 0.5 and 0 < pairs < 15


def test_what_cannot_be_learned_or_loaded_says_why(tmp_path: Path) -> None:
    few = tmp_path / "few"
    words = ("practice.epochs=1", "data.truncate=4", "evaluation.do_eval=false")
    assert studio("headless", "tiny", *words, workspace=few).code == 0
    done = studio("train", "tiny", "--stage", "reward", workspace=few)
    assert done.code == 2 and "of its groups have a try that was better" in done.stderr
    done = studio("train", "rehearsal", "--stage", "reward", "--name", "tiny", workspace=few)
    assert done.code == 2 and "a head on a model whose weights are here" in done.stderr
    done = studio("train", "rehearsal", "--stage", "reward", "--name", "no", workspace=few)
    assert done.code == 2 and "there is no such run" in done.stderr
    done = studio("try", "rehearsal", "verifier={name: reward_model, folder: none}", workspace=few)
    assert done.code == 2 and "there is no reward model at none" in done.stderr
    zeros = torch.zeros(2)
    fit_head(torch.eye(2), zeros, zeros).save(tmp_path / "cut", {})
    (tmp_path / "cut/head.safetensors").write_bytes(b"\x00" * 9)
    with pytest.raises(DataError, match="holds no reward model"):
        load_head(tmp_path / "cut")
