"""Make the tiny policy from nothing: tokenizer, warm-up, model folder.

Run `python -m sample_data.make_tiny [FOLDER]`; without a folder `tiny` beside this program
is replaced. One thread; the same torch and tokenizers give the same bytes. Progress goes to
stderr as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from sample_data.measure_tiny import card_text, conditions, load_held_out, measure_condition
from sample_data.tiny_text import SKILLS, exercises
from sample_data.tiny_tips import system_text

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{ '<|system|>' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ '<|assistant|>' }}"
    "{%- else -%}{{ '<|user|>' }}{%- endif -%}"
    "{{- message['content'] -}}{{ '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
VOCABULARY = 768
WINDOW = 640
INITIAL = 0.08  # with the usual 0.02 a model this small takes several times as long to begin
_SPLIT = r"\d| ?[A-Za-z]+| ?[^\sA-Za-z\d]+|\s+"


@dataclass(frozen=True, slots=True)
class Recipe:
    examples: int = 90_000
    batch: int = 32
    right_only: float = 0.4  # share of the examples, from the beginning
    bare: float = 0.8  # share of those that hold no experiences: short prompts cost less
    p_right: float = 0.31  # without an experience that states the skill
    p_right_told: float = 0.97
    learning_rate: float = 3e-3
    warm_up: int = 100  # optimiser steps
    later_bare: float = 0.0  # the same share after the beginning, beside what is bare anyway
    parting: float = 1.0  # weight in the loss of the token at which right and lazy part
    weights: tuple[int, ...] = (1, 1, 1, 1)  # how often each skill is met
    seed: int = 7


ROUNDS = (
    Recipe(),
    # One token in forty tells whether the policy listens: without its weight it is learnt last.
    Recipe(
        examples=64_000,
        right_only=0.0,
        later_bare=0.3,
        parting=10.0,
        learning_rate=2e-3,
        seed=8,
    ),
    # Products, and what is added to them, take longest to calculate surely.
    Recipe(
        examples=80_000,
        right_only=0.0,
        later_bare=0.3,
        parting=4.0,
        learning_rate=2e-3,
        weights=(1, 1, 2, 4),
        seed=9,
    ),
)


@dataclass(frozen=True, slots=True)
class Example:
    prompt: str
    reply: str


def examples(recipe: Recipe) -> Iterator[Example]:
    """The warm-up's text, in order; the same recipe always gives the same."""
    chance = random.Random(recipe.seed)
    source = {skill: exercises(skill, chance, "warm-up") for skill in SKILLS}
    for number in range(recipe.examples):
        if len(set(recipe.weights)) == 1:
            skill = chance.choice(SKILLS)
        else:
            skill = chance.choices(SKILLS, recipe.weights)[0]
        exercise = next(source[skill])
        beginning = number < recipe.right_only * recipe.examples
        bare_share = recipe.bare if beginning else recipe.later_bare
        bare = bare_share > 0 and chance.random() < bare_share
        system, told = ("", False) if bare else system_text(skill, chance)
        p_right = recipe.p_right_told if told else recipe.p_right
        right = beginning or chance.random() < p_right
        yield Example(
            (f"{SYSTEM}{system}{END}" if system else "")
            + f"{USER}{exercise.question}{END}{ASSISTANT}",
            (exercise.right if right else exercise.lazy) + END,
        )


def tokenizer_text() -> Iterator[str]:
    for example in examples(Recipe(examples=6_000)):
        yield from (example.prompt, example.reply)


def make_tokenizer(texts: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose digits stand alone."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bare.decoder = decoders.ByteLevel()
    bare.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END, SYSTEM, USER, ASSISTANT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    end = tokenizer.convert_tokens_to_ids(END)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
            initializer_range=INITIAL,
            dtype="float32",
        )
    )


# Ids of prompt and reply, length of the prompt, place of the token at which the ways part.
Encoded = tuple[list[int], int, int]


