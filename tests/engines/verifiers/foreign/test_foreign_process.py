"""What the process of a user's function survives: hangs, deaths, and each other."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from engines.core.types import Verdict
from engines.process.tiers import find_tier
from engines.verifiers.foreign.verifier import FunctionSettings, FunctionVerifier, parse_message
from tests.support.builders import answering
from tests.support.foreign_files import PROBLEM, a_file, a_rollout, judged, judging

DIED = Verdict(None, error="failed: the verifier's process ended (crash, exit or out of memory)")
DEADLINE_S = 0.4
LATE = "timeout: no verdict within 0.4 s"

PLAIN = """
    import os, pathlib
    def verify_func(sample, timeout_score=0, **kwargs):
        pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
        while sample.response == "hang":
            pass
        if sample.response == "die":
            os._exit(3)
        return 1.0
    """

TOGETHER = """
    import asyncio, os, signal
    async def judge(task, response):
        for _ in range(3):
            await asyncio.sleep(0)  # the others begin meanwhile
        if response == "wait":
            await asyncio.Event().wait()
        while response == "block":
            pass
        if response == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        return {"reward": 1.0, "metrics": {"pid": os.getpid()}}
    """


@pytest.mark.parametrize("score", [None, 0.25])
async def test_a_function_that_hangs_is_killed_and_costs_its_own_verdict(
    tmp_path: Path, score: float | None
) -> None:
    path = a_file(tmp_path, PLAIN)
    verdicts = await judged(path, "5", "hang", "6", deadline_s=DEADLINE_S, timeout_score=score)
    assert (verdicts[0], verdicts[2]) == (Verdict(1.0), Verdict(1.0))
    if score is None:
        assert verdicts[1] == Verdict(None, error=LATE)
    else:
        assert verdicts[1] == Verdict(0.25, LATE, {"timeout": 1.0})


async def test_a_killed_process_is_gone(tmp_path: Path) -> None:
    path = a_file(tmp_path, PLAIN)
    await judged(path, "hang", deadline_s=DEADLINE_S)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_function_that_ends_its_process_costs_its_own_verdict(tmp_path: Path) -> None:
    verdicts = await judged(a_file(tmp_path, PLAIN), "5", "die", "6")
    assert verdicts == [Verdict(1.0), DIED, Verdict(1.0)]


async def test_an_edit_in_the_middle_of_a_run_does_not_reach_a_new_process(
    tmp_path: Path,
) -> None:
    path = a_file(tmp_path, PLAIN)
    verifier = FunctionVerifier(FunctionSettings(), path)
    await verifier.check()
    path.write_text("def verify_func(sample): return 0.0\n")
    rollouts = [a_rollout(text, n) for n, text in enumerate(["die", "5"])]
    died, good = await verifier.verify(PROBLEM, rollouts)  # the second by another process
    await verifier.aclose()
    assert (died, good) == (DIED, Verdict(1.0))


async def test_a_file_in_an_encoding_of_its_own_is_read_by_it(tmp_path: Path) -> None:
    source = "# coding: latin-1\ndef verify_func(sample): return float(sample.response == 'é')\n"
    path = tmp_path / "mine.py"
    path.write_bytes(source.encode("latin-1"))
    assert await judged(path, "é") == [Verdict(1.0)]


async def test_rubbish_on_the_socket_of_the_process_is_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        import os, sys
        def verify_func(sample):
            if sample.response == "bad":
                os.write(int(sys.argv[1]), b"\\xff{}[\\n[3]\\n")
            return 1.0
        """
    bad, good = await judged(a_file(tmp_path, source), "bad", "5")
    assert (bad, good) == (DIED, Verdict(1.0))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        (b'{"done": 3, "results": []}', True),
        (b'{"ask": 1, "call": 3, "messages": []}', True),
        (b'{"done": 3}', False),
        (b'{"done": [], "error": ""}', False),
        (b'{"call": 3}', False),
        (b"[" * 100_000, False),
        (b"null", False),
        (b"", False),
    ],
)
def test_only_a_whole_message_is_understood(line: bytes, is_one: bool) -> None:
    assert (parse_message(line) is not None) is is_one


async def test_coroutines_run_side_by_side_up_to_their_number(tmp_path: Path) -> None:
    source = """
        import asyncio
        running, gate = 0, asyncio.Barrier(4)
        async def judge(task, response):
            global running
            running += 1
            most = running
            await gate.wait()  # opens when four are in
            running -= 1
            return {"reward": 1.0, "metrics": {"running": most}}
        """
    verdicts = await judged(a_file(tmp_path, source), *"12345678", concurrency=4)
    assert [verdict.reward for verdict in verdicts] == [1.0] * 8
    assert max(verdict.metrics["running"] for verdict in verdicts) == 4


async def test_questions_to_the_judge_run_side_by_side(tmp_path: Path) -> None:
    source = """
        async def verify_func(sample, timeout_score=0, **kwargs):
            return float(await kwargs["llm"].query_one(messages=sample.response))
        """
    policy = answering(*["0.5"] * 20)
    verdicts = await judged(a_file(tmp_path, source), *["5"] * 20, asks=judging(policy))
    assert [verdict.reward for verdict in verdicts] == [0.5] * 20


