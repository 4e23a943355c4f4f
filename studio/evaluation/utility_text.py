"""`studio library utility` from its first note to its result: what is told, and printed."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from engines.core.codec import to_dict
from engines.core.library_notes import Effect
from engines.core.types import Problem
from engines.pipeline.effect.regression import PairEffect, leave_one_out_rollouts, smallest_effect
from engines.record.run_dir import Workspace
from studio import exit_codes
from studio.evaluation.evaluate import EvalPlan
from studio.evaluation.session import (
    EarlyEnd,
    estimate_missing,
    measure_or_end,
    print_eval_dry_run,
    tell_eval_notes,
)
from studio.evaluation.utility import MARGIN, Priced, Utility, offer_deletes, read_utility
from studio.render.json import print_json, print_result
from studio.render.lines import table, tell_next, to_stderr, wrap_text
from studio.render.words import count_text, usage_text
from studio.secrets.sanitize import one_line

_TEXT = 22  # characters of an experience beside its figures, so that 80 hold a row


def measure_utility(
    priced: Priced, plan: EvalPlan, pool: Sequence[Problem], *, json: bool, dry_run: bool
) -> Utility | int:
    """Make the tries and read them, or tell what they would cost; an exit code where that is all.

    Raises ConfigError: a budget cannot be kept.
    """
    power = power_lines(priced, plan)
    if dry_run:
        return print_eval_dry_run(plan, json=json, power=power)
    tell_eval_notes(plan)
    for line in power:
        to_stderr(line)
    missing, early = plan.count_missing(), EarlyEnd()
    if missing:
        tokens = estimate_missing(plan)[0].tokens
        to_stderr(f"likely {tokens.likely:,.0f} tokens, {tokens.most:,.0f} at most")
    found = measure_or_end(plan, early, missing, "rollouts")
    if found is None:
        if json:
            print_json({"kind": "Utility", "ended": early.cause, "reason": early.reason})
        return early.exit_code
    return read_utility(priced, plan, pool, found)


def power_lines(priced: Priced, plan: EvalPlan) -> list[str]:
    """How many tries of what, and which effect they can show."""
    held = plan.sets[0]
    n, total = len(held.problems), len(held.problems) * plan.k
    least = smallest_effect(total, held.questions, len(priced.names))
    shows = f"would likely show an effect of {least:.2f} or more, and miss smaller ones"
    left = f"; {held.left_out} that are held out are left out" if held.left_out else ""
    waiting = f", {len(priced.pending)} of them wait for review" if priced.pending else ""
    return [
        f"{count_text(len(priced.names), 'experience')}{waiting}",
        one_line(f"{held.name}: {count_text(n, 'problem')}, {plan.k} tries each{left}", 400),
        f"  {shows if least <= 1 else 'too few to show any effect'}",
    ]


def print_utility(found: Utility, workspace: Workspace, *, offer: bool, json: bool) -> int:
    """Keep what was found, offer what can go where that is asked, print all; the exit code."""
    opened = offer_deletes(found, workspace) if offer and found.dispensable else None
    offered = [op.target or "" for op in opened.operations] if opened else []
    lines, library = utility_lines(found, offer=offer), found.priced.library
    folder = workspace.library(library.name)
    if folder.exists():
        with folder.lock_for_commit() as locked:
            known, told = locked.head.effects, found.effects.single
            # What other problems tell in fewer tries takes no better figure away.
            weaker = {n for n, e in told.items() if n in known and _is_weaker(e, known[n])}
            locked.measure(library, {n: e for n, e in told.items() if n not in weaker})
        stays = f"; {', '.join(sorted(weaker))} as more tries told before" if weaker else ""
        lines.append(f"kept     studio library show {quote(library.name)}{stays}")
    if opened and opened.run:
        lines.append(f"offered  {', '.join(offered)} to be deleted, in run {opened.run}")
    elif offer:
        asked = "they are asked about already" if opened else "none surely gains too little"
        lines.append(f"offered  nothing: {asked}")
    effects = found.effects
    data = {
        "kind": "Utility",
        "library": library.name,
        "version": library.version,
        "unjudged": found.unjudged,
        **to_dict(effects),
        "pending": list(found.priced.pending),
        "dispensable": list(found.dispensable),
        "offered": offered,
        "leave_one_out_rollouts": leave_one_out_rollouts(effects.rollouts, len(effects.single)),
        "paid": to_dict(found.paid),
    }
    print_result(data, "\n".join(lines), json=json)
    if not json and opened and opened.run:
        tell_next(f"studio review {quote(opened.run)}", workspace.path)
    return exit_codes.WITH_LOSSES if found.unjudged else exit_codes.DONE


def _is_weaker(effect: Effect, known: Effect) -> bool:
    return effect.method == known.method and effect.rollouts < known.rollouts


def utility_lines(found: Utility, *, offer: bool) -> list[str]:
    """A row for each experience, the best first; pairs, and what it all rests on."""
    effects, texts = found.effects, {e.id: e.text for e in found.priced.library.experiences}
    halves = all(e.method == "inclusion" for e in effects.single.values())
    how = "each with a random half of it" if halves else "of practice with dropout, for free"
    lines = [
        f"{one_line(found.priced.label, 40)}: worth of {count_text(len(texts), 'experience')}",
        f"{effects.rollouts:,} rollouts of {count_text(effects.problems, 'problem')}, {how}",
        "",
    ]
    rows = [
        [
            name,
            f"{e.difference:+.3f}",
            f"[{e.low:+.2f}, {e.high:+.2f}]",
            f"{e.false_discovery:.3f}",
            f"{len(texts[name].encode()) / 4:.0f}",
            e.verdict,
            one_line(texts[name], _TEXT),
        ]
        for name, e in sorted(effects.single.items(), key=lambda pair: -pair[1].difference)
    ]
    headings = ("ID", "EFFECT", "95 % INTERVAL", "FALSE", "TOKENS", "VERDICT", "TEXT")
    lines += [table(headings, rows), ""] if rows else []
    if missing := [name for name in texts if name not in effects.single]:
        lines.append(f"not told {', '.join(missing)} varied too little")
    lines += [_pair_text(pair) for pair in effects.pairs]
    if not effects.pairs:
        lines.append(f"pairs    none stands out, of {effects.pairs_tested:,} that could be told")
    if found.unjudged:
        lines.append(f"unjudged {count_text(found.unjudged, 'rollout')} left out")
    if rows and halves:
        alone = leave_one_out_rollouts(effects.rollouts, len(rows))
        lines.append(f"instead  {alone:,} rollouts, leaving one out at a time, for the same error")
        lines.append(f"paid     {usage_text(found.paid)}")
    if gone := found.dispensable:
        names = ", ".join(f"{n} hurts" if e.verdict == "hurts" else n for n, e in gone.items())
        move = "" if offer else "; --offer asks a reviewer"
        lines.append(f"can go   {names}: surely less than {MARGIN:g}{move}")
    lines.append("FALSE: of this one and those at least as sure, this share is false at most")
    return wrap_text("\n".join(lines), 80).split("\n")


def _pair_text(pair: PairEffect) -> str:
    """`pair     E2 + E3: together 0.35 less than both alone add up to [-0.45, -0.25]: …`."""
    less = pair.difference < 0
    why = "they say the same, or cancel each other" if less else "one needs the other"
    size = f"{abs(pair.difference):.2f} {'less' if less else 'more'} than both alone add up to"
    interval = f"[{pair.interval.low:+.2f}, {pair.interval.high:+.2f}]"
    return f"pair     {pair.first} + {pair.second}: together {size} {interval}: {why}"
