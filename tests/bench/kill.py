"""Runs that are killed again and again, and resumed, against one that never was.

    python -m tests.bench.kill --kills 200 --seed 1
    python -m tests.bench.kill --screen --kills 200 --seed 1

Starts a faulty endpoint of its own and real `studio headless` processes. Where a process
is killed is drawn over what a whole run writes: it is watched until its files have grown
that far, so that kills fall into every part of a run on any machine. Prints JSON; exits 1
where a killed run ended in any way other than the undisturbed one. With `--screen` a robot
decides at real screens, and they are killed as well: `tests.bench.kill_screen`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson

from engines.record import lines
from engines.record.run_dir import Workspace
from tests.bench import kill_screen
from tests.bench.outcome import left
from tests.support.forked_studio import STUDIO, ForkedStudio

RUN = "kill"
SETTINGS = (
    "policy=openai:rehearsal",
    "policy.api_key=none",
    "practice.epochs=1",
    "practice.batch_size=3",
    "practice.group_size=3",
    "data.truncate=9",
    "evaluation.do_eval=false",
)
KINDS = (
    "500,503,429,429-later,refused,dropped,reset,cut,empty,not-json,html,other-json,"
    "broken,broken,broken,broken,filtered,length,thought"
)
"""Faults that follow from the request alone. Those that hang end by a deadline, hence by the
clock, and what a loaded machine makes of a deadline is no property of a resume."""
KILLS_A_RUN = 6
UNDER_WAY = 9
"""Calls at a time in these runs, at most: the rollouts of a step."""
BARREN = 5
"""Runs in a row without a single kill after which something is wrong with the bench."""
WATCHED_S = 0.002
LONGEST_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What one run came to."""

    library: Any
    decisions: list[Any]
    twice: int  # replies recorded more than once under the same key, whatever was asked
    doubled: int  # operations decided, or steps committed, more than once
    code: int
    served: int = 0  # whole replies that the endpoint gave meanwhile
    kills: int = 0
    at: list[str] = field(default_factory=list)  # the last event each kill left in the journal

    def beyond(self, other: Outcome) -> int:
        """Whole replies that were paid, not recorded, and not under way at a kill either.

        A kill loses at most what is under way, and each start asks once whether the model
        is there; all else is asked once in a run that is killed as in one that is not.
        """
        spared = self.kills * (UNDER_WAY + 1)
        return max(self.served - other.served - spared, 0)

    def same(self, other: Outcome) -> bool:
        mine = (self.library, self.decisions, self.code)
        return mine == (other.library, other.decisions, other.code)