async def test_a_coroutine_that_waits_for_ever_leaves_its_process_alone(tmp_path: Path) -> None:
    path = a_file(tmp_path, TOGETHER)
    verifier = FunctionVerifier(FunctionSettings(deadline_s=DEADLINE_S), path)
    rollouts = [a_rollout(text, n) for n, text in enumerate(["wait", "wait", "5"])]
    first, second, good = await verifier.verify(PROBLEM, rollouts)
    assert (first.error, second.error, good.reward) == (LATE, LATE, 1.0)
    (after,) = await verifier.verify(PROBLEM, [a_rollout("6")])
    await verifier.aclose()
    assert after.reward == 1.0


@pytest.mark.parametrize(("bad", "error"), [("block", LATE), ("die", DIED.error)])
async def test_who_hangs_or_kills_a_shared_process_is_found_out(
    tmp_path: Path, bad: str, error: str
) -> None:
    verdicts = await judged(a_file(tmp_path, TOGETHER), "5", bad, "6", "7", deadline_s=DEADLINE_S)
    assert [verdict.reward for verdict in verdicts] == [1.0, None, 1.0, 1.0]
    assert verdicts[1].error == error


async def test_a_cancelled_verdict_frees_its_process(tmp_path: Path) -> None:
    source = """
        import pathlib
        def verify_func(sample):
            if sample.response == "hang":
                pathlib.Path(__file__).with_name("began").write_text("now")
            while sample.response == "hang":
                pass
            return 1.0
        """
    os.mkfifo(tmp_path / "began")
    path = a_file(tmp_path, source)
    verifier = FunctionVerifier(FunctionSettings(deadline_s=600), path)
    task = asyncio.create_task(verifier.verify(PROBLEM, [a_rollout("hang")]))
    # Reading a pipe returns once the function has written into it.
    assert await asyncio.to_thread((tmp_path / "began").read_text) == "now"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await verifier.verify(PROBLEM, [a_rollout("5")]) == (Verdict(1.0),)
    await verifier.aclose()


async def test_several_processes_share_the_work(tmp_path: Path) -> None:
    source = """
        import os, pathlib
        def verify_func(sample):
            folder = pathlib.Path(__file__).parent
            (folder / f"in-{os.getpid()}").touch()
            while len(list(folder.glob("in-*"))) < 2:  # until the other one is in, too
                os.sched_yield()
            return 1.0
        """
    verdicts = await judged(a_file(tmp_path, source), "1", "2", "3", "4", workers=2)
    assert verdicts == [Verdict(1.0)] * 4


async def test_closing_answers_what_is_in_work(tmp_path: Path) -> None:
    path = a_file(tmp_path, PLAIN)
    verifier = FunctionVerifier(FunctionSettings(), path)
    await verifier.check()
    task = asyncio.create_task(verifier.verify(PROBLEM, [a_rollout("hang"), a_rollout("5", 1)]))
    await asyncio.sleep(0)
    await verifier.aclose()
    assert {verdict.error for verdict in await task} == {"failed: the verifier was closed"}
    await verifier.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the dumpable flag")
async def test_another_process_cannot_read_the_keys_of_the_process_of_a_function(
    tmp_path: Path,
) -> None:
    path = a_file(
        tmp_path,
        """
        import ctypes
        def verify_func(sample, timeout_score=0, **kwargs):
            return 1.0 if ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0 else 0.0
        """,
    )
    assert await judged(path, "5") == [Verdict(1.0)]


async def test_a_function_writes_in_its_temporary_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (await find_tier()).holds("landlock"):
        pytest.skip("this machine has no landlock")
    if tmp_path.is_relative_to("/dev/shm"):  # which stays open, for multiprocessing
        tmp_path = Path(tempfile.mkdtemp(dir="/tmp"))
    path = a_file(
        tmp_path,
        """
        import os, pathlib, tempfile
        def verify_func(sample, timeout_score=0, **kwargs):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(pathlib.Path(__file__).read_text())
            try:
                pathlib.Path(__file__).write_text("")
            except PermissionError:
                return 1.0
            return 0.0
        """,
    )
    place = Path(tempfile.mkdtemp())  # other tests have folders in the usual one
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert await judged(path, "5") == [Verdict(1.0)]
    assert path.read_text()
    assert not list(place.glob("studio-verifier-*"))
    shutil.rmtree(place)
    shutil.rmtree(tmp_path)


async def test_a_function_fills_the_caches_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, models = tmp_path / "home", tmp_path / "models"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(models))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    path = a_file(
        tmp_path,
        """
        import os, pathlib
        def verify_func(sample, timeout_score=0, **kwargs):
            for path in (pathlib.Path.home() / ".cache" / "own", os.environ["HF_HOME"]):
                folder = pathlib.Path(path)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "weights").write_text("x")
            return 1.0
        """,
    )
    assert await judged(path, "5") == [Verdict(1.0)]
    assert (home / ".cache" / "own" / "weights").exists() and (models / "weights").exists()
