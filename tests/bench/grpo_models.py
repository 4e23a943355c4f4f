"""What the GRPO bench practises on: a random model whose replies end as told, and the tiny one."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.engines.grpo.models import a_tokenizer

DATA = Path(__file__).parents[2] / "sample_data"
CONSTANT = 3.0
"""What stands in the hidden dimension that decides about the end, the first, at every layer."""

WORDS = 4096
"""Ids from here on are decoded to nothing: a tokenizer with 150,000 added words loads slowly."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model, what it is asked, and what its replies are worth."""

    model: Path
    problems: tuple[tuple[str, str], ...]  # question, answer
    reward: Callable[[str, str], float]  # of a reply and the answer
    batch_size: int
    group_size: int
    max_tokens: int
    learning_rate: float

    @property
    def rollouts(self) -> int:
        return self.batch_size * self.group_size

    def batches(self) -> Iterator[Sequence[tuple[str, str]]]:
        """A batch for each step, without end."""
        rows = itertools.cycle(self.problems)
        while True:
            yield tuple(itertools.islice(rows, self.batch_size))


def write_random(
    folder: Path,
    *,
    hidden: int = 256,
    layers: int = 4,
    vocabulary: int = 2048,
    ending: float = 0.0,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> Path:
    """A model with random weights and its tokenizer.

    Args:
        folder: where to.
        hidden: its width.
        layers: how many.
        vocabulary: tokens; those that the tokenizer lacks are added to it as words, up to WORDS.
        ending: how likely each token ends the reply; 0: none ever does.
        family: llama or qwen2.
        dtype: of the saved weights.
        more: settings of its config.
    """
    import transformers

    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[family]
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": max(4, hidden // 64),
        "num_key_value_heads": max(4, hidden // 64) // 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **more,
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**settings)).eval()
    with torch.no_grad():
        # Spread enough that text depends on what came before, as that of a trained model does.
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[0] = 0.0
        model.model.embed_tokens.weight[:, 0] = CONSTANT
        model.lm_head.weight[:, 0] = 0.0
        ids = torch.randint(8, vocabulary, (8, 64))
        states = model.model(ids).last_hidden_state  # (8, 64, H)
        usual = states @ model.lm_head.weight[1:].T
        row = torch.zeros(settings["hidden_size"])
        wanted = math.log(ending) + usual.logsumexp(-1).mean() if ending else -60.0
        row[0] = wanted / states[..., 0].mean()
        model.lm_head.weight[0] = row
    model.to(dtype).save_pretrained(folder)
    tokenizer = a_tokenizer()
    words = [f" w{number}" for number in range(min(vocabulary, WORDS) - len(tokenizer))]
    tokenizer.add_tokens(words)
    tokenizer.save_pretrained(folder)
    return folder


def some_questions(count: int, words: int) -> tuple[tuple[str, str], ...]:
    """Questions of so many letters, without answers."""
    chance = random.Random(0)
    letters = "bcdfghjklm"
    return tuple(("".join(chance.choices(letters, k=words)), "") for _ in range(count))


def odd_share(reply: str, answer: str) -> float:
    """A reward that differs inside nearly every group, whatever is said."""
    return sum(map(ord, reply)) % 5 / 4


def exact(reply: str, answer: str) -> float:
    return float(reply.rpartition("#### ")[2].strip() == answer)


def rows_of(name: str) -> tuple[tuple[str, str], ...]:
    """Questions and answers of a bundled data set."""
    lines = (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()
    return tuple((row["question"], row["answer"]) for row in map(json.loads, lines))


def fixed(folder: Path) -> Task:
    """Every reply has 48 tokens."""
    model = write_random(folder)
    return Task(model, some_questions(64, 48), odd_share, 4, 8, 48, 1e-5)


def ragged(folder: Path) -> Task:
    """Replies end at any token with the same chance: 32 tokens in the mean, 160 at most."""
    model = write_random(folder, ending=1 / 32)
    return Task(model, some_questions(64, 48), odd_share, 4, 8, 160, 1e-5)


def tiny(folder: Path) -> Task:
    """The bundled model on its own task, with the settings of `studio train grpo-tiny`."""
    problems = list(rows_of("skills"))
    random.Random(1).shuffle(problems)
    return Task(DATA / "tiny", tuple(problems), exact, 16, 8, 80, 2e-3)


def large(folder: Path) -> Task:
    """The shape of Qwen2.5 0.5B with random weights; every reply has 256 tokens."""
    model = write_random(
        folder,
        hidden=896,
        layers=24,
        vocabulary=151_936,
        family="qwen2",
        dtype=torch.bfloat16,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    return Task(model, some_questions(64, 128), odd_share, 8, 8, 256, 1e-5)
