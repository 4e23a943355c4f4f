"""The grader of a task folder: `tests/test.sh`, in a box that the agent never touched.

Layout of the box, and what tells of it: `app/`, where it begins, holds a copy of what the agent
left (`STUDIO_APP`), `tests/` a copy of the tests (`STUDIO_TESTS`), and into `logs/verifier/` it
writes its reward (`STUDIO_LOGS`). What is not known is never reward 0.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from engines.agents import programs
from engines.core.frozen import frozen
from engines.core.protocols import Verifier
from engines.core.text.sanitize import escape_unsafe
from engines.core.types import Problem, Rollout, Verdict
from engines.process.start import ScratchFolder
from engines.verifiers.independent import failed_verdict
from engines.verifiers.stated_answer import short_text

_START = ("bash", "-c", 'cd app && exec bash "$STUDIO_TESTS/test.sh"')


@frozen
class HarborVerifier(Verifier):
    """`kept` is where `CommandAgent` moved the folders of its tries."""

    runner: programs.ProgramRunner
    kept: Path

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> tuple[Verdict, ...]:
        return tuple([await self._verify_one(problem, rollout) for rollout in rollouts])

    async def _verify_one(self, problem: Problem, rollout: Rollout) -> Verdict:
        if failed := failed_verdict(rollout):
            return failed
        name = programs.folder_name(
            problem, rollout.epoch, rollout.step, rollout.position, rollout.index
        )
        task, left = programs.task_folder(problem), self.kept / name
        if task is None or not left.is_dir():
            lost = "the files that the agent left were not kept" if task else "it is no task folder"
            return Verdict(None, error=f"failed: {lost}")
        scratch = ScratchFolder("grader-")
        folder = Path(scratch.path)
        try:
            result = await self._grade(folder, task, left)
            return await asyncio.to_thread(_read_verdict, folder, result)
        except Exception as error:  # a grader that does not start is a fact of this rollout
            return Verdict(None, error=f"failed: the grader: {type(error).__name__}: {error}")
        finally:
            await asyncio.to_thread(programs.remove_folder, folder)
            scratch.remove()

    async def _grade(self, folder: Path, task: Path, left: Path) -> programs.ProgramResult:
        await asyncio.to_thread(programs.copy_folder, left, folder / "app")
        await asyncio.to_thread(programs.copy_folder, task / "tests", folder / "tests")
        (folder / "logs" / "verifier").mkdir(parents=True)
        env = {f"STUDIO_{name.upper()}": str(folder / name) for name in ("app", "tests", "logs")}
        env |= {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
        env |= {"HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
        program: programs.Program = await self.runner.start_program(_START, folder=folder, env=env)
        try:
            return await program.wait()
        finally:
            await asyncio.shield(program.kill())


def _read_verdict(folder: Path, result: programs.ProgramResult) -> Verdict:
    logs = folder / "logs" / "verifier"
    safe = not any(at.is_symlink() for at in (logs, logs.parent))
    texts = (programs.read_left_file(logs, f"reward.{kind}") for kind in ("json", "txt") if safe)
    text = next((text for text in texts if text is not None), None)
    said = short_text(escape_unsafe(result.stderr).strip()[-400:], 300)
    if result.status not in ("ok", "error"):
        return Verdict(None, error=f"{result.status}: the grader was ended: {said}")
    if text is None:
        return Verdict(None, error=f"failed: the grader left no reward: {said or 'silently'}")
    try:
        metrics = dict(programs.parse_reward(text))
    except (ValueError, RecursionError) as error:
        return Verdict(None, error=f"unparsable: the grader's reward: {error}")
    reward = metrics.pop("reward")
    if not 0 <= reward <= 1:
        return Verdict(None, metrics=metrics, error=f"unparsable: the reward is {reward:g}")
    return Verdict(reward, metrics=metrics)