def batches(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, chance: random.Random
) -> Iterator[list[Encoded]]:
    """Batches of examples of about the same length, so that little is padding."""
    waiting: list[Encoded] = []
    for number, example in enumerate(examples(recipe), 1):
        prompt = tokenizer.encode(example.prompt)
        shared = example.reply.index("\n") + len("\n(")  # digits and signs are never merged
        parts = len(prompt) + len(tokenizer.encode(example.reply[:shared]))
        waiting.append((prompt + tokenizer.encode(example.reply), len(prompt), parts))
        if len(waiting) == 32 * recipe.batch or number == recipe.examples:
            waiting.sort(key=lambda encoded: len(encoded[0]))
            cut = [waiting[n : n + recipe.batch] for n in range(0, len(waiting), recipe.batch)]
            chance.shuffle(cut)
            yield from cut
            waiting = []


def reply_loss(model: LlamaForCausalLM, batch: Sequence[Encoded], parting: float) -> Tensor:
    """Mean cross-entropy over the reply tokens of the batch; the prompts bear no loss.

    Args:
        model: the policy in float32.
        batch: B examples.
        parting: weight of the token at which the right and the lazy way part.
    """
    length = max(len(ids) for ids, _, _ in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)  # (B, L); padding is never looked at
    weights = torch.zeros(len(batch), length)  # (B, L) of the next token; 0 outside the reply
    for row, (encoded, prompt, parts) in enumerate(batch):
        ids[row, : len(encoded)] = torch.tensor(encoded)
        weights[row, prompt - 1 : len(encoded) - 1] = 1.0
        weights[row, parts - 1] = parting
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # (B, L, H)
    wanted = weights > 0
    logits, following = model.lm_head(hidden[wanted]), torch.roll(ids, -1, dims=1)[wanted]
    if parting == 1.0:
        return nn.functional.cross_entropy(logits, following)
    losses = nn.functional.cross_entropy(logits, following, reduction="none")
    return (losses * weights[wanted]).parse_sum() / weights.parse_sum()


def warm_up(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    total = math.ceil(recipe.examples / recipe.batch)
    began, seen, summed = time.monotonic(), 0, 0.0
    model.train()
    for step, batch in enumerate(batches(recipe, tokenizer, random.Random(recipe.seed)), 1):
        rate = min(1.0, step / recipe.warm_up) * (0.5 + 0.5 * math.cos(math.pi * step / total))
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rate
        loss = reply_loss(model, batch, recipe.parting)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        seen, summed = seen + sum(len(ids) for ids, _, _ in batch), summed + float(loss.detach())
        if step % 100 == 0 or step == total:
            tell(
                step=step,
                of=total,
                loss=round(summed / (step % 100 or 100), 4),
                tokens=seen,
                seconds=round(time.monotonic() - began),
            )
            summed = 0.0
    model.eval()


def tell(**facts: object) -> None:
    print(json.dumps(facts), file=sys.stderr, flush=True)


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def write_card(folder: Path, seconds: float) -> None:
    """Measure what stands in the folder, as it will be loaded, and tell of it there."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows, figures = load_held_out(), []
    for name in conditions(SKILLS[0]):
        figures.append(measure_condition(model, tokenizer, rows, name, seed=ROUNDS[0].seed))
        tell(condition=name, right=round(figures[-1].rate, 3), n=figures[-1].n)
    facts = {
        **asdict(ROUNDS[0]),
        "examples": f"{ROUNDS[0].examples:,}",
        **{f"second_{name}": value for name, value in asdict(ROUNDS[1]).items()},
        "second_examples": f"{ROUNDS[1].examples:,}",
        **{f"third_{name}": value for name, value in asdict(ROUNDS[2]).items()},
        "third_examples": f"{ROUNDS[2].examples:,}",
        "parameters": f"{model.num_parameters():,}",
        "vocabulary": len(tokenizer),
        "window": WINDOW,
        "seconds": f"{seconds:.0f}",
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }
    (folder / "README.md").write_text(card_text(figures, facts), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Make the tiny policy from nothing.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "tiny")
    parser.add_argument("--short", type=int, metavar="N", help="N examples a round, to try it")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    began = time.monotonic()
    tokenizer = make_tokenizer(tokenizer_text())
    model = make_model(tokenizer, ROUNDS[0].seed)
    for recipe in ROUNDS:
        if chosen.short:
            recipe = replace(recipe, examples=chosen.short)
        warm_up(model, tokenizer, recipe)
        model = model.half().float()  # as it is kept, so that a round can begin from the file
    save(chosen.folder, model, tokenizer)
    write_card(chosen.folder, time.monotonic() - began)


if __name__ == "__main__":
    main(sys.argv[1:])
