"""Any program as the agent: started for each rollout in a box, it asks through a gateway.

Owns what the program is given (folder, arguments, environment) and how its answer is read. The
box is the runner's; no environment is read here.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engines.agents import guided_try, open, programs
from engines.agents.gateway.server import Gateway
from engines.core import codec, protocols
from engines.core.text.sanitize import escape_unsafe
from engines.core.types import Attempt, Job, Names, Network, Problem, Sampling, Tell

REWARD_FILE = "reward.json"
_SHOWN_LINES, _SHOWN_CHARS = 5, 600
_PLACEHOLDER = re.compile(r"\{(question|problem_file)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAgent:
    """Starts the program anew for each try, in a folder that is empty but for the problem.

    With `folders` a try has the same folder whenever it is made, so that a program which tells
    the model where it works asks the same after a restart; what a killed process left there is
    removed first. With `kept` the folders of tasks with graders are moved there.

    What a run file says of it comes first; `studio.config` refuses what cannot be meant.
    """

    command: Names
    problem_as: Literal["stdin", "argument", "file"] = "stdin"
    answer_from: str = "last_line"  # or "stdout", or "file:NAME"
    env: Mapping[str, str] = field(default_factory=dict)  # what is passed on
    network: Network = "none"
    allow_hosts: Names = ()  # "example.com", "*.example.com", "10.0.0.5:8000"
    readable: tuple[Path, ...] = ()  # what the program may read beside its own script
    sampling: Sampling
    runner: programs.ProgramRunner
    instructions: str = ""  # for requests without a system message of their own
    base: Path = Path()  # where relative paths of the command lie
    run_seed: int = 0
    folders: Path | None = None
    kept: Path | None = None
    tell: Tell = lambda _: None  # once, what a person should know
    _told: set[str] = field(default_factory=set, init=False)

    async def attempt(
        self, job: Job, policy: protocols.Policy, on_text: protocols.OnText | None = None
    ) -> Attempt:
        key = job.key
        name = programs.folder_name(job.problem, key.epoch, key.step, key.position, key.index)
        folder = self.folders / name if self.folders else Path(tempfile.mkdtemp(prefix="try-"))
        guided = guided_try.GuidedTry(
            policy, self.sampling, job.guidance, self.instructions, on_text
        )
        try:
            await asyncio.to_thread(lay_out_problem, folder, job.problem)
            async with Gateway(guided, self.allow_hosts) as gateway:
                result = await self._run(gateway, folder, job)
            if gateway.replaced:
                names = ", ".join(sorted(gateway.replaced))
                self._tell_once(f"the program sets {names}: the run's own settings are used")
            answer, error = self._read_answer(folder, result)
            if error and guided.failure:
                error += f"; its last failed call: {guided.failure}"
            reward = programs.read_left_file(folder, REWARD_FILE)
            if self.kept is not None and programs.task_folder(job.problem):
                await asyncio.to_thread(programs.keep_folder, folder, self.kept / name)
        finally:
            await asyncio.to_thread(programs.remove_folder, folder)
        metrics = {} if reward is None else self._read_metrics(reward)
        return guided.attempt(job.problem.asked, answer, error or None, metrics)

    async def _run(self, gateway: Gateway, folder: Path, job: Job) -> programs.ProgramResult:
        assert isinstance(gateway.guided, guided_try.GuidedTry)
        argv, readable = self._arguments(job.problem)
        # A box has all ports of its own, so the gateway's is free there: one address for both.
        program: programs.Program = await self.runner.start_program(
            argv,
            folder=folder,
            env={
                "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
                "LANG": "C.UTF-8",
                **self.env,
                **gateway.environment(),
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "STUDIO_SEED": str(codec.call_seed(self.run_seed, job.key)),
            },
            readable=readable,
            stdin=job.problem.asked.encode() if self.problem_as == "stdin" else b"",
            network="public" if self.network == "public" else "none",
            port=gateway.port,
        )
        ended = asyncio.ensure_future(program.wait())
        stopped = asyncio.ensure_future(gateway.guided.stopped.wait())
        try:
            # A quick one has ended by now, and its box has closed what it listened on.
            if program.listener is not None and program.listener.fileno() >= 0:
                await gateway.listen(program.listener)
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            if gateway.guided.fatal is not None:
                raise gateway.guided.fatal
            return ended.result()
        finally:
            ended.cancel()
            stopped.cancel()
            await asyncio.shield(program.kill())

    def _arguments(self, problem: Problem) -> tuple[list[str], tuple[Path, ...]]:
        """The command with the problem put in, and what it has to read."""
        values = {"question": problem.asked, "problem_file": "problem.txt"}
        argv, files = [], []
        for part in self.command:
            if (path := self.base / part).is_file():
                files.append(path.absolute())
                part = str(path.absolute())
            argv.append(_PLACEHOLDER.sub(lambda found: values[found[1]], part))
        given_as = {"argument": problem.asked, "file": values["problem_file"]}
        if not any(map(_PLACEHOLDER.search, self.command)):
            argv += filter(None, [given_as.get(self.problem_as)])
        return argv, (*files, *self.readable)

    def _read_answer(self, folder: Path, result: programs.ProgramResult) -> tuple[str, str]:
        """The answer, or "" and why there is none."""
        said = escape_unsafe(result.stderr).strip().splitlines()
        shown = "\n".join(said[-_SHOWN_LINES:])[-_SHOWN_CHARS:]
        because = f": {shown}" if shown else ", without a word on standard error"
        if result.status not in ("ok", "error"):
            return "", f"{result.status}: {result.error or 'the program was ended'}{because}"
        if result.error:
            return "", f"failed: {result.error}{because}"
        if code := result.returncode:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            return "", f"failed: the program ended with {how}{because}"
        source, where, text = self.answer_from, "standard output", result.stdout
        if source.startswith("file:"):
            where = source
            text = programs.read_left_file(folder, source.removeprefix("file:")) or ""
        lines = text.strip()[-programs.MOST_CHARS :].splitlines()
        answer = "\n".join(lines[-1:] if source == "last_line" else lines)
        return answer, "" if answer else f"empty: the program left no answer in {where}{because}"

    def _read_metrics(self, reward: str) -> Mapping[str, float]:
        try:
            return programs.parse_reward(reward)
        except (ValueError, RecursionError) as error:
            self._tell_once(f"{REWARD_FILE} of the program cannot be read: {error}")
            return {}

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(text)


def open_command(needs: open.AgentNeeds) -> CommandAgent:
    settings, folder = needs.settings, needs.folder
    same = ("command", "problem_as", "answer_from", "network", "allow_hosts", "instructions")
    return CommandAgent(
        **codec.fields_of(settings, *same),
        env={name: needs.environ[name] for name in settings.pass_env if name in needs.environ},
        readable=tuple(map(Path, settings.readable)),
        sampling=needs.sampling,
        runner=needs.runner,
        run_seed=needs.seed,
        folders=folder and folder / "tries",
        kept=folder and folder / "left",
        tell=needs.tell,
    )


def lay_out_problem(folder: Path, problem: Problem) -> None:
    """Make the folder of a try: question and options, and never what would tell the truth."""
    programs.remove_folder(folder)
    folder.mkdir(parents=True, mode=0o700)
    if (task := programs.task_folder(problem)) and (task / "environment").is_dir():
        programs.copy_folder(task / "environment", folder)
    (folder / "problem.txt").write_text(problem.asked, "utf-8")
    known = {"id": problem.id, "question": problem.asked, "options": dict(problem.options)}
    (folder / "problem.json").write_text(json.dumps(known, ensure_ascii=False), "utf-8")
