"""Every help has an example, and every example does what it says.

What stands in `PARSED` is only read as a command line; the reason stands beside it.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from studio.cli import build_parser, walk_commands
from tests.support.processes import SMALL, running
from tests.support.run_studio import Result, run_here, studio
from tests.support.session_files import claude_lines, say, user

PARSED = {
    "studio run": "needs a screen",
    "studio attach": "needs a screen",
    "studio demo": "needs a screen",
    "studio runs replay": "needs a screen",
    "studio train": "takes minutes",
    "studio sweep": "takes minutes",
    "studio export": "needs a run that trained for minutes",
    "studio serve": "goes on until Ctrl-C",
    "studio rehearsal serve": "goes on until Ctrl-C",
    "studio library serve": "goes on until Ctrl-C",
    "studio compare rehearsal@step:0": "needs a run that evaluated",
    "studio runs trace": "needs a collector",
    "studio ctl watch": "goes on until the run ends",
    "studio review mine --wait": "goes on until the run ends",
    "studio review mine --mcp": "talks with a program",
    "studio review mine --editor": "opens an editor",
    "studio data review sessions": "asks a person",
}
FEW = ("evaluation.limit=4", "evaluation.data=arithmetic-heldout", "evaluation.k=1")
FILES = {
    "playbook.txt": "[chk-00001] helpful=5 harmful=0 :: Put the result back.\n",
    "skillbook.json": '{"skills": {"s-1": {"id": "s-1", "section": "x", "content": "Draw it."}}, '
    '"sections": {"x": ["s-1"]}, "next_id": 2}',
    "theirs.yaml": "experiences: [{id: E1, text: Draw it.}]\n",
    "my-problems.jsonl": '{"question": "What is 1 + 2?", "answer": "3"}\n' * 2,
    "my-session.jsonl": "".join(
        json.dumps(line) + "\n" for line in claude_lines("s", [user("Sort it"), say("Sorted.")])
    ),
    "before.csv": "problem,score\na,0\nb,1\n",
    "after.csv": "problem,score\na,1\nb,1\n",
    "exam.csv": "prompt,solution\nWhat is 2 + 2?,4\n",
    "my-rules.yaml": "rules: [{do: approve}]\n",
    "talks.jsonl": '{"messages": [{"role": "user", "content": "What is 2 + 3?"}]}\n',
    "downloads/aime24.jsonl": '{"Problem": "What is 7 + 7?", "Answer": 14}\n',
    "downloads/nq.jsonl": '{"question": "who", "golden_answers": ["I"]}\n',
    "downloads/deepmath-103k.jsonl": '{"question": "Find 3.", "final_answer": "3"}\n',
    "downloads/webwalkerqa.jsonl": "".join(
        f'{{"question": "Where is {level}?", "answer": "here", "root_url": "u", '
        f'"info": {{"difficulty_level": "{level}"}}}}\n'
        for level in ["easy"] * 12 + ["medium"] * 21 + ["hard"] * 18
    ),
    "my-run.yaml": "defaults: [rehearsal, _self_]\n",
}
COMMANDS = dict(walk_commands(build_parser()))
EXAMPLES = {
    path: [line.strip() for line in (command.epilog or "").splitlines()[2:] if line.strip()]
    for path, command in COMMANDS.items()
}


def texts(command: Any) -> list[str]:
    """What a person reads of a command, without its examples."""
    shown = [
        p for p in command.params if not getattr(p, "hidden", False) and "--help" not in p.opts
    ]
    return [command.help, *(p.help for p in shown)]


def test_every_help_has_an_example() -> None:
    assert [path for path, examples in EXAMPLES.items() if not examples] == []
    wrong = [e for path, found in EXAMPLES.items() for e in found if not e.startswith("studio")]
    assert wrong == []
    assert all(
        any(e.startswith(start) for found in EXAMPLES.values() for e in found) for start in PARSED
    )


def test_every_help_is_whole_sentences() -> None:
    found = {(path, text) for path, command in COMMANDS.items() for text in texts(command)}
    assert [(path, t) for path, t in found if not t or not t.strip().endswith(".")] == []
    # null and the names of files and commands keep their case.
    small = [(path, t) for path, t in found if not re.match(r"[A-Z`]|null ", t.strip())]
    assert small == []


@pytest.mark.parametrize(
    "path", [p for p, command in COMMANDS.items() if hasattr(command, "commands")]
)
def test_a_list_of_commands_cuts_no_sentence(path: str, workspace: Path) -> None:
    shown = studio(*path.split()[1:], "--help", workspace=workspace).stdout
    assert "..." not in shown.partition("Commands:")[2]


def test_every_example_runs(practised: Path) -> None:
    for name, text in FILES.items():
        (practised.parent / name).parent.mkdir(exist_ok=True)
        (practised.parent / name).write_text(text)
    every = dict.fromkeys(example for examples in EXAMPLES.values() for example in examples)
    living = [e for e in every if command_of(e).startswith("studio ctl") and not is_parsed(e)]
    late = [
        e for e in every if {"rm", "edit", "revert", "pin", "unpin"} & set(e.split())
    ]  # they take away
    for example in every:
        if is_parsed(example):
            path = command_of(example)
            COMMANDS[path].make_context(path, shlex.split(example)[len(path.split()) :]).close()
        elif example not in (*living, *late):
            check(example, studio(*words(example), workspace=practised))
    with running(practised, "rehearsal", *SMALL, "--name", "mine", "--review", "wait") as run:
        run.until("StageEntered", stage="review")
        for example in sorted(living, key=lambda e: ("stop" in e, "step" in e)):
            done = run_here(practised, *words(example))
            check(example, Result(done.stdout, done.stderr, done.returncode))
            if "stop" in example:
                break  # the other stops what has ended
    for example in late:
        check(example, studio(*words(example), workspace=practised))


def is_parsed(example: str) -> bool:
    return f"{example} ".startswith(tuple(f"{start} " for start in PARSED))


def command_of(example: str) -> str:
    return max((path for path in COMMANDS if f"{example} ".startswith(f"{path} ")), key=len)


def words(example: str) -> list[str]:
    """Of a command line; what takes settings practises and measures little."""
    path, found = command_of(example), shlex.split(example)[1:]
    takes = path in ("studio headless", "studio eval", "studio try")
    return [*found, *(SMALL if takes else ()), *(FEW if path == "studio eval" else ())]


def check(example: str, done: Result) -> None:
    assert done.code == 0, (example, done.stderr)
    assert done.stdout or done.stderr, example
