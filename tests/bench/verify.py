"""The `math` verifier's hard tests: `python -m tests.bench.verify`, a minute or two.

Agreement with math-verify on its own test-suite (fetched as its source distribution, not
kept here), verdicts a second beside math-verify's own, and twenty bombs. Prints JSON;
exits with 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import itertools
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engines.core.types import Attempt, Problem, Rollout
from engines.verifiers.answers import MathSettings, MathVerifier
from tests.bench.bombs import BOMBS

AGREEING, PER_SECOND = 280, 1_000  # the bounds
PAIRS, REPEATS = 1_000, 5
SYMPY_EVERY = 100  # it needs 20 ms for a wrong logarithm, whoever asks it
PARTS = ("agreement", "speed", "bombs")

Pair = tuple[str, str, bool]  # expected answer, response, whether it is right


def a_rollout(response: str, index: int = 0) -> Rollout:
    return Rollout(
        attempt=Attempt((), response),
        epoch=1,
        step=1,
        position=0,
        index=index,
        seed=0,
        policy_version=0,
        library_version=0,
    )


async def rewards_of(verifier: MathVerifier, pairs: Iterable[Pair]) -> list[float | None]:
    """One reward a pair, all asked at once as in a run."""
    asked = (verifier.verify(Problem("p", "q", gold), [a_rollout(text)]) for gold, text, _ in pairs)
    return [verdict.reward for (verdict,) in await asyncio.gather(*asked)]


# ── agreement


def their_cases(sdist: Path | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(sdist or fetched(folder)) as archive:
            archive.extractall(folder, filter="data")
        (source,) = (path.parent for path in folder.glob("*/tests"))
        program = Path(__file__).with_name("their_suite.py")
        done = subprocess.run(
            [sys.executable, "-P", str(program), str(source)],
            stdout=subprocess.PIPE,
            cwd=folder,
            check=True,
        )
        return list(json.loads(done.stdout))


def fetched(folder: Path) -> Path:
    """Its source distribution, in the version that is installed."""
    package = f"math-verify=={importlib.metadata.version('math-verify')}"
    command = ["download", "--quiet", "--no-deps", "--no-binary", "math-verify"]
    command += ["--dest", str(folder), package]
    subprocess.run([sys.executable, "-m", "pip", *command], stdout=sys.stderr, check=True)
    (archive,) = folder.glob("*.tar.gz")
    return archive


async def agreement(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Verdicts under the rules of each test, and under the defaults of both."""
    theirs = [case["verdict"] for case in cases]
    ours = [await our_verdict(case, MathSettings(**known(case["rules"]))) for case in cases]
    plain = [await our_verdict(case, MathSettings()) for case in cases]
    return {
        "cases": len(cases),
        "same_as_math_verify": sum(a is b for a, b in zip(ours, theirs, strict=True)),
        "same_at_defaults": sum(
            a is case["verdict_at_defaults"] for a, case in zip(plain, cases, strict=True)
        ),
        "as_its_suite_expects": {
            "ours": sum(a is case["expected"] for a, case in zip(ours, cases, strict=True)),
            "math_verify": sum(
                a is case["expected"] for a, case in zip(theirs, cases, strict=True)
            ),
        },
        "differing": [
            {**case, "gold": case["gold"][-200:], "pred": case["pred"][-200:], "ours": verdict}
            for case, verdict in zip(cases, ours, strict=True)
            if verdict is not case["verdict"]
        ],
    }


def known(rules: dict[str, Any]) -> dict[str, Any]:
    names = ("float_rounding", "strict", "allow_set_relation_comp")
    return {name: rules[name] for name in names if name in rules}


_VERIFIERS: dict[MathSettings, MathVerifier] = {}


async def our_verdict(case: dict[str, Any], settings: MathSettings) -> bool | str:
    verifier = _VERIFIERS.setdefault(settings, MathVerifier(settings))
    rollouts = [a_rollout(case["pred"])]
    (verdict,) = await verifier.verify(Problem("p", "q", case["gold"]), rollouts)
    return str(verdict.error) if verdict.reward is None else verdict.reward == 1.0


# ── speed


KINDS = ("fraction", "decimal", "root", "equation", "tuple", "polynomial", "transcendental")


def a_pair(kind: str, n: int) -> Pair:
    """The nth expected answer of a kind and an equal or, each third time, another response."""
    right = n % 3 != 0
    a, b = n + (not right), 2 * n + 1
    match kind:
        case "fraction":
            return f"\\frac{{{n}}}{{{b}}}", f"It is \\boxed{{\\frac{{{7 * a}}}{{{7 * b}}}}}.", right
        case "decimal":
            return f"{n / 8}", f"The answer is {a}/8", right
        case "root":
            return f"{n}\\sqrt{{3}}", f"Answer: $\\sqrt{{{3 * a * a}}}$", right
        case "equation":
            return f"$x={n}.5$", f"\\boxed{{\\frac{{{2 * a + 1}}}{{2}}}}", right
        case "tuple":
            return f"({n}, {b})", f"\\boxed{{({2 * a}/2, {b})}}", right
        case "polynomial":
            return f"(x+{n})^2", f"\\boxed{{x^2+{2 * a}x+{n * n}}}", right
        case _:
            return f"\\log({n}x)", f"\\boxed{{\\log({a}x)}}", right