def measure(kills: int, seed: int, share: float, kinds: str = KINDS) -> dict[str, Any]:
    """Kill and resume until there were so many kills; returns what is printed."""
    draw = random.Random(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kill-") as place, endpoint(share, seed, kinds) as url:
        settings = [*SETTINGS, f"policy.base_url={url}", f"seed={seed}"]
        undisturbed = Path(place) / "undisturbed"
        code = _started(undisturbed, settings).wait(LONGEST_S)
        wanted = outcome(undisturbed, code)
        wanted.served = _served(url)
        size = progress(undisturbed)
        found: list[Outcome] = []
        while (left := kills - sum(run.kills for run in found)) > 0:
            workspace = Path(place) / f"run-{len(found) + 1}"
            places = sorted(draw.randrange(-size // 20, size) for _ in range(KILLS_A_RUN))
            before = _served(url)
            found.append(killed(workspace, settings, places[:left]))
            found[-1].served = _served(url) - before
            if not any(run.kills for run in found[-BARREN:]) and len(found) >= BARREN:
                raise RuntimeError(f"{BARREN} runs in a row ended before they could be killed")
    return {
        "kills": sum(run.kills for run in found),
        "runs": len(found),
        "seed": seed,
        "share_of_faults": share,
        "undisturbed": {
            "code": wanted.code,
            "experiences": len(wanted.library["experiences"]),
            "decisions": len(wanted.decisions),
        },
        "equal": [run.same(wanted) for run in found],
        "all_equal": all(run.same(wanted) for run in found),
        "replies_paid_twice": sum(run.twice for run in (wanted, *found)),
        "replies_served_beyond_kills": sum(run.beyond(wanted) for run in found),
        "doubled": sum(run.doubled for run in (wanted, *found)),
        "killed_after": dict(Counter(kind for run in found for kind in run.at).most_common()),
        "wall_s": round(time.monotonic() - began, 1),
    }


def killed(workspace: Path, settings: Sequence[str], places: Sequence[int]) -> Outcome:
    """One run, killed when its files have grown to each of these sizes, then left to end."""
    count, at = 0, []
    for place in places:
        process = _started(workspace, settings)
        if not _grown(process, workspace, place):
            break  # it ended before
        process.kill()
        process.wait()
        count += 1
        at.append(_last_event(workspace))
    code = _started(workspace, settings).wait(LONGEST_S)
    done = outcome(workspace, code)
    done.kills, done.at = count, at
    return done


def outcome(workspace: Path, code: int) -> Outcome:
    """Read what a run left."""
    library, decisions, decided = left(workspace, RUN)
    run = Workspace(workspace).run(RUN)
    paid: Counter[str] = Counter()
    for path in sorted(run.records.glob("*.jsonl")):
        for line in lines.read(path, chained=False).lines:
            record = orjson.loads(line.body)
            if not record.get("lost"):
                paid[str(record["key"])] += 1
    return Outcome(
        library,
        decisions,
        sum(n - 1 for n in paid.values()),
        sum(n - 1 for n in decided.values()),
        code,
    )


def progress(workspace: Path) -> int:
    """Bytes of journals and records so far."""
    run = workspace / "runs" / RUN
    places = [run / "journal.jsonl", workspace / "libraries" / RUN / "journal.jsonl"]
    total = 0
    for path in [*places, *run.glob("records/*.jsonl")]:
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _grown(process: subprocess.Popen[bytes], workspace: Path, size: int) -> bool:
    """Watch until a process has written so much; False where it ends before.

    A size below 0 is the moment at which it holds the run and has written nothing.
    """
    until = time.monotonic() + LONGEST_S
    holder = workspace / "runs" / RUN / ".holder"
    while process.poll() is None:
        if holder.exists() and progress(workspace) >= size:
            return True
        if time.monotonic() > until:
            process.kill()
            raise TimeoutError(f"{workspace}: no end within {LONGEST_S:g} s")
        time.sleep(WATCHED_S)
    return False


def _last_event(workspace: Path) -> str:
    try:
        found = lines.read(workspace / "runs" / RUN / "journal.jsonl", chained=True)
    except FileNotFoundError:
        return "nothing"
    kind = orjson.loads(found.lines[-1].body)["kind"] if found.lines else "nothing"
    return f"torn after {kind}" if found.torn else str(kind)


def _started(workspace: Path, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*STUDIO, "--workspace", str(workspace), "headless"]
    return ForkedStudio(
        [*command, "rehearsal", "--name", RUN, *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _served(url: str) -> int:
    """Whole replies that the endpoint has given so far."""
    with urlopen(url.removesuffix("/v1") + "/faults", timeout=LONGEST_S) as told:
        return int(orjson.loads(told.read())["good"])


@contextmanager
def endpoint(share: float, seed: int, kinds: str) -> Iterator[str]:
    """A faulty endpoint in a process of its own; yields its address."""
    module = [sys.executable, "-m", "tests.support.faulty_endpoint", "--kinds", kinds]
    with subprocess.Popen(
        [*module, "--share", str(share), "--seed", str(seed)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.2, help="of the requests that fail")
    parser.add_argument("--screen", action="store_true", help="decide at screens, and kill those")
    given = parser.parse_args()
    if given.screen:
        seated = kill_screen.measure(given.kills, given.seed)
        print(json.dumps(seated, indent=2))
        return 0 if kill_screen.is_good(seated) and kill_screen.is_quick(seated) else 1
    found = measure(given.kills, given.seed, given.share)
    print(json.dumps(found, indent=2))
    wrong = ("replies_paid_twice", "replies_served_beyond_kills", "doubled")
    whole = found["undisturbed"]["code"] in (0, 4)  # a bug would end all of them alike
    good = whole and found["all_equal"] and not any(found[name] for name in wrong)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
