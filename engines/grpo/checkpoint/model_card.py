"""The card of exported weights: what they are, how they came about, how well they did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engines.core.events import EvaluationFinished
from engines.core.text.sanitize import escape_unsafe

Kind = Literal["adapter", "merged"]

BUNDLED_LICENCE = "apache-2.0"
"""As the bundled model's own card says."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card tells. `settings` are the run file's, by dotted key."""

    kind: Kind
    run: str
    step: int
    base: str
    bundled: bool = False  # the base is the tiny model that ships with the studio
    quantise: str = "none"
    algorithm: str = ""
    rehearsal: bool = False
    steps_finished: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[EvaluationFinished] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def model_card(facts: CardFacts) -> str:
    """A README.md with front matter as model hubs read it."""
    versions = ", ".join(f"{name} {number}" for name, number in sorted(facts.versions.items()))
    parts = (
        _front_matter(facts),
        _description_section(facts),
        _results_section(facts),
        _training_section(facts),
        f"Versions: {versions}." if versions else "",
    )
    return escape_unsafe("\n\n".join(part for part in parts if part)) + "\n"


def _front_matter(facts: CardFacts) -> str:
    library = "peft" if facts.kind == "adapter" else "transformers"
    tags = ["lora", *([facts.algorithm] if facts.algorithm else [])]
    # JSON texts are YAML too, and a name cannot break out of one.
    lines = (
        "---",
        f"base_model: {json.dumps(facts.base)}",
        *([f"license: {BUNDLED_LICENCE}"] if facts.bundled else []),
        f"library_name: {library}",
        "pipeline_tag: text-generation",
        f"tags: {json.dumps(tags)}",
        "---",
    )
    return "\n".join(lines)


def _description_section(facts: CardFacts) -> str:
    base = " ".join(facts.base.split())
    what = (
        f"A LoRA adapter for `{base}`."
        if facts.kind == "adapter"
        else f"`{base}` with a LoRA adapter merged into its weights."
    )
    lines = [
        f"# {facts.run}, step {facts.step}",
        f"{what} Trained with practice studio in run `{facts.run}`; these are the weights "
        f"after step {facts.step} of {facts.steps_finished}.",
    ]
    if facts.rehearsal:
        lines.append(
            "**Rehearsal**: part of that run's replies were scripted, so its figures say "
            "nothing about a model."
        )
    if facts.bundled:
        lines.append(
            "The base is the tiny model that ships with practice studio: it knows four kinds "
            "of short arithmetic problems and nothing else, and serves to show training, not "
            "to be used."
        )
    if facts.quantise == "nf4":
        lines.append(
            "The adapter was trained on 4-bit weights (NF4) of the base. "
            + (
                "It was merged into the weights before quantising, so replies differ a little "
                "from those in training."
                if facts.kind == "merged"
                else "Serve it on the same 4-bit weights for the replies it had in training."
            )
        )
    lines.append(
        f"Licence: {BUNDLED_LICENCE}, as that of the base."
        if facts.bundled
        else "Licence: that of the base model goes with these weights. It is not known here; look "
        "it up before you pass them on."
    )
    return "\n\n".join(lines)


def _results_section(facts: CardFacts) -> str:
    measured = [found for found in facts.evaluations if found.step in (0, facts.step)]
    heading = "## Held-out results"
    if not measured:
        return f"{heading}\n\nNone were measured at this step."
    rows = [
        f"| {_cell_text(found.data)} | {'before training' if found.step == 0 else found.step} | "
        f"{'unknown' if found.mean is None else f'{found.mean:.3f}'} | {found.n} | {found.k} | "
        f"{found.unjudged} |"
        for found in measured
    ]
    head = (
        "| data | step | mean reward | n | tries each | unjudged |",
        "|---|---|---|---|---|---|",
    )
    return "\n".join((heading, "", *head, *rows, "", "n counts replies with a known reward."))


def _training_section(facts: CardFacts) -> str:
    lines = ["## Training", "", f"Algorithm: {facts.algorithm or 'not recorded'}."]
    if facts.settings:
        lines += ["", "```yaml"]
        lines += [f"{key}: {_value_text(value)}" for key, value in sorted(facts.settings.items())]
        lines += ["```"]
    return "\n".join(lines)


def _value_text(value: Any) -> str:
    # A fence of the value's own would end the block.
    return json.dumps(value, ensure_ascii=False, default=str).replace("```", "` ` `")


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
