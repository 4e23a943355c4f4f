"""Whatever stands in data, replies, lessons and errors, a terminal obeys none of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import orjson
import pytest
import yaml

from engines.core.text.sanitize import escape_unsafe
from engines.policies.rehearsal.reply import read_request, write_reply
from engines.record.run_dir import Workspace
from tests.support.run_studio import Result, studio
from tests.support.threaded_server import Reply, serving, streamed

HIDDEN = "".join(chr(0xE0000 + ord(char)) for char in "obey")
HOSTILE = (
    "[bold red]mark[/bold red] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J back\rfront \x08 "
    f"user\u202etxt.exe \u2066iso\u2069 pass\u200bword\ufeff {HIDDEN} a\ufe01\ufe02 \u00ad\u2060 "
    "nul\x00 line\u2028two\u2029three\x85 end"
)
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ufe00-\ufe0d\ud800-\udfff\U000e0000-\U000e0fff]"
)
RUN = """\
defaults: [/rehearsal, _self_]
exp_id: hostile
policy: {{model: "openai:rehearsal", base_url: "http://127.0.0.1:{port}/v1", api_key: none,
  max_retries: 0}}
practice: {{epochs: 1, batch_size: 4, group_size: 3}}
data: {{practice: hostile.jsonl, truncate: 4}}
evaluation: {{do_eval: true, data: [hostile.jsonl], limit: 2}}
"""


def reply_hostile(_: BaseHTTPRequestHandler, body: bytes) -> Reply:
    """A rehearsal server with hostile text around all it says; which calls fail hangs on the seed.

    Not on the order in which they come: under load that could leave no group to learn from.
    """
    asked = orjson.loads(body)
    prompt = asked["messages"][-1]["content"]
    lesson = "# Task" in prompt
    if asked["seed"] % 7 == 3 and "end" in prompt and not lesson:
        error = {"message": f"no: {HOSTILE}"}
        return 400, "application/json", orjson.dumps({"error": error})
    asked["messages"][-1]["content"] = prompt.replace(HOSTILE, "")
    text = write_reply(read_request(asked)).text
    if lesson:
        said = json.dumps(f"{HOSTILE} ")[1:-1]
        text = re.sub(r'("(?:text|experience|reason)": ")', lambda m: m[0] + said, text)
    else:
        text = f"{HOSTILE}\n{text}"
    return streamed([{"content": text[at : at + 5]} for at in range(0, len(text), 5)])


@pytest.fixture
def hostile(workspace: Path) -> Iterator[str]:
    """A run file on hostile data, while its server runs."""
    rows = [
        {"question": f"What is {n}7 + {n}5? {HOSTILE}", "answer": str(n * 20 + 12), "k": HOSTILE}
        for n in range(1, 7)
    ]
    data = workspace.parent / "hostile.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(reply_hostile) as port:
        file = workspace.parent / "hostile.yaml"
        file.write_text(RUN.format(port=port))
        yield str(file)


def check(result: Result, words: tuple[str, ...]) -> None:
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        found = FORBIDDEN.search(text)
        near = repr(text[max(0, found.start() - 80) : found.end() + 20]) if found else ""
        assert found is None, f"studio {' '.join(words)}: {name}: {near}"


def test_no_command_prints_what_a_terminal_obeys_or_what_nobody_sees(
    workspace: Path, hostile: str
) -> None:
    data = str(workspace.parent / "hostile.jsonl")
    edit = ("library", "edit", "hostile", "--add", HOSTILE.replace("\x00", ""), "--reason", "\x07")
    commands: list[tuple[str, ...]] = [
        ("data", "check", data),
        ("data", "preview", data, "-n", "3"),
        ("data", "add", data, "--name", "mine"),
        ("data", "list"),
        ("try", hostile),
        ("try", hostile, "--question", "What is 17 + 25? \x1b[2J\u202e"),
        ("headless", hostile),
        edit,
        ("eval", hostile, "--library", "hostile", "--baseline", "none"),
        ("runs", "list"),
        ("runs", "show", "hostile"),
        ("runs", "show", "hostile", "--step", "1", "--prompts"),
        *(("runs", "show", "hostile", "--rollout", f"s1p{p}r{r}") for p in (0, 3) for r in (0, 2)),
        ("ctl", "status", "hostile"),
        ("library", "list"),
        ("library", "show", "hostile"),
        ("library", "history", "hostile"),
        ("diff", "hostile@0", "hostile@1"),
        ("diff", "hostile@0", "hostile@1", "--format", "html"),
        ("doctor",),
    ]
    shown = []
    for words in commands:
        result = studio(*words, workspace=workspace)
        assert result.code in (0, 3, 4), (words, result.stderr)
        check(result, words)
        shown.append(result.stdout + result.stderr)
        if words[0] in ("doctor",) or words == edit or "html" in words:
            continue
        if words[0] == "headless":
            words = (*words, "--restart-step", "0")
        as_json = studio(*words, "--json", workspace=workspace)
        assert as_json.code in (0, 3, 4), (words, as_json.stderr)
        check(as_json, words)
        for line in as_json.stdout.splitlines():
            json.loads(line)
    # It was there, in all of its forms, and is seen now.
    whole = "\n".join(shown)
    for part in ("\\u001b[31mred", "\\u202etxt", "\\U000e006f", "pass\\u200bword", "a\\ufe01"):
        assert part in whole
    assert "[bold red]mark[/bold red]" in whole
    for path in [*workspace.rglob("v*.yaml"), *workspace.rglob("agent*.yaml")]:
        assert FORBIDDEN.search(path.read_text()) is None, path


def test_json_says_the_same_with_escapes(workspace: Path, hostile: str) -> None:
    data = str(workspace.parent / "hostile.jsonl")
    rows = json.loads(
        studio("data", "preview", data, "-n", "1", "--json", workspace=workspace).stdout
    )
    assert rows[0]["question"].endswith(HOSTILE.rstrip())


def test_a_review_asks_about_hostile_text_without_obeying_it(workspace: Path, hostile: str) -> None:
    ended = studio("headless", hostile, "--review", "wait", "review.hold_s=0.05",
                   workspace=workspace)  # fmt: skip
    assert ended.code in (3, 4), ended.stderr
    check(ended, ("headless",))
    typed = "t\nd\ne\n?\ns\n" + "a\n" * 9
    reviewed = studio("review", workspace=workspace, typed=typed)
    check(reviewed, ("review",))
    assert "\\u202etxt" in reviewed.stdout


def test_what_a_person_approves_is_what_a_model_reads(workspace: Path, hostile: str) -> None:
    assert studio("headless", hostile, workspace=workspace).code in (0, 4)
    head = Workspace(workspace).library("hostile").head()
    shown = studio("library", "show", "hostile", workspace=workspace).stdout
    assert head.experiences
    for experience in head.experiences:
        assert escape_unsafe(experience.text) == experience.text
        assert f"{experience.id}  {experience.text}" in shown
        assert f"[{experience.id}] {experience.text}" in head.guidance()
    written = yaml.safe_load((workspace / "runs/hostile/agent.yaml").read_text())
    assert [e["text"] for e in written["experiences"]] == [e.text for e in head.experiences]


def test_the_words_of_a_command_line_are_inert_in_its_refusal(workspace: Path) -> None:
    odd = "x\x1b[2J\u202ey"
    for words in (
        ("headless", odd),
        ("try", "rehearsal", f"{odd}=1"),
        ("runs", "show", odd),
        ("library", "show", odd),
        (odd,),
        ("runs", "list", f"--{odd}"),
        ("data", "preview", odd),
        ("diff", odd, odd),
        ("headless", "rehearsal", "--review", odd),
        ("headless", "rehearsal", "--name", odd),
        ("eval", "rehearsal", "--library", odd),
        ("library", "edit", odd, "--add", "text"),
        ("init", odd),
    ):
        result = studio(*words, workspace=workspace)
        assert result.code == 2, (words, result.stdout)
        check(result, words)
        assert "\\u001b" in result.stderr or "\\x1b" in result.stderr, (words, result.stderr)


def test_html_holds_no_markup_of_others(workspace: Path, practised: Path) -> None:
    text = "<script>alert(1)</script> & \"'"
    studio("library", "edit", "rehearsal", "--add", text, workspace=practised)
    names = [e for e in Workspace(practised).library("rehearsal").versions()]
    page = studio("diff", "rehearsal@0", f"rehearsal@{len(names) - 1}", "--format", "html",
                  workspace=practised).stdout  # fmt: skip
    assert "<script>" not in page
    assert html.escape(text) in page


def test_a_terminal_obeys_no_path_either(tmp_path: Path) -> None:
    folder = tmp_path / "up\x1b[2J"
    folder.mkdir()
    workspace = folder / "practice\x1b]0;title\x07"
    small = ("data.truncate=4", "practice.epochs=1", "evaluation.do_eval=false")
    commands: list[tuple[str, ...]] = [
        (),
        ("runs", "list"),
        ("library", "list"),
        ("init", "rehearsal", "--to", str(folder / "mine.yaml")),
        ("headless", "rehearsal", *small),
        ("headless", "rehearsal", *small),
        (),
        ("runs", "list"),
        ("runs", "show", "rehearsal"),
        ("ctl", "status"),
        ("ctl", "stop"),
        ("library", "list"),
        ("data", "add", str(folder / "rows.jsonl")),
        ("data", "add", str(folder / "rows.jsonl")),
        ("data", "list"),
        ("data", "check", "rows"),
        ("data", "check", str(folder / "rows.jsonl")),
        ("doctor",),
        ("runs", "rm", "nobody"),
        ("headless", str(folder / "nowhere.yaml")),
    ]
    (folder / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    for words in commands:
        done = studio(*words, workspace=workspace)
        assert done.code in (0, 2, 4), (words, done.stderr)
        assert FORBIDDEN.findall(done.stdout + done.stderr) == [], words
    asked = studio("runs", "rm", "rehearsal", workspace=workspace, typed="n\n")
    assert FORBIDDEN.findall(asked.stdout + asked.stderr) == []
