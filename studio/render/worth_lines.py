"""Worth as lines: what `studio library utility` and `studio gate` print."""

from collections.abc import Sequence
from shlex import quote

from studio.facts.worth import TriedOperation, UtilityFacts
from studio.render.lines import table, wrap_text
from studio.render.words import count_text, usage_text
from studio.secrets.sanitize import one_line

_TEXT_CHARS = 22
"""Of an experience beside its figures, so that 80 columns hold a row."""
_HEADINGS = ("ID", "EFFECT", "95 % INTERVAL", "FALSE", "TOKENS", "VERDICT", "TEXT")


def utility_lines(facts: UtilityFacts, *, kept: bool, offer: bool) -> list[str]:
    """A row for each experience, the best first, what it all rests on, and what was offered."""
    effects = facts.effects
    halves = all(effect.method == "inclusion" for effect in effects.single.values())
    how = "each with a random half of it" if halves else "of practice with dropout, for free"
    lines = [
        f"{one_line(facts.label, 40)}: worth of {count_text(len(facts.texts), 'experience')}",
        f"{effects.rollouts:,} rollouts of {count_text(effects.problems, 'problem')}, {how}",
        "",
    ]
    rows = _effect_rows(facts)
    if rows:
        lines += [table(_HEADINGS, rows), ""]
    if missing := [name for name in facts.texts if name not in effects.single]:
        lines.append(f"not told {', '.join(missing)} varied too little")
    if facts.unjudged:
        lines.append(f"unjudged {count_text(facts.unjudged, 'rollout')} left out")
    if rows and halves:
        lines.append(f"paid     {usage_text(facts.paid)}")
    if facts.dispensable:
        lines.append(f"can go   {_dispensable_text(facts, offer)}")
    lines.append("FALSE: of this one and those at least as sure, this share is false at most")
    lines = wrap_text("\n".join(lines), 80).split("\n")
    if kept:
        lines.append(f"kept     studio library show {quote(facts.library)}")
    if facts.offered_in:
        names = ", ".join(facts.offered)
        lines.append(f"offered  {names} to be deleted, in run {facts.offered_in}")
    elif offer:
        asked = (
            "they are asked about already" if facts.dispensable else "none surely gains too little"
        )
        lines.append(f"offered  nothing: {asked}")
    return lines


def _effect_rows(facts: UtilityFacts) -> list[list[str]]:
    best_first = sorted(facts.effects.single.items(), key=lambda pair: -pair[1].difference)
    return [
        [
            name,
            f"{effect.difference:+.3f}",
            f"[{effect.low:+.2f}, {effect.high:+.2f}]",
            f"{effect.false_discovery:.3f}",
            str(facts.prompt_tokens[name]),
            effect.verdict,
            one_line(facts.texts[name], _TEXT_CHARS),
        ]
        for name, effect in best_first
    ]


def _dispensable_text(facts: UtilityFacts, offer: bool) -> str:
    names = []
    for name in facts.dispensable:
        hurts = facts.effects.single[name].verdict == "hurts"
        names.append(f"{name} hurts" if hurts else name)
    move = "" if offer else "; --offer asks a reviewer"
    return f"{', '.join(names)}: surely less than {facts.margin:g}{move}"


def tried_lines(operations: Sequence[TriedOperation], *, known_before: bool) -> list[str]:
    """A line for each operation: `s2o1 add: helps, +0.18 [+0.06, +0.31] on 40 problems …`."""
    lines, priced = [], []
    for facts in operations:
        target = facts.data["target"] or ""
        head = f"{facts.operation} {facts.data['kind']} {target}".rstrip()
        measured = facts.effect
        if measured is None:
            lines.append(
                f"{head}: not tried: it does not fit the library as it is, or with what helps"
            )
            continue
        price = usage_text(measured.effect.usage)
        if known_before:
            price = "known already"
        elif measured in priced:
            price = "tried with it"
        priced.append(measured)
        lines.append(f"{head}: {measured.effect.verdict}, {measured.effect.text}; {price}")
    return lines
