"""What the tiny policy does on held-out problems, by what stands in its prompt.

Owns the conditions that are compared and the card that tells of them. Samples with
transformers' own generation, so that it can check the studio's sampler.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engines.core.library import guidance_text
from sample_data.tiny_text import LESSONS, SKILLS, SOURCES, Skill

HERE = Path(__file__).parent
MAX_TOKENS = 72
EDITED: dict[Skill, str] = {
    "addition": "Carry: when the digits of a column come to ten or more, always carry one to "
    "the column on its left.",
    "subtraction": "Borrow: when the upper digit is the smaller one, you must borrow ten from "
    "the next column first.",
    "story": "Last change: when a story tells two changes, answer only when the last one has "
    "been worked out.",
    "precedence": "Multiply first: when different signs are mixed in one line, always multiply "
    "before you do anything else.",
}
"""The lessons as a person might reword them; the warm-up held none of these sentences."""
GIBBERISH = (
    "Zorp: blim fandle grot wex, tarn ulo mip sedge.",
    "Quan: when orlip nade fost, brin calder wum.",
    "Hesk dorla pim, vunter glay somp reth.",
    "Tib: lorn asket mof, ceddle yarp.",
)


@dataclass(frozen=True, slots=True)
class Row:
    question: str
    answer: str
    skill: Skill


@dataclass(frozen=True, slots=True)
class Figure:
    """Share of right answers under one condition, one sample a problem, temperature 1."""

    condition: str
    right: int
    n: int

    @property
    def rate(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %."""
        z, n, p = 1.96, self.n, self.rate
        centre, spread = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def load_held_out() -> list[Row]:
    skills = {source: skill for skill, source in SOURCES.items()}
    lines = (HERE / "skills-heldout.jsonl").read_text("utf-8").splitlines()
    return [
        Row(row["question"], row["answer"], skills[row["source"]]) for row in map(json.loads, lines)
    ]


def neutral_experiences() -> list[str]:
    data = yaml.safe_load((HERE / "neutral.yaml").read_text("utf-8"))
    return [row["text"] for row in data["experiences"]]


def conditions(skill: Skill) -> dict[str, list[str]]:
    """Condition → the experiences that stand before a problem of the skill."""
    others = [LESSONS[other] for other in SKILLS if other != skill]
    return {
        "no experience": [],
        "the lesson of the skill": [LESSONS[skill]],
        "the same, reworded": [EDITED[skill]],
        "all four lessons": list(LESSONS.values()),
        "all four, reworded": list(EDITED.values()),
        "the other three lessons": others,
        "four neutral experiences": neutral_experiences(),
        "four lines of gibberish": list(GIBBERISH),
    }


def sample_replies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    condition: str,
    *,
    seed: int,
    batch: int = 256,
) -> list[str]:
    """One reply to each problem at temperature 1, without top-k and top-p."""
    torch.manual_seed(seed)
    replies: list[str] = []
    for start in range(0, len(rows), batch):
        asked = []
        for row in rows[start : start + batch]:
            texts = conditions(row.skill)[condition]
            system = guidance_text((f"E{n}", text) for n, text in enumerate(texts, 1))
            shown = [{"role": "system", "content": system}] if system else []
            asked.append([*shown, {"role": "user", "content": row.question}])
        encoded = tokenizer.apply_chat_template(
            asked, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        out = model.generate(  # (B, L)
            **encoded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=MAX_TOKENS,
        )  # fmt: skip
        tails = out[:, encoded["input_ids"].shape[1] :]
        replies += tokenizer.batch_decode(tails, skip_special_tokens=True)
    return replies


def measure_condition(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    condition: str,
    *,
    seed: int,
) -> Figure:
    replies = sample_replies(model, tokenizer, rows, condition, seed=seed)
    right = sum(
        reply.rpartition("#### ")[2].strip() == row.answer
        for reply, row in zip(replies, rows, strict=True)
    )
    return Figure(condition, right, len(rows))


def card_text(figures: Sequence[Figure], facts: dict[str, object]) -> str:
    """The model card; `facts` fill the template's other places."""
    lines = [
        f"| {f.condition} | {f.rate:.2f} ({f.interval[0]:.2f} to {f.interval[1]:.2f}) | {f.n} |"
        for f in figures
    ]
    text = (HERE / "tiny_card.md").read_text("utf-8")
    for name, value in {**facts, "figures": "\n".join(lines)}.items():
        text = text.replace(f"{{{{{name}}}}}", str(value))
    return text
