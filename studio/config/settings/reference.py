"""What every setting means, with its default, bounds, choices and an example.

All of it is read from where a setting is declared; nothing is written twice.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from inspect import cleandoc
from typing import Any

from pydantic import TypeAdapter

from engines.core.codec import JsonMapping
from engines.core.frozen import frozen
from engines.core.types import Names
from engines.verifiers.foreign.verifier import FunctionSettings
from engines.verifiers.open import KINDS
from studio.config.aliases import ALIASES
from studio.config.settings import base, run

RUN_FILE = "run file"
COMMON = (
    *("exp_id", "seed", "policy.model", "policy.base_url", "policy.api_key", "policy.max_tokens"),
    *("policy.price_in_usd_per_mtok", "policy.price_out_usd_per_mtok", "reflector", "judge"),
    *("agent.instructions", "agent.kind", "agent.max_turns", "agent.tools", "data.practice"),
    *("data.fields", "data.truncate", "practice.algorithm", "practice.epochs"),
    *("practice.batch_size", "practice.group_size", "practice.concurrency"),
    *("practice.temperature", "practice.task_timeout_s", "practice.agent_objective"),
    *("practice.learning_objective", "evaluation.do_eval", "evaluation.data", "evaluation.limit"),
    *("evaluation.k", "evaluation.temperature", "verifier.name", "verifier.file"),
    *("library.start", "review.by", "review.gate.problems", "budget.calls", "budget.tokens"),
    *("budget.cost_usd", "grpo.learning_rate", "sft.data", "theme"),
)
"""What people set; `studio config list` shows these, and the others with --all."""
_KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
}
# pydantic writes a bound either way, depending on what else checks the value.
_BOUNDS = {
    ("minimum", "ge"): "at least",
    ("exclusiveMinimum", "gt"): "above",
    ("maximum", "le"): "at most",
    ("exclusiveMaximum", "lt"): "below",
}


@frozen
class Setting:
    """One setting as it is declared; `default` is a plain value of JSON."""

    key: str
    meaning: str
    kind: str  # in words; "section" holds settings of its own
    default: Any = None
    required: bool = False
    bounds: str = ""
    choices: Names = ()
    example: str = ""  # as it stands on a command line; "" of a section
    aliases: Names = ()
    file: str = RUN_FILE


def run_settings() -> Iterator[Setting]:
    """All of a run file, in its order; those of a verifier stand behind `verifier`."""
    for setting in section_settings(run.RunConfig):
        yield setting
        if setting.key == "verifier.name":
            yield Setting(
                "verifier.file",
                "file with a function that scores, of the workspace's verifiers/ or by its path",
                "text",
                example="verifier.file=exact.py",
                aliases=_aliases("verifier.file"),
            )
            yield from _verifier_settings()


def _verifier_settings() -> Iterable[Setting]:
    """The settings of all kinds of verifiers; one that several have is listed once."""
    listed: dict[str, Setting] = {}
    sections = {name: kind.settings for name, kind in KINDS.items()}
    for name, kind in {**sections, "function": FunctionSettings}.items():
        chosen = "file=exact.py" if name == "function" else f"name={name}"
        for setting in section_settings(kind, "verifier.", f"verifier.{chosen} ", name):
            if (other := listed.get(setting.key)) is not None:
                setting = replace(other, meaning=f"{other.meaning}; {setting.meaning}")
            listed[setting.key] = setting
    return listed.values()


def section_settings(
    section: type, prefix: str = "", example: str = "", of: str = ""
) -> Iterator[Setting]:
    """The settings of a section and of those inside it.

    `example` stands in front of every example, and `of` names what has these settings.
    """
    properties = TypeAdapter(section).json_schema()["properties"]
    for name, declared in base.declared_settings(section).items():
        key, inner = f"{prefix}{name}", declared.section
        facts = _flatten(properties[name])
        meaning = declared.meaning or (cleandoc(inner.__doc__ or "") if inner else "")
        meaning = meaning.partition("\n\n")[0].replace("\n", " ")
        if inner is not None and "examples" not in facts:
            yield Setting(key, meaning, "section", aliases=_aliases(key))
        else:
            nullable = properties[name].get("anyOf", [{}])[-1].get("type") == "null"
            choices = tuple(facts.get("enum", ()))
            kind = "one of these" if choices else _KINDS[facts.get("type", "object")]
            yield Setting(
                key,
                f"{meaning} (verifier {of})" if of else meaning,
                kind + " or null" * nullable,
                facts.get("default"),
                declared.required,
                ", ".join(_bounds(facts)),
                choices,
                f"{example}{key}={_example(facts, choices)}",
                _aliases(key),
            )
        # An example of the whole stands for those inside, which are known from the policy.
        if inner is not None and facts.get("type") != "array" and "examples" not in facts:
            yield from section_settings(inner, f"{key}.", example)


def _flatten(declared: JsonMapping) -> dict[str, Any]:
    """What is said of a value, without the alternative null."""
    branches = [b for b in declared.get("anyOf", ()) if b.get("type") != "null"]
    facts = {name: value for branch in branches for name, value in branch.items()} | dict(declared)
    choices = [c for b in (*branches, declared) for c in b.get("enum", [b.get("const")])]
    return facts | ({"enum": [c for c in choices if c]} if any(choices) else {})


def _bounds(facts: JsonMapping) -> Iterator[str]:
    for names, words in _BOUNDS.items():
        for name in names:
            if name in facts:
                yield f"{words} {facts[name]:,}"
    if "maxLength" in facts:
        yield f"at most {facts['maxLength']} characters"


def _example(facts: JsonMapping, choices: Names) -> str:
    """One that is declared, else a value other than the default."""
    if "examples" in facts:
        return str(facts["examples"][0])
    default: Any = facts["default"]
    if choices:
        return next(choice for choice in reversed(choices) if choice != default)
    if isinstance(default, bool):
        return str(not default).lower()
    most = facts.get("maximum", facts.get("le", facts.get("exclusiveMaximum", float("inf"))))
    double = default * 2 or (1 if facts["type"] == "integer" else 0.1)
    return f"{double if double < most else default / 2:g}"


def _aliases(key: str) -> Names:
    return tuple(alias for alias, name in ALIASES.items() if name == key)
