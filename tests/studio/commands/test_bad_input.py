"""Every command and every class of bad argument or input: exit 2, a message, nothing lost.

One table. A message names the place, the cause and the next move; the workspace is byte
for byte what it was. `NO_SUCH_INPUT` says why a command has no row in a class, and a test
holds table and command line together.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import typer

from engines.record import libraries
from engines.record.lock import write_lock
from studio.cli import app
from tests.support.processes import SMALL
from tests.support.run_studio import studio

Class = Literal[
    "missing",  # what must be given is not
    "not there",  # it names something that does not exist
    "unreadable",  # it is there and cannot be read: a folder, bytes that are no text
    "wrong type",  # a number where a text is needed, or the other way round
    "wrong format",  # read, and not what it should be
    "empty",  # nothing in it
    "locked",  # someone else writes there
    "damaged",  # a line that fails its checksum
    "contradictory",  # each is fine, together they are not
]
CLASSES: tuple[Class, ...] = Class.__args__  # type: ignore[attr-defined]

Prepare = Callable[[Path], None]
"""Changes a workspace in which run and library `rehearsal` are whole."""


@dataclass(frozen=True)
class Row:
    command: str
    kind: Class
    words: tuple[str, ...]  # of the command line, after the command
    says: tuple[str, ...]  # all of these stand in the message
    prepare: tuple[Prepare, ...] = ()
    typed: str = ""


def bad(
    command: str, kind: Class, words: str, *says: str, do: Prepare | None = None, typed: str = ""
) -> Row:
    return Row(command, kind, tuple(words.split()), says, (do,) if do else (), typed)


def a_file(name: str, content: str | bytes) -> Prepare:
    """Beside the workspace, where commands run."""

    def prepare(workspace: Path) -> None:
        path = workspace.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return prepare


def a_folder(name: str) -> Prepare:
    return lambda workspace: (workspace.parent / name).mkdir()


def a_damaged(name: str, *, line: int | None = 0) -> Prepare:
    """Flip one bit in the middle of a line of a file of the workspace; None: of every line."""

    def prepare(workspace: Path) -> None:
        path = workspace / name
        lines = path.read_bytes().splitlines(keepends=True)
        for number in range(len(lines)) if line is None else [line]:
            whole, middle = lines[number], len(lines[number]) // 2
            lines[number] = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes(b"".join(lines))

    return prepare


def an_archive(name: str, *, most: int | None = None) -> Prepare:
    """Of the run, or its first so many bytes."""

    def prepare(workspace: Path) -> None:
        file = workspace.parent / name
        made = studio("runs", "archive", "rehearsal", "--to", str(file), workspace=workspace)
        assert made.code == 0
        file.write_bytes(file.read_bytes()[:most])

    return prepare


def a_loop(name: str) -> Prepare:
    """A link to itself, beside the workspace."""
    return lambda workspace: (workspace.parent / name).symlink_to(name)


def unreachable(workspace: Path) -> None:
    """A run file whose model answers nobody: the port was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = f"policy: {{model: openai:m, base_url: 'http://127.0.0.1:{port}/v1', max_retries: 0}}\n"
    (workspace.parent / "dead.yaml").write_text(text + "data: {practice: arithmetic}\n")


RUN = "runs/rehearsal/journal.jsonl"
LIBRARY = "libraries/rehearsal/journal.jsonl"
ROWS_OF = '{"question": "1+1?", "answer": "2"}\n'
NOT_TEXT = b"\xff\xfe\x00\x81 not text \x9f"
NO_INT = b"policy: rehearsal\nseed: !!int x\n"
NO_YAML = "policy: [rehearsal\n  data: }"
DEEP = "[" * 1_000  # as many as Python calls go deep; a scanner takes the square of it
ASKING = "policy: {model: 'openai:m', "
AGENT_LACKS = "name: solver\nmystery: 1\n"


def together(*each: Prepare) -> Prepare:
    def prepare(workspace: Path) -> None:
        for one in each:
            one(workspace)

    return prepare


ACE = a_file("x.txt", "[slug-00001] helpful=5 harmful=0 :: Write the carry down.\n")
ACE_AND_DAMAGE = together(ACE, a_damaged(LIBRARY))
ONE = a_file("practice/datasets/one.jsonl", ROWS_OF)
ONE_AND_FOLDER = together(ONE, a_folder("here"))
ONE_AND_LIST = together(ONE, a_file("x.json", "[1]"))
ONE_AND_OBJECT = together(ONE, a_file("x.json", '{"a": 1}'))