def distinct_pairs(count: int, start: int) -> list[Pair]:
    """Answers that are no plain integers; one in 100 is left to sympy (`SYMPY_EVERY`)."""
    easy = KINDS[:-1]
    kinds = [KINDS[-1] if n % SYMPY_EVERY == 0 else easy[n % len(easy)] for n in range(count)]
    return [a_pair(kind, start + n) for n, kind in enumerate(kinds)]


async def speed() -> dict[str, Any]:
    """Verdicts a second: the best of the repeats, each with pairs never seen before."""
    from math_verify import parse, verify

    verifier = MathVerifier()
    await verifier.start()
    ours, theirs, wrong = [], [], 0
    for repeat in range(REPEATS):
        pairs = distinct_pairs(PAIRS, start=10 + repeat * PAIRS)
        began = time.perf_counter()
        rewards = await rewards_of(verifier, pairs)
        ours.append(PAIRS / (time.perf_counter() - began))
        wrong += sum(got != float(pair[2]) for got, pair in zip(rewards, pairs, strict=True))
        began = time.perf_counter()
        for gold, text, _ in pairs:
            verify(parse(f"${gold}$"), parse(text))
        theirs.append(PAIRS / (time.perf_counter() - began))
    by_kind = {}
    for kind in KINDS:
        pairs = [a_pair(kind, n) for n in range(6_000, 6_100)]
        began = time.perf_counter()
        await rewards_of(verifier, pairs)
        by_kind[kind] = round(len(pairs) / (time.perf_counter() - began))
    await verifier.aclose()
    return {
        "verdicts_per_second": round(max(ours)),
        "math_verify_in_process": round(max(theirs)),
        "ratio": round(max(ours) / max(theirs), 2),
        "by_kind": by_kind,  # once each, 100 pairs
        "left_to_sympy": f"1 in {SYMPY_EVERY}",
        "workers": 1,
        "pairs": PAIRS,
        "repeats": REPEATS,
        "wrong_verdicts": wrong,
    }


# ── bombs


async def bombs() -> dict[str, Any]:
    """Each bomb between a right and a wrong answer, in one group, settings as shipped."""
    plain = (("\\boxed{\\frac{2}{4}}", 1.0), ("A: 1/3", 0.0))
    responses = [text for bomb in BOMBS.values() for text in (plain[0][0], bomb, plain[1][0])]
    verifier = MathVerifier()
    await verifier.start()
    began = time.perf_counter()
    rollouts = [a_rollout(text, index) for index, text in enumerate(responses)]
    verdicts = await verifier.verify(Problem("p", "q", "0.5"), rollouts)
    elapsed_s = time.perf_counter() - began
    await verifier.aclose()
    outcomes = {
        name: verdict.error or f"reward {verdict.reward}"
        for name, verdict in zip(BOMBS, verdicts[1::3], strict=True)
    }
    return {
        "bombs": len(BOMBS),
        "recorded": sum(text.startswith(("timeout", "too long")) for text in outcomes.values()),
        "plain_answers": 2 * len(BOMBS),
        "plain_verdicts_right": sum(v.reward == plain[0][1] for v in verdicts[0::3])
        + sum(v.reward == plain[1][1] for v in verdicts[2::3]),
        "deadline_s": MathSettings().deadline_s,
        "elapsed_s": round(elapsed_s, 1),
        "outcomes": outcomes,
    }


# ── a log with its authors' flags


async def logged(path: Path) -> dict[str, Any]:
    """Lines of {answer, rollouts: [{response, reward}]}: our rewards beside the log's."""
    verifier = MathVerifier()
    pairs = [
        (str(line["answer"]), str(rollout["response"]), bool(rollout["reward"]))
        for line in map(json.loads, path.read_text("utf-8").splitlines())
        for rollout in line["rollouts"]
    ]
    rewards = list(itertools.chain(await rewards_of(verifier, pairs)))
    await verifier.aclose()
    same = sum(got == float(pair[2]) for got, pair in zip(rewards, pairs, strict=True))
    return {"rollouts": len(pairs), "same_as_the_log": same}


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {"math_verify": importlib.metadata.version("math-verify")}
    if "agreement" in options.only:
        report["agreement"] = await agreement(their_cases(options.sdist))
        for verifier in _VERIFIERS.values():
            await verifier.aclose()
    if "speed" in options.only:
        report["speed"] = await speed()
    if "bombs" in options.only:
        report["bombs"] = await bombs()
    if options.log:
        report["log"] = await logged(options.log)
    return report


def holds(report: dict[str, Any]) -> bool:
    agreed, fast, bombed = (report.get(part) for part in PARTS)
    return (
        (not agreed or agreed["same_as_math_verify"] >= AGREEING)
        and (not fast or (fast["verdicts_per_second"] >= PER_SECOND and not fast["wrong_verdicts"]))
        and (
            not bombed
            or (
                bombed["recorded"] == bombed["bombs"]
                and bombed["plain_verdicts_right"] == bombed["plain_answers"]
            )
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, help="its source distribution, instead of fetching")
    parser.add_argument("--log", type=Path, help="logged rollouts with their authors' rewards")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    report = asyncio.run(measured(parser.parse_args()))
    report["holds"] = holds(report)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