TABLE: tuple[Row, ...] = (
    # studio
    bad("", "wrong format", "--nonsense", "No such option", "studio -h"),
    bad("", "not there", "practise", "No such command", "studio -h"),
    bad("", "not there", "stop", "Did you mean `studio ctl stop`?"),
    bad("", "not there", "data show", "studio data:", "preview"),
    # run: what it is given is read by the process it starts
    bad("run", "missing", "", "studio run rehearsal"),
    bad("run", "wrong format", "rehearsal --nonsense", "No such option", "studio run -h"),
    # attach
    bad("attach", "not there", "nobody", "nobody", "rehearsal"),
    bad("attach", "wrong format", "../up", "../up"),
    bad("attach", "damaged", "rehearsal", "doctor --repair", do=a_damaged(RUN)),
    # init
    bad("init", "not there", "nonsense", "nonsense", "There are: api"),
    bad("init", "missing", "", "studio init", "studio init rehearsal"),
    bad("init", "empty", "--to=", "--to", "never overwritten"),
    bad(
        "init",
        "unreadable",
        "rehearsal --to here",
        "here",
        "never overwritten",
        do=a_folder("here"),
    ),
    bad(
        "init",
        "contradictory",
        "rehearsal --to is.yaml",
        "is.yaml",
        "never overwritten",
        do=a_file("is.yaml", "x: 1"),
    ),
    bad("init", "missing", "rehearsal --to", "--to", "requires an argument"),
    bad(
        "init",
        "wrong type",
        "rehearsal --to no/such/folder/x.yaml",
        "no/such/folder",
        "cannot be written",
    ),
    # try
    bad("try", "missing", "", "Missing argument", "studio try -h"),
    bad("try", "not there", "nonsense.yaml", "nonsense.yaml", "Presets:"),
    bad("try", "not there", "rehearsal --problem nobody", "nobody", "ids"),
    bad("try", "not there", "rehearsal --library nobody", "nobody", "rehearsal"),
    bad("try", "unreadable", "here", "here", "no file", do=a_folder("here")),
    bad("try", "unreadable", "x.yaml", "x.yaml", "UTF-8 text", do=a_file("x.yaml", NOT_TEXT)),
    bad("try", "wrong type", "rehearsal practice.epochs=many", "practice.epochs", "whole number"),
    bad("try", "wrong format", "x.yaml", "x.yaml:", "YAML is broken", do=a_file("x.yaml", NO_YAML)),
    bad("try", "wrong format", "x.yaml", "x.yaml", "cannot be read", do=a_file("x.yaml", NO_INT)),
    bad("try", "empty", "x.yaml", "x.yaml", "policy", do=a_file("x.yaml", "")),
    bad(
        "try",
        "damaged",
        "rehearsal --library rehearsal",
        LIBRARY,
        "checksum",
        do=a_damaged(LIBRARY),
    ),
    bad("try", "contradictory", "rehearsal --problem x --question y", "--problem", "--question"),
    # train
    bad("train", "missing", "", "studio train grpo-tiny"),
    bad("train", "missing", "grpo-tiny --stage sft sft.data=null", "sft.data", "demonstrations"),
    bad("train", "not there", "nonsense.yaml", "nonsense.yaml", "Presets:"),
    bad("train", "not there", "grpo-tiny --stage ppo", "ppo", "'sft', 'grpo', 'all'"),
    bad("train", "not there", "grpo-tiny policy.model=hf:./gone", "gone", "no folder"),
    bad("train", "not there", "grpo-tiny policy.adapter=run:nobody", "nobody", "policy.adapter"),
    bad("train", "unreadable", "here", "here", "no file", do=a_folder("here")),
    bad(
        "train",
        "unreadable",
        "grpo-tiny policy.model=hf:bare",
        "bare",
        "tokenizer",
        do=a_file("bare/config.json", '{"model_type": "llama"}'),
    ),
    bad("train", "wrong type", "grpo-tiny grpo.learning_rate=fast", "grpo.learning_rate", "number"),
    bad("train", "wrong type", "grpo-tiny --restart-step soon", "--restart-step", "null"),
    bad("train", "wrong format", "grpo-tiny practice.algorithm=ppo", "ppo", "multi_step_grpo"),
    bad(
        "train",
        "wrong format",
        "grpo-tiny grpo.learning_rat=0.1",
        "grpo.learning_rat",
        "learning_rate",
    ),
    bad(
        "train",
        "empty",
        "grpo-tiny data.practice=x.jsonl",
        "x.jsonl",
        "no problem",
        do=a_file("x.jsonl", ""),
    ),
    bad(
        "train",
        "wrong format",
        "grpo-tiny data.practice=x.jsonl",
        "x.jsonl:1",
        '"answer" is missing',
        do=a_file("x.jsonl", '{"question": "1+1?"}\n'),
    ),
    bad("train", "contradictory", "rehearsal", "practice.algorithm", "studio headless"),
    bad("train", "contradictory", "grpo-tiny policy.model=rehearsal", "policy.model", "hf:"),
    bad("train", "contradictory", "grpo-tiny policy.top_p=0.9", "policy.top_p", "policy's own"),
    # export
    bad("export", "missing", "rehearsal --adapter", "--to"),
    bad("export", "missing", "rehearsal --to out", "--merged, --adapter", "exactly one"),
    bad("export", "missing", "rehearsal --adapter --to out", "trained no weights", "studio train"),
    bad("export", "not there", "nobody --adapter --to out", "nobody", "rehearsal"),
    bad(
        "export",
        "not there",
        "rehearsal --adapter --to out --step 2",
        "step 2",
        "there are 1",
        do=a_file("practice/runs/rehearsal/checkpoints/x/global_step_1/digest.json", "{}"),
    ),
    bad(
        "export",
        "unreadable",
        "rehearsal --adapter --to out",
        "digest.json",
        "earlier checkpoint",
        do=a_file("practice/runs/rehearsal/checkpoints/x/global_step_1/digest.json", NOT_TEXT),
    ),
    bad("export", "wrong type", "rehearsal --adapter --to out --step one", "--step"),
    bad("export", "wrong format", "../up --adapter --to out", "../up"),
    bad(
        "export",
        "empty",
        "rehearsal --adapter --to out",
        "digest.json",
        do=a_file("practice/runs/rehearsal/checkpoints/x/global_step_1/digest.json", ""),
    ),
    bad("export", "damaged", "rehearsal --adapter --to out", RUN, do=a_damaged(RUN)),
    bad("export", "contradictory", "rehearsal --adapter --merged --to out", "exactly one"),
    bad(
        "export",
        "contradictory",
        "rehearsal --adapter --to here",
        "not empty",
        do=a_file("here/x", "mine"),
    ),
    bad("export", "contradictory", "rehearsal --adapter --to out --best --step 1", "Give one"),
    bad("export", "contradictory", "rehearsal --adapter --to out --serve-with tgi", "vllm"),
    # headless
    bad("headless", "missing", "", "studio headless rehearsal"),
    bad("headless", "not there", "nonsense.yaml", "nonsense.yaml", "Presets:"),
    bad("headless", "not there", "rehersal", "rehersal", "rehearsal"),
    bad(
        "headless",
        "not there",
        "rehearsal data.practice=nobody",
        "data.practice=nobody",
        "Searched",
    ),
    bad("headless", "not there", "rehearsal library.start=nobody@1", "nobody", "--accept-changes"),
    bad(
        "headless",
        "not there",
        "rehearsal library.start=rehearsal@99",
        "rehearsal@99",
        "--accept-changes",
    ),
    bad("headless", "not there", "rehearsal --review rules:no.yaml", "no.yaml", "cannot be read"),
    bad("headless", "not there", "--resume nobody", "nobody", "rehearsal"),
    bad(
        "headless",
        "not there",
        "dead.yaml",
        "policy openai:m",
        "127.0.0.1",
        "base_url",
        do=unreachable,
    ),
    bad(
        "headless", "not there", "rehearsal --name n policy=openai:gpt", "OPENAI_API_KEY", "no key"
    ),
    bad("headless", "not there", "rehearsal policy=parrot", "parrot", "--accept-changes"),
    bad("headless", "not there", "rehearsal verifier.file=no.py", "no.py", "no such file"),
    bad("headless", "not there", "--from-youtu nowhere --config-name x", "nowhere", "checkout"),
    bad("headless", "unreadable", "here", "here", "no file", do=a_folder("here")),
    bad("headless", "unreadable", "x.yaml", "x.yaml", "UTF-8 text", do=a_file("x.yaml", NOT_TEXT)),
    bad(
        "headless",
        "unreadable",
        "rehearsal --name n data.practice=x.jsonl",
        "x.jsonl",
        "UTF-16",
        do=a_file("x.jsonl", NOT_TEXT),
    ),
    bad("headless", "wrong type", "rehearsal practice.batch_size=0", "practice.batch_size", "1"),
    bad(
        "headless",
        "wrong type",
        "rehearsal practice.epochs=many",
        "practice.epochs",
        "whole number",
    ),
    bad("headless", "wrong type", "rehearsal practice=5", "practice", "differ"),
    bad("headless", "wrong type", "rehearsal --restart-step soon", "--restart-step", "null"),
    bad("headless", "wrong type", "rehearsal --review maybe", "maybe", "auto"),
    bad("headless", "wrong type", "rehearsal budget.calls=-1", "budget.calls", "at least 1"),
    bad("headless", "wrong format", "rehearsal practice.epoch=2", "practice.epoch", "epochs"),
    bad("headless", "wrong format", "rehearsal epochs", "epochs", "does not fit"),
    bad(
        "headless",
        "wrong format",
        "x.yaml",
        "x.yaml:",
        "YAML is broken",
        do=a_file("x.yaml", NO_YAML),
    ),
    bad("headless", "wrong format", "rehearsal --name ../up", "up", "must be letters"),
    bad(
        "headless",
        "wrong format",
        "rehearsal --name n data.practice=x.jsonl",
        "x.jsonl:1",
        "not JSON",
        do=a_file("x.jsonl", "{not json}\n"),
    ),
    bad(
        "headless",
        "wrong format",
        "rehearsal --review rules:r.yaml",
        "r.yaml:",
        "approve",
        do=a_file("r.yaml", "rules:\n  - do: aprove\n"),
    ),
    bad("headless", "empty", "x.yaml", "x.yaml", "policy", do=a_file("x.yaml", "")),
    bad(
        "headless",
        "empty",
        "rehearsal --name n data.practice=x.jsonl",
        "x.jsonl",
        "no problem",
        do=a_file("x.jsonl", ""),
    ),
    bad("headless", "empty", "rehearsal --name=", "--name", "must be letters"),
    bad("headless", "locked", "rehearsal practice.epochs=3", "attach", "ctl stop", "--name"),
    bad("headless", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad(
        "headless",
        "damaged",
        "rehearsal practice.epochs=3",
        LIBRARY,
        "doctor",
        do=a_damaged(LIBRARY),
    ),
    bad("headless", "contradictory", "rehearsal --resume rehearsal", "--resume", "RUNFILE"),
    bad("headless", "contradictory", "--resume rehearsal --name other", "--resume", "--name"),
    bad("headless", "contradictory", "rehearsal seed=9", "seed", "--accept-changes"),
    bad("headless", "contradictory", "rehearsal --restart-step 99", "99", "1 to 2"),
    bad(
        "headless",
        "contradictory",
        "rehearsal --name n library.name=rehearsal",
        "rehearsal",
        "library.name",
    ),
    bad(
        "headless",
        "contradictory",
        "rehearsal evaluation.do_eval=true evaluation.data=[]",
        "evaluation",
        "evaluation.data",
    ),
    bad("headless", "contradictory", "rehearsal --config-name x", "--from-youtu", "DIR too"),
    # review
    bad("review", "not there", "nobody", "nobody", "rehearsal"),
    bad("review", "empty", "", "run", "no run", do=lambda w: (w / RUN).unlink()),
    bad("review", "locked", "rehearsal", "runs/rehearsal", "another process"),
    bad("review", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad("review", "wrong format", "../up", "up", "letters"),
    # gate
    bad("gate", "missing", "", "RUN"),
    bad("gate", "not there", "nobody", "nobody", "rehearsal"),
    bad("gate", "not there", "rehearsal op9.9", "op9.9", "not open"),
    bad("gate", "wrong type", "rehearsal --problems many", "--problems", "number"),
    bad("gate", "wrong format", "../up", "up", "letters"),
    bad("gate", "empty", "rehearsal", "rehearsal", do=lambda w: (w / RUN).unlink()),
    bad("gate", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    # eval
    bad("eval", "missing", "", "studio eval rehearsal"),
    bad("eval", "not there", "nonsense.yaml", "nonsense.yaml", "Presets:"),
    bad("eval", "not there", "rehearsal --library nobody", "nobody", "rehearsal"),
    bad("eval", "not there", "rehearsal --baseline rehearsal@99", "rehearsal@99", "0 to 2"),
    bad("eval", "not there", "rehearsal --agent no.yaml", "no.yaml", "no such file"),
    bad("eval", "unreadable", "x.yaml", "x.yaml", "UTF-8 text", do=a_file("x.yaml", NOT_TEXT)),
    bad(
        "eval", "unreadable", "rehearsal --agent here", "here", "no such file", do=a_folder("here")
    ),
    bad("eval", "wrong type", "rehearsal --k few", "--k", "whole number"),
    bad("eval", "wrong type", "rehearsal --k 0", "--k", "at least 1"),
    bad(
        "eval",
        "wrong format",
        "rehearsal --agent a.yaml",
        "a.yaml",
        "YAML is broken",
        do=a_file("a.yaml", NO_YAML),
    ),
    bad(
        "eval",
        "wrong format",
        "rehearsal --agent a.yaml",
        "mystery",
        "Known here",
        do=a_file("a.yaml", AGENT_LACKS),
    ),
    bad("eval", "empty", "rehearsal --agent a.yaml", "a.yaml", "empty", do=a_file("a.yaml", "")),
    bad(
        "eval",
        "damaged",
        "rehearsal --library rehearsal",
        LIBRARY,
        "checksum",
        do=a_damaged(LIBRARY),
    ),
    bad(
        "eval",
        "contradictory",
        "rehearsal --agent a.yaml --library none",
        "--agent",
        "--library",
        do=a_file("a.yaml", "name: a\n"),
    ),
    # diff
    bad("diff", "missing", "rehearsal@0", "Missing argument", "-h"),
    bad("diff", "not there", "rehearsal@0 rehearsal@99", "rehearsal@99", "0 to 2"),
    bad("diff", "not there", "rehearsal@0 nobody", "nobody", "no library"),
    bad("diff", "not there", "rehearsal@0 rehearsal@epoch:99", "epoch", "0 to 1"),
    bad(
        "diff",
        "unreadable",
        "rehearsal@0 x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", NOT_TEXT),
    ),
    bad("diff", "unreadable", "rehearsal@0 ./here", "here", "no library", do=a_folder("here")),
    bad("diff", "wrong type", "rehearsal@0 rehearsal@one", "rehearsal@one", "no such label"),
    bad("diff", "wrong type", "rehearsal@0 rehearsal@1 --format pdf", "--format", "html"),
    bad(
        "diff",
        "wrong format",
        "rehearsal@0 x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", NO_YAML),
    ),
    bad(
        "diff",
        "empty",
        "rehearsal@0 x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", ""),
    ),
    bad("diff", "damaged", "rehearsal@0 rehearsal@1", LIBRARY, "checksum", do=a_damaged(LIBRARY)),
    bad(
        "diff",
        "contradictory",
        "rehearsal@0 rehearsal@1 --format html --json",
        "--json",
        "Leave one",
    ),
    # report
    bad("report", "missing", "", "Missing argument", "-h"),
    bad("report", "not there", "nobody", "nobody", "rehearsal"),
    bad("report", "not there", "rehearsal --md no/such/x.md", "no/such", "cannot be written"),
    bad("report", "wrong type", "rehearsal --md here", "here", "cannot", do=a_folder("here")),
    bad("report", "wrong format", "../up", "up", "letters"),
    bad("report", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad("report", "damaged", "rehearsal", LIBRARY, "checksum", do=a_damaged(LIBRARY)),
    bad("report", "contradictory", "rehearsal --html x.html --md x.md", "--html", "Give one"),
    bad("report", "contradictory", "rehearsal --md x.md --json", "--json", "Give one"),
    # compare
    bad("compare", "missing", "", "Missing argument", "-h"),
    bad("compare", "not there", "nobody rehearsal", "nobody", "There are: rehearsal"),
    bad("compare", "not there", "gone.csv rehearsal", "gone.csv", "no such file"),
    bad("compare", "unreadable", "x.csv x.csv", "x.csv", "UTF-8", do=a_file("x.csv", NOT_TEXT)),
    bad("compare", "wrong type", "a b --min-effect much", "--min-effect", "-h"),
    bad("compare", "wrong format", "x.json x.json", "x.json", "cut", do=a_file("x.json", "{")),
    bad("compare", "empty", "x.csv x.csv", "x.csv:1", "empty", do=a_file("x.csv", "")),
    bad("compare", "damaged", "rehearsal rehearsal", RUN, "checksum", do=a_damaged(RUN)),
    bad("compare", "contradictory", "a b --json --format md", "--json", "Leave one"),
    # sweep
    bad("sweep", "missing", "rehearsal", "Missing argument", "-h"),
    bad("sweep", "missing", "rehearsal seed=1", "no key has several", "seed=1,2,3"),
    bad("sweep", "not there", "nobody seed=1,2", "nobody", "Presets"),
    bad("sweep", "unreadable", "x.yaml seed=1,2", "x.yaml", "UTF-8", do=a_file("x.yaml", NOT_TEXT)),
    bad("sweep", "wrong type", "rehearsal seed=1,x", "seed", "whole number"),
    bad("sweep", "wrong format", "rehearsal seed=1,,2", "seed=1,,2", "cannot be read", "quotes"),
    bad("sweep", "empty", "rehearsal seed=1,2 --name=", "--name", "letters"),
    bad(
        "sweep",
        "damaged",
        "rehearsal seed=1,2 --name s",
        "s.json",
        "altered",
        do=a_file("practice/sweeps/s.json", '{"sha256":"00","sweep":"s"}'),
    ),
    bad("sweep", "contradictory", "rehearsal seed=1,2 --json --format md", "--json", "Leave one"),
    # library
    bad("library list", "wrong format", "extra", "extra", "unexpected"),
    bad("library show", "missing", "", "Missing argument", "-h"),
    bad("library show", "not there", "nobody", "nobody", "rehearsal"),
    bad("library show", "wrong type", "rehearsal@one", "rehearsal@one", "no such label"),
    bad(
        "library show",
        "unreadable",
        "x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", NOT_TEXT),
    ),
    bad(
        "library show",
        "wrong format",
        "x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", NO_YAML),
    ),
    bad(
        "library show",
        "empty",
        "x.yaml",
        "x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", ""),
    ),
    bad("library show", "damaged", "rehearsal", LIBRARY, "doctor", do=a_damaged(LIBRARY)),
    bad("library utility", "missing", "", "Missing argument", "-h"),
    bad("library utility", "not there", "nobody", "nobody", "rehearsal"),
    bad("library utility", "not there", "rehearsal --run nowhere", "nowhere"),
    bad("library utility", "not there", "rehearsal --problems nowhere", "nowhere"),
    bad("library utility", "wrong type", "rehearsal --rollouts many", "--rollouts", "whole number"),
    bad("library utility", "wrong format", "rehearsal --k 1", "--k", "at least 2"),
    bad("library utility", "empty", "rehearsal@0", "no experience", "Practise"),
    bad("library utility", "damaged", "rehearsal", LIBRARY, "doctor", do=a_damaged(LIBRARY)),
    bad("library utility", "contradictory", "rehearsal --from-practice --k 4", "--from-practice"),
    bad("library label", "missing", "rehearsal", "Missing argument", "-h"),
    bad("library label", "not there", "nobody x", "nobody", "There are: rehearsal"),
    bad("library label", "not there", "rehearsal@99 x", "rehearsal@99", "0 to 2"),
    bad("library label", "not there", "rehearsal x --remove", "rehearsal@x", "no such label"),
    bad("library label", "wrong type", "rehearsal 7", "label '7'", "a letter first"),
    bad("library label", "wrong format", "rehearsal best", "label 'best'", "best, last and head"),
    bad("library label", "contradictory", "rehearsal@1 x --remove", "rehearsal@1", "--remove"),
    bad("library label", "locked", "rehearsal x", "libraries/rehearsal", "another process"),
    bad("library label", "damaged", "rehearsal x", LIBRARY, "checksum", do=a_damaged(LIBRARY)),
    bad("library serve", "missing", "", "Missing argument", "-h"),
    bad("library serve", "not there", "nobody", "nobody", "There are: rehearsal"),
    bad("library serve", "not there", "rehearsal@x", "rehearsal@x", "no such label"),
    bad("library serve", "wrong type", "rehearsal --http x", "--http x", "HOST:PORT"),
    bad("library serve", "wrong format", "rehearsal@step:1", "NAME@LABEL"),
    bad("library serve", "contradictory", "rehearsal --http 0.0.0.0:0", "--token-file"),
    bad("library serve", "damaged", "rehearsal", LIBRARY, "doctor", do=a_damaged(LIBRARY)),
    bad("library history", "missing", "", "Missing argument", "-h"),
    bad("library history", "not there", "nobody", "nobody", "There are: rehearsal"),
    bad("library history", "not there", "rehearsal E99", "E99", "no version"),
    bad("library history", "damaged", "rehearsal", LIBRARY, "checksum", do=a_damaged(LIBRARY)),
    bad("library export", "missing", "rehearsal --to x", "--format"),
    bad("library export", "missing", "rehearsal --format ace", "--to"),
    bad("library export", "not there", "nobody --format ace --to x", "nobody", "rehearsal"),
    bad("library export", "wrong type", "rehearsal --format tar --to x", "--format", "youtu"),
    bad("library export", "wrong type", "rehearsal --format skill --to x --evals many", "--evals"),
    bad("library export", "wrong format", "rehearsal --format skill --to X_", "at most 64", "--to"),
    bad("library export", "empty", "rehearsal@0 --format ace --to x", "no experience", "Practise"),
    bad("library export", "contradictory", "rehearsal --format ace --to x --evals 3", "--evals"),
    bad(
        "library export",
        "unreadable",
        "v1.yaml --format ace --to x",
        "v1.yaml",
        "UTF-8",
        do=a_file("v1.yaml", b"\xff"),
    ),
    bad(
        "library export",
        "damaged",
        "rehearsal --format ace --to x",
        LIBRARY,
        "checksum",
        do=a_damaged(LIBRARY),
    ),
    bad("library edit", "missing", "", "Missing argument", "-h"),
    bad("library edit", "not there", "nobody --add text", "nobody", "There are: rehearsal"),
    bad("library edit", "not there", "rehearsal E99 --text new", "E99", "holds no"),
    bad("library edit", "empty", "rehearsal E1 --text=", "E1", "needs a text"),
    bad("library edit", "empty", "rehearsal --add=", "text", "needs a text"),
    bad(
        "library edit", "contradictory", "rehearsal E1 --delete --text new", "--delete", "Give one"
    ),
    bad("library edit", "contradictory", "rehearsal E1 --add new", "--add", "Give one"),
    bad(
        "library edit",
        "locked",
        "rehearsal E1 --text new",
        "libraries/rehearsal",
        "another process",
    ),
    bad(
        "library edit",
        "damaged",
        "rehearsal E1 --text new",
        LIBRARY,
        "checksum",
        do=a_damaged(LIBRARY),
    ),
    bad("library revert", "missing", "", "Missing argument", "-h"),
    bad("library revert", "missing", "rehearsal", "rehearsal", "@"),
    bad("library revert", "not there", "nobody@1", "nobody", "There are: rehearsal"),
    bad("library revert", "not there", "rehearsal@99", "rehearsal@99", "0 to 2"),
    bad("library revert", "wrong type", "rehearsal@one", "rehearsal@one", "no such label"),
    bad("library revert", "locked", "rehearsal@0", "libraries/rehearsal", "another process"),
    bad("library revert", "damaged", "rehearsal@0", LIBRARY, "checksum", do=a_damaged(LIBRARY)),
    # data
    bad("data list", "wrong format", "extra", "extra", "unexpected"),
    bad("library import", "missing", "", "Missing argument", "-h"),
    bad("library import", "not there", "no.txt", "no.txt", "Correct the file"),
    bad("library import", "unreadable", "x.txt", "x.txt", "UTF-8", do=a_file("x.txt", NOT_TEXT)),
    bad("library import", "wrong type", "x.json", "of type list", do=a_file("x.json", "[1, 2]")),
    bad("library import", "wrong format", "x.txt --format tar", "no format", do=ACE),
    bad(
        "library import",
        "empty",
        "x.txt",
        "it is empty",
        "studio guide libraries",
        do=a_file("x.txt", ""),
    ),
    bad("library import", "damaged", "x.txt --into rehearsal", "doctor", do=ACE_AND_DAMAGE),
    bad(
        "library import",
        "contradictory",
        "x.txt --format kayba",
        "x.txt",
        "name its format",
        do=ACE,
    ),
    bad("library merge", "missing", "rehearsal@0 rehearsal", "THEIRS", "-h"),
    bad("library merge", "not there", "rehearsal@0 rehearsal nobody", "nobody", "rehearsal"),
    bad(
        "library merge",
        "unreadable",
        "rehearsal@0 rehearsal x.yaml",
        "x.yaml",
        do=a_file("x.yaml", NOT_TEXT),
    ),
    bad("library merge", "wrong type", "rehearsal@0 rehearsal rehearsal@one", "no such label"),
    bad(
        "library merge",
        "wrong format",
        "rehearsal@0 rehearsal x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", "a: 1"),
    ),
    bad(
        "library merge",
        "empty",
        "rehearsal@0 rehearsal x.yaml",
        "studio guide libraries",
        do=a_file("x.yaml", ""),
    ),
    bad(
        "library merge",
        "damaged",
        "rehearsal@0 rehearsal rehearsal@0",
        "doctor",
        do=a_damaged(LIBRARY),
    ),
    bad("library merge", "contradictory", "rehearsal rehearsal@0 rehearsal", "head", "--into"),
    bad("query", "not there", "--run nobody", "nobody", "rehearsal"),
    bad("query", "not there", "--library nobody", "nobody", "rehearsal"),
    bad("query", "wrong type", "--limit none", "--limit", "whole number"),
    bad("query", "wrong format", "--since yesterday", "--since", "7d"),
    bad("query", "wrong format", "--effect much", "--effect", "helps"),
    bad("query", "contradictory", "--since 2026-01-02 --until 2026-01-01", "--since", "earlier"),
    bad("data import", "missing", "claude", "PATH", "-h"),
    bad("data import", "not there", "claude no.jsonl", "no.jsonl", "Check the path"),
    bad("data import", "unreadable", "claude x", "x", "Claude Code", do=a_file("x", NOT_TEXT)),
    bad("data import", "wrong type", "pdf x", "'pdf'", "claude"),
    bad("data import", "wrong format", "atif x.json", "ATIF", do=a_file("x.json", '{"a": 1}')),
    bad("data import", "empty", "codex x.jsonl", "Codex", do=a_file("x.jsonl", "")),
    bad("data prepare", "missing", "", "Missing argument", "-h"),
    bad("data prepare", "not there", "nothing", "nothing", "aime24"),
    bad("data prepare", "unreadable", "aime24 --from x", "UTF-16", do=a_file("x", NOT_TEXT)),
    bad("data prepare", "wrong type", "aime24 --limit x", "--limit", "whole number"),
    bad("data prepare", "wrong format", "aime24 --from x", "question", do=a_file("x", "{}")),
    bad("data prepare", "empty", "aime24 --from x", "No row", do=a_file("x", "")),
    bad(
        "data prepare",
        "contradictory",
        "aime24 --levels 4:7:6 --from x.jsonl",
        "--levels",
        do=a_file("x.jsonl", '{"Problem": "1+1?", "Answer": 2}'),
    ),
    bad("data review", "missing", "", "Missing argument", "-h"),
    bad("data review", "not there", "nobody", "nobody", "studio data"),
    bad("data review", "unreadable", "one --marks here", "here", do=ONE_AND_FOLDER),
    bad("data review", "wrong type", "one --marks x.json", "row 1", do=ONE_AND_LIST),
    bad("data review", "wrong format", "one --marks x.json", "out", do=ONE_AND_OBJECT),
    bad("data add", "missing", "", "Missing argument", "-h"),
    bad("data add", "not there", "no.jsonl", "no.jsonl", "not found"),
    bad("data add", "unreadable", "x.jsonl", "x.jsonl", "UTF-16", do=a_file("x.jsonl", NOT_TEXT)),
    bad(
        "data add",
        "wrong format",
        "x.jsonl",
        "x.jsonl:1",
        "not JSON",
        do=a_file("x.jsonl", "nonsense\n"),
    ),
    bad("data add", "wrong type", "x.jsonl", "x.jsonl", "object", do=a_file("x.jsonl", '"text"\n')),
    bad("data add", "empty", "x.jsonl", "x.jsonl", "no problem", do=a_file("x.jsonl", "")),
    bad(
        "data add",
        "contradictory",
        "x.jsonl --name ../up",
        "up",
        "letters",
        do=a_file("x.jsonl", ROWS_OF),
    ),
    bad("data preview", "missing", "", "Missing argument", "-h"),
    bad("data preview", "not there", "nobody", "nobody", "not found"),
    bad("data preview", "not there", "arithmetic --question wie", "wie", "There are"),
    bad(
        "data preview", "unreadable", "x.jsonl", "x.jsonl", "UTF-16", do=a_file("x.jsonl", NOT_TEXT)
    ),
    bad("data preview", "wrong type", "arithmetic -n few", "-n", "whole number"),
    bad("data preview", "wrong type", "arithmetic -n 0", "-n", "at least 1"),
    bad(
        "data preview",
        "wrong format",
        "x.jsonl",
        "x.jsonl:1",
        "not JSON",
        do=a_file("x.jsonl", "{]\n"),
    ),
    bad("data preview", "empty", "x.jsonl", "x.jsonl", "no problem", do=a_file("x.jsonl", "")),
    bad("data check", "missing", "", "Missing argument", "-h"),
    bad("data check", "not there", "nobody", "nobody", "not found"),
    bad("data check", "unreadable", "x.jsonl", "x.jsonl", "UTF-16", do=a_file("x.jsonl", NOT_TEXT)),
    bad(
        "data check",
        "wrong format",
        "x.csv",
        "x.csv",
        "the fields are",
        do=a_file("x.csv", "a,b\n1,2\n"),
    ),
    bad("data check", "empty", "x.jsonl", "x.jsonl", "no problem", do=a_file("x.jsonl", "")),
    bad("data verifiers", "wrong format", "extra", "extra", "unexpected"),
    # runs
    bad("runs list", "wrong format", "extra", "extra", "unexpected"),
    bad("runs show", "missing", "", "Missing argument", "-h"),
    bad("runs show", "not there", "nobody", "nobody", "rehearsal"),
    bad("runs show", "not there", "rehearsal --step 99", "99", "1 to 2"),
    bad(
        "runs show",
        "not there",
        "rehearsal --rollout s9p9r9",
        "s9p9r9",
        "The last that ended is s2p2r2",
    ),
    bad("runs show", "wrong type", "rehearsal --step first", "--step", "whole number"),
    bad("runs show", "wrong format", "../up", "up", "letters"),
    bad("runs show", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad(
        "runs show",
        "damaged",
        "rehearsal --rollout s1p0r0",
        "step-0001.jsonl",
        "doctor",
        do=a_damaged("runs/rehearsal/records/step-0001.jsonl", line=None),
    ),
    bad("runs show", "contradictory", "rehearsal --prompts", "--step", "with it"),
    bad("runs show", "contradictory", "rehearsal --step 1 --rollout s1p0r0", "--step", "Give one"),
    bad("runs replay", "missing", "", "Missing argument", "-h"),
    bad("runs replay", "not there", "nobody", "nobody", "rehearsal"),
    bad("runs replay", "wrong type", "rehearsal --speed fast", "--speed", "-h"),
    bad("runs replay", "wrong format", "../up", "up", "letters"),
    bad("runs replay", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad("runs rm", "missing", "", "Missing argument", "-h"),
    bad("runs rm", "not there", "nobody --yes", "nobody", "rehearsal"),
    bad("runs rm", "locked", "rehearsal --yes", "rehearsal", "another process"),
    bad("runs rm", "wrong format", "../up --yes", "up", "letters"),
    bad("runs archive", "missing", "", "Missing argument", "-h"),
    bad("runs archive", "not there", "nobody", "nobody", "rehearsal"),
    bad("runs archive", "locked", "rehearsal", "rehearsal", "another process"),
    bad("runs archive", "wrong format", "../up", "up", "letters"),
    bad("runs archive", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    bad(
        "runs archive",
        "unreadable",
        "rehearsal --to x/y.tar.gz",
        "x: cannot be written",
        do=a_file("x", ""),
    ),
    bad(
        "runs archive",
        "contradictory",
        "rehearsal --to x",
        "x: it exists already",
        "--to FILE",
        do=a_file("x", "mine"),
    ),
    bad("runs trace", "missing", "", "Missing argument", "-h"),
    bad("runs trace", "missing", "rehearsal", "no collector is named", "--endpoint"),
    bad("runs trace", "not there", "nobody", "nobody", "rehearsal"),
    bad("runs trace", "wrong type", "rehearsal --endpoint 5", "http://", "tracing.base_url"),
    bad("runs trace", "wrong format", "../up", "up", "letters"),
    bad("runs trace", "empty", "rehearsal --endpoint=", "http://", "tracing.base_url"),
    bad(
        *("runs trace", "damaged", "rehearsal --endpoint http://127.0.0.1:9", f"{RUN}:2", "doctor"),
        do=a_damaged(RUN, line=1),
    ),
    bad("runs export", "missing", "rehearsal", "Missing option", "--to"),
    bad("runs export", "not there", "rehearsal --to x --rollout s9p9r9", "s9p9r9", "runs show"),
    bad("runs export", "wrong type", "rehearsal --to x --rollout foo", "foo", "runs show"),
    bad("runs export", "wrong format", "../up --to x", "up", "letters"),
    bad("runs export", "unreadable", "rehearsal --to x", "not an empty folder", do=a_file("x", "")),
    bad("runs export", "empty", "rehearsal --to=", "it is not an empty folder"),
    bad(
        *("runs export", "damaged", "rehearsal --to x", f"{RUN}:2", "doctor"),
        do=a_damaged(RUN, line=1),
    ),
    bad("runs restore", "missing", "", "Missing argument", "-h"),
    bad("runs restore", "not there", "nobody", "nobody", "runs list"),
    bad("runs restore", "unreadable", "./x", "x: there is none", do=a_folder("x")),
    bad("runs restore", "empty", "./x", "x: it is no archive", do=a_file("x", "")),
    bad("runs restore", "wrong format", "./x", "x: it is no archive", do=a_file("x", "mine")),
    bad("runs restore", "damaged", "./x", "it is no archive", do=an_archive("x", most=99)),
    bad("runs restore", "contradictory", "./x", "run of that name", do=an_archive("x")),
    # presets, rehearsal
    bad("presets list", "wrong format", "extra", "extra", "unexpected"),
    *(
        row
        for name in ("serve", "chat")
        for row in (
            bad(name, "missing", "", "Missing argument", f"studio {name} -h"),
            bad(name, "not there", "nobody policy=rehearsal", "nobody", "There are: rehearsal"),
            bad(name, "not there", "nothere.yaml", "nothere.yaml", "no such file"),
            bad(name, "unreadable", "x.yaml", "x.yaml", "UTF-8", do=a_file("x.yaml", NOT_TEXT)),
            bad(name, "wrong type", "rehearsal policy=rehearsal policy.timeout_s=x", "timeout_s"),
            bad(name, "wrong format", "x.yaml", "YAML is broken", do=a_file("x.yaml", NO_YAML)),
            bad(name, "wrong format", "rehearsal@x policy=rehearsal", "no such label"),
            bad(name, "empty", "x.yaml", "policy", do=a_file("x.yaml", "")),
            bad(
                name,
                "damaged",
                "rehearsal policy=rehearsal",
                "doctor --repair",
                do=a_damaged(LIBRARY),
            ),
            bad(name, "contradictory", "rehearsal", "it names no model", "--run-file"),
        )
    ),
    bad("serve", "wrong type", "rehearsal --port many", "--port", "whole number"),
    bad("serve", "contradictory", "rehearsal policy=rehearsal --host 0.0.0.0", "--token-file"),
    bad("rehearsal serve", "wrong type", "--port many", "--port", "whole number"),
    bad("rehearsal serve", "wrong type", "--port 99999", "--port", "at most 65535"),
    bad("rehearsal serve", "missing", "--port", "--port", "requires an argument"),
    # config, version, completion
    *(
        row
        for name in ("pin", "unpin")
        for row in (
            bad(f"library {name}", "missing", "rehearsal", "ID"),
            bad(f"library {name}", "not there", "nobody E1", "nobody"),
            bad(
                f"library {name}", "damaged", "rehearsal E1", f"{LIBRARY}:1", do=a_damaged(LIBRARY)
            ),
        )
    ),
    bad("config list", "not there", "nothing", "nothing", "studio config list"),
    bad("config list", "wrong format", "lint extra", "extra", "unexpected"),
    bad("config explain", "missing", "", "KEY"),
    bad("config explain", "not there", "practice.grup_size", "practice.group_size"),
    bad("version", "wrong format", "extra", "extra", "unexpected"),
    bad("guide", "not there", "lora", "Did you mean weights"),
    bad("guide", "wrong format", "data extra", "extra", "unexpected"),
    bad("completion", "missing", "", "bash|zsh|fish"),
    bad("completion", "wrong format", "tcsh", "tcsh", "'bash', 'zsh'"),
    # doctor
    bad("doctor", "wrong format", "rehearsal epochs", "epochs", "key=value"),
    bad("doctor", "damaged", "", RUN, "--repair", do=a_damaged(RUN, line=1)),
    bad("doctor", "locked", "--repair", "rehearsal", "is writing here", do=a_damaged(RUN, line=1)),
    # what no file and no number should be
    bad("headless", "wrong type", f"rehearsal seed={10**30}", "seed", "64 bits"),
    bad("headless", "wrong type", f"rehearsal data.truncate={10**19}", "truncate", "64 bits"),
    bad("headless", "wrong type", "rehearsal practice.epochs=99999999", "epochs", "at most 10000"),
    bad("headless", "wrong type", "rehearsal practice.concurrency=99999999", "at most 10000"),
    bad("headless", "wrong type", f"rehearsal --restart-step {'9' * 5000}", "whole number"),
    bad("headless", "not there", "x" * 300, "File name too long", "shorter name"),
    bad("headless", "not there", f"rehearsal --name n verifier.file={'x' * 300}", "too long"),
    bad("headless", "missing", "policy.api_key=key-words", "policy.api_key=…", "preset first"),
    bad("headless", "unreadable", "loop", "loop", "no file", do=a_loop("loop")),
    bad("headless", "unreadable", "--from-youtu loop --config-name x", "loop", do=a_loop("loop")),
    bad("headless", "wrong format", "x.yaml", "nested", "flatter", do=a_file("x.yaml", DEEP)),
    bad("eval", "wrong format", "rehearsal --agent x.yaml", "nested", do=a_file("x.yaml", DEEP)),
    bad("library show", "wrong format", "x.yaml", "experiences", do=a_file("x.yaml", DEEP)),
    bad("library show", "wrong type", f"rehearsal@{'9' * 5000}", "NAME@LABEL"),
    bad("library revert", "wrong type", f"rehearsal@{'9' * 5000}", "NAME@V"),
    bad("eval", "wrong type", "rehearsal --k 99999999999", "--k", "at most 4096"),
    bad("data add", "wrong format", "x.jsonl --name=", "letters", do=a_file("x.jsonl", ROWS_OF)),
    bad("runs list", "unreadable", "--workspace afile", "no folder", do=a_file("afile", "")),
    bad("library list", "unreadable", "--workspace loop", "no folder", do=a_loop("loop")),
    bad("doctor", "unreadable", "--workspace afile", "no folder", do=a_file("afile", "")),
    *(
        bad("headless", "wrong format", "x.yaml", "x.yaml:", *says, do=a_file("x.yaml", text))
        for text, *says in (
            ('policy: "replay:a\\0b"\n', "policy", "NUL"),
            ('policy: rehearsal\nreview: {by: "rules:a\\0b"}\n', "review.by", "NUL"),
            (ASKING + 'base_url: "http://[::1/v1"}\n', "policy.base_url", "no address"),
            (ASKING + 'base_url: "http://h:99999/v1"}\n', "policy.base_url", "no address"),
            (ASKING + 'base_url: "http://hö/v1"}\n', "policy.base_url", "ASCII"),
            (ASKING + 'base_url: "http://:80/v1"}\n', "policy.base_url", "no host"),
            (ASKING + 'api_key: "ключ-ключ"}\n', "policy.api_key", "ASCII"),
            (ASKING + 'api_key: "k\\nX: y"}\n', "policy.api_key", "control"),
            (ASKING + 'headers: {"a b": c}}\n', "policy.headers", "name of a header"),
            (ASKING + 'headers: {a: "c\\nd"}}\n', "policy.headers", "control"),
            (ASKING + "extra_body: {x: .nan}}\n", "policy.extra_body.x", "JSON"),
            (ASKING + f"extra_body: {{x: {10**20}}}}}\n", "policy.extra_body.x", "64 bits"),
        )
    ),
    bad(
        "headless",
        "wrong format",
        "x.yaml",
        "defaults",
        "_self_",
        do=a_file("x.yaml", "defaults: 5"),
    ),
    bad("headless", "wrong format", "y.yaml", "defaults", do=a_file("y.yaml", "defaults: [[1]]")),
    # ctl
    *(
        row
        for name in ("status", "watch", "pause", "resume", "step", "stop")
        for row in (
            bad(f"ctl {name}", "not there", "nobody", "nobody", "rehearsal"),
            bad(f"ctl {name}", "wrong format", "../up", "up"),
        )
    ),
    bad("ctl status", "damaged", "rehearsal", f"{RUN}:2", "doctor", do=a_damaged(RUN, line=1)),
    *(
        bad(f"ctl {name}", "missing", "", "run")
        for name in ("watch", "pause", "resume", "step", "stop")
    ),
)

NO_FILE = "it reads no file of the user's"
NO_WRITING = "it takes no lock: it only reads"
NOTHING_TO_NAME = "it takes no argument"
ONE_ARGUMENT = "it takes one argument, which nothing contradicts"
ALL_TEXT = "every text is a name"

ITS_PROCESS = (
    "told by the process it starts: headless, and tests/studio/commands/test_run_attach.py"
)

NO_SUCH_INPUT: dict[str, dict[Class, str]] = {
    "run": {kind: ITS_PROCESS for kind in CLASSES if kind not in ("missing", "wrong format")},
    "attach": {
        "missing": "the newest run is meant",
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "empty": NO_FILE,
        "locked": "whoever holds the lock is asked",
        "contradictory": ONE_ARGUMENT,
    },
    "": {
        "missing": "without a command it is the home screen",
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "empty": NO_FILE,
        "locked": NO_WRITING,
        "damaged": "the home screen lists a damaged run as damaged",
        "contradictory": NOTHING_TO_NAME,
    },
    "demo": dict.fromkeys(CLASSES, "it takes no words, and wants a terminal before all else"),
    "init": {"wrong format": ALL_TEXT, "locked": "a new file", "damaged": NO_FILE},
    "try": {"locked": NO_WRITING},
    "serve": {"locked": NO_WRITING},
    "chat": {"locked": NO_WRITING},
    "train": {
        "locked": "as with headless, which practises",
        "damaged": "as with headless, which practises",
    },
    "export": {"locked": NO_WRITING},
    "review": {
        "missing": "the newest run is meant",
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "contradictory": ONE_ARGUMENT,
    },
    "gate": {
        "unreadable": NO_FILE,
        "locked": "in tests/studio/evaluation/test_gate.py, with an open operation",
        "contradictory": "in tests/studio/evaluation/test_gate.py, with an open operation",
    },
    "eval": {"locked": "in tests/studio/evaluation/test_eval.py, with two processes"},
    "compare": {"locked": NO_WRITING},
    "sweep": {"locked": "a run that has a process is waited for"},
    "diff": {"locked": NO_WRITING},
    "report": {"unreadable": NO_FILE, "empty": NO_FILE, "locked": NO_WRITING},
    "library show": {"locked": NO_WRITING, "contradictory": ONE_ARGUMENT},
    "library export": {"locked": NO_WRITING},
    "library label": {"unreadable": NO_FILE, "empty": "version 0 has a label, too"},
    "library serve": {
        "unreadable": NO_FILE,
        "empty": "an empty library is served",
        "locked": NO_WRITING,
    },
    "library import": {"locked": "it writes a run of its own, and waits where a library begins"},
    "library merge": {"locked": "it writes a run of its own, and waits where a library begins"},
    "query": {
        "missing": "without a word it shows the newest",
        "unreadable": NO_FILE,
        "empty": NO_FILE,
        "locked": NO_WRITING,
        "damaged": "a damaged journal is told of, and hides nothing else",
    },
    "data import": {
        "locked": "the catalogue's lock is waited for",
        "damaged": "sessions have no checksum; lines that cannot be read are counted",
        "contradictory": "its options do not touch each other",
    },
    "data prepare": {
        "locked": "the catalogue's lock is waited for",
        "damaged": "data has no checksum",
    },
    "data review": {
        "empty": "a file without a decision decides nothing",
        "locked": "the data's lock is waited for",
        "damaged": "an item that was changed has no mark",
        "contradictory": "what is decided last counts",
    },
    "library utility": {
        "unreadable": NO_FILE,
        "locked": "it waits, as every commit does",
    },
    "library history": {
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "wrong format": ALL_TEXT,
        "empty": NO_FILE,
        "locked": NO_WRITING,
        "contradictory": ONE_ARGUMENT,
    },
    "library edit": {
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "wrong format": ALL_TEXT,
    },
    "library revert": {
        "unreadable": NO_FILE,
        "wrong format": ALL_TEXT,
        "empty": NO_FILE,
        "contradictory": ONE_ARGUMENT,
    },
    "data add": {"locked": "the catalogue's lock is waited for", "damaged": "data has no checksum"},
    "data preview": {
        "locked": NO_WRITING,
        "damaged": "data has no checksum",
        "contradictory": ONE_ARGUMENT,
    },
    "data check": {
        "wrong type": ALL_TEXT,
        "locked": NO_WRITING,
        "damaged": "data has no checksum",
        "contradictory": ONE_ARGUMENT,
    },
    "runs show": {"unreadable": NO_FILE, "empty": NO_FILE, "locked": NO_WRITING},
    "runs replay": {
        "unreadable": NO_FILE,
        "empty": NO_FILE,
        "locked": NO_WRITING,
        "contradictory": ONE_ARGUMENT,
    },
    "runs rm": {
        "unreadable": NO_FILE,
        "wrong type": ALL_TEXT,
        "empty": NO_FILE,
        "damaged": "a damaged run can be removed",
        "contradictory": ONE_ARGUMENT,
    },
    "runs trace": {
        "unreadable": NO_FILE,
        "locked": NO_WRITING,
        "contradictory": ONE_ARGUMENT,
    },
    "runs export": {"locked": NO_WRITING, "contradictory": "a run and a folder never are"},
    "runs archive": {"wrong type": ALL_TEXT, "empty": NO_FILE},
    "runs restore": {"wrong type": ALL_TEXT, "locked": "there is no run of that name to be locked"},
    "rehearsal serve": {
        "not there": NO_FILE,
        "unreadable": NO_FILE,
        "wrong format": ALL_TEXT,
        "empty": NO_FILE,
        "locked": "a port in use is in tests/studio/commands/test_rehearsal.py",
        "damaged": NO_FILE,
        "contradictory": ONE_ARGUMENT,
    },
    **{
        f"library {name}": {
            "unreadable": NO_FILE,
            "wrong type": ALL_TEXT,
            "wrong format": ALL_TEXT,
            "empty": NO_FILE,
            "locked": "as with library edit, which commits in the same way",
            "contradictory": "the experience is what it is asked to be, or it is refused",
        }
        for name in ("pin", "unpin")
    },
    **{
        name: {
            "unreadable": NO_FILE,
            "wrong type": ALL_TEXT,
            "empty": NO_FILE,
            "locked": NO_WRITING,
            "damaged": NO_FILE,
            "contradictory": ONE_ARGUMENT,
        }
        | more
        for name, more in {
            "config list": {"missing": "all are meant"},
            "config explain": {"wrong format": ALL_TEXT},
            "version": {"missing": NOTHING_TO_NAME, "not there": NOTHING_TO_NAME},
            "completion": {"not there": NO_FILE},
            "guide": {"missing": "without a topic the pages are listed"},
        }.items()
    },
    "doctor": {
        "missing": NOTHING_TO_NAME,
        "not there": "a workspace that is not there is well",
        "wrong type": NOTHING_TO_NAME,
        "empty": NOTHING_TO_NAME,
        "contradictory": NOTHING_TO_NAME,
    },
    **{
        name: {
            "missing": NOTHING_TO_NAME,
            "not there": NOTHING_TO_NAME,
            "wrong type": NOTHING_TO_NAME,
            "empty": NO_FILE,
            "locked": NO_WRITING,
            "damaged": "it lists what is damaged as damaged, or makes it anew",
            "contradictory": NOTHING_TO_NAME,
        }
        | ({} if name in ("library list", "runs list") else {"unreadable": NO_FILE})
        for name in ("library list", "data list", "data verifiers", "runs list", "presets list")
    },
    **{
        f"ctl {name}": {
            "unreadable": NO_FILE,
            "wrong type": ALL_TEXT,
            "empty": NO_FILE,
            "locked": "whoever holds the lock is asked",
            "contradictory": ONE_ARGUMENT,
        }
        | ({"missing": "the newest run is meant"} if name == "status" else {"damaged": "it asks"})
        for name in ("status", "watch", "pause", "resume", "step", "stop")
    },
}  # type: ignore[dict-item]


def commands(group: typer.models.TyperInfo | typer.Typer, prefix: str = "") -> Iterator[str]:
    """Every command of the line, by the words that call it."""
    top = group if isinstance(group, typer.Typer) else group.typer_instance
    assert top is not None
    for command in top.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__}"
    for inner in top.registered_groups:
        yield from commands(inner, f"{prefix}{inner.name} ")


def test_every_command_has_a_row_or_a_reason_for_every_class() -> None:
    names = ["", *commands(app)]
    rows = {(row.command, row.kind) for row in TABLE}
    reasons = {(name, kind) for name, why in NO_SUCH_INPUT.items() for kind in why}
    wanted = {(name, kind) for name in names for kind in CLASSES}
    assert wanted - rows - reasons == set()
    assert (rows | reasons) - wanted == set(), "a row of a command that is no more"
    assert rows & reasons == set(), "either there is such an input or there is none"


@contextmanager
def locked(row: Row, workspace: Path) -> Iterator[None]:
    """Another writer, where the row is about one: a lock of this process counts as such."""
    with ExitStack() as stack:
        if row.kind == "locked":
            kind = "libraries" if row.command.startswith("library") else "runs"
            stack.enter_context(write_lock(workspace / kind / "rehearsal"))
        yield


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.command} {row.kind} {row.words}")
def test_bad_input_ends_with_exit_2_a_message_and_nothing_lost(
    row: Row, practised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "LOCK_WAIT_S", 0.0)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    if row.command == "headless":
        monkeypatch.setenv("COLUMNS", "100")
    for prepare in row.prepare:
        prepare(practised)
    before = photographed(practised.parent)
    # As the run was begun, so that nothing but the row itself is wrong.
    small = SMALL if row.command == "headless" and row.words[:1] == ("rehearsal",) else ()
    with locked(row, practised):
        done = studio(
            *row.command.split(),
            *row.words[:1],
            *small,
            *row.words[1:],
            workspace=practised,
            typed=row.typed,
        )
    said = done.stderr if row.command != "doctor" else done.stdout + done.stderr
    assert done.code == 2, (done.code, done.stdout, done.stderr)
    for words in row.says:
        assert words in said, (words, said)
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1].rstrip(" │╯─╰")
    assert last.endswith((".", "?", "'", "…")), f"no whole sentence: {last!r}"
    assert photographed(practised.parent) == before


def photographed(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes, but for locks, which hold nothing, and what is derived.

    The catalogue and `derived/` are made from the journals: looking may bring them up to date.
    """
    passing = (
        ".lock",
        ".holder",
        ".catalogue.lock",
        "catalogue.json",
        ".prepare.lock",
    )
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in passing and path.parent.name != "derived"
    }
