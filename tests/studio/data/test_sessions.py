"""One's own sessions: imported, looked at, and only then practised on."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from engines.data.dataset import set_mark
from engines.record.run_dir import Workspace
from studio.data.sessions import read_item, review_items
from studio.render.data_lines import item_text
from tests.support.fake_endpoint import an_endpoint, says
from tests.support.run_studio import Result, run_here, studio
from tests.support.session_files import (
    WRITERS,
    Act,
    act,
    inspect_head,
    inspect_sample,
    say,
    user,
    write_claude,
    write_json,
)

SORT = [
    user("Sort it"),
    say("By name."),
    user("No, that's wrong: by date"),
    say("By date."),
    user("Thanks!"),
]


def import_acts(workspace: Path, *sessions: list[Act], name: str = "mine") -> Result:
    folder = workspace.parent / "sessions"
    for number, acts in enumerate(sessions):
        write_claude(folder, f"s{number}", acts)
    return studio("data", "import", "claude", str(folder), "--name", name, workspace=workspace)


def rows_of(workspace: Path, name: str = "mine") -> list[dict[str, Any]]:
    text = (workspace / "datasets" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def write_rows(workspace: Path, *rows: dict[str, Any], name: str = "mine") -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (workspace / "datasets" / f"{name}.jsonl").write_text(text)


def test_an_import_tells_what_it_found_and_what_it_left_out(workspace: Path) -> None:
    done = import_acts(workspace, SORT, [user("Sort it"), say("By size.")])
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("mine: 1 problem from 2 sessions, in ")
    assert "tries     1 wrong, 1 right, 1 unknown; 1 problem with several" in done.stdout
    assert '"file-history-snapshot" entries' in done.stdout
    assert "data review mine" in done.stderr
    (row,) = rows_of(workspace)
    assert (row["question"], row["reviewed"]) == ("Sort it", False)
    assert [one["response"] for one in row["rollouts"]] == [
        "By name.",
        "[user] No, that's wrong: by date\n[assistant] By date.",
        "By size.",
    ]
    assert [one["reward"] for one in row["outcomes"]] == [0.0, 1.0, None]
    assert row["imported"] == {"format": "claude", "sessions": ["s0", "s1"], "subagents": []}


def test_a_dry_run_and_a_second_import_write_nothing(workspace: Path) -> None:
    folder = workspace.parent / "sessions"
    write_claude(folder, "s", SORT)
    words = ("data", "import", "claude", str(folder), "--name", "mine", "--json")
    dry = studio(*words, "--dry-run", workspace=workspace)
    assert json.loads(dry.stdout)["written"] is False and not workspace.exists()
    first = json.loads(studio(*words, workspace=workspace).stdout)
    assert {**json.loads(dry.stdout), "written": True, "dry_run": False} == first
    studio("data", "review", "mine", "--yes", workspace=workspace)
    before = rows_of(workspace)
    again = studio(*words, workspace=workspace)
    assert json.loads(again.stdout)["written"] is False and rows_of(workspace) == before
    told = [studio(*words[:-1], *more, workspace=workspace).stdout for more in ((), ("--dry-run",))]
    assert "nothing changed, all in" in told[0] and "not written: " in told[1]
    write_claude(folder, "t", [user("Other"), say("o")])
    other = studio(*words, workspace=workspace)
    assert other.code == 2 and "Choose another one with --name NAME" in other.stderr
    assert rows_of(workspace) == before


WRONG = [
    (("claude", "nowhere"), "There is no such file or folder"),
    (("codex", "sessions"), "none of the codex format's sessions"),
    (("claude", "empty"), "(0 files looked at)"),
    (("claude", "sessions", "--name", "../x"), "Choose one with --name NAME"),
    (("windsurf", "sessions"), "claude"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_what_cannot_be_imported_is_refused_and_nothing_is_written(
    words: tuple[str, ...], said: str, workspace: Path
) -> None:
    write_claude(workspace.parent / "sessions", "s", SORT)
    (workspace.parent / "empty").mkdir()
    done = studio("data", "import", *words, workspace=workspace)
    assert done.code == 2 and said in done.stderr
    assert not (workspace / "datasets").exists()


# Secrets


SECRETS = {
    "AWS": ["AKIAQ3EGRVLZK7PMTN2B", "ASIAX7QWERTYUIOP2345", "AKIA2ZC6VB7NM8LK9JHG"],
    "GitHub": [f"ghp_{'a8Kd93nfLq'}{n}x7Yw2Vb5Tc1Re6Ui4Op9M" for n in range(3)],
    "Slack": [f"xoxb-293847561{n}-hG7kLm29sQ4" for n in range(3)],
    "JWT": [f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI{n}In0xyz.dBjftJeZ4CVP{n}" for n in range(3)],
    "private key": [
        f"-----BEGIN {kind}PRIVATE KEY-----\nMIIEpAIBAAKC{n}QEA7bq\n-----END {kind}PRIVATE KEY-----"
        for n, kind in enumerate(("RSA ", "OPENSSH ", ""))
    ],
    "address": [f"https://bob{n}:hunter{n}two@host.example/repo" for n in range(3)],
    "header": [f"Authorization: Bearer q9w8e7r6t5y4{n}" for n in range(3)],
    ".env": [f"DB_PASSWORD_{n}=correct{n}horse" for n in range(3)],
    "Google": [f"AIzaSyD4k8Fq2Lw9Zr6Xm1Nv7Bp3Tc5Yh0U{n}" for n in range(3)],
    "connection": [f"Server=db{n};Uid=sa;Pwd=pa55word{n}!;" for n in range(3)],
}
"""Three of each of ten kinds."""
CORES = [
    *("AKIAQ3EGRVLZK7PMTN2B", "ASIAX7QWERTYUIOP2345", "AKIA2ZC6VB7NM8LK9JHG"),
    *("a8Kd93nfLq", "-hG7kLm29sQ4", "eyJzdWIiOiI", "dBjftJeZ4CVP", "MIIEpAIBAAKC"),
    *("hunter0two", "hunter1two", "hunter2two", "q9w8e7r6t5y4"),
    *("correct0horse", "correct1horse", "correct2horse", "SyD4k8Fq2Lw9Zr6", "pa55word"),
]
"""What of them may stand nowhere."""


def a_session_full_of_secrets(number: int) -> list[Act]:
    """The nth of each kind, in what was asked, said, called, shown, and in names of files."""
    texts = [kinds[number] for kinds in SECRETS.values()]
    blob = b64encode("\n".join(texts).encode()).decode()
    named = "-".join(text.replace("/", "_").replace("\n", "_") for text in (texts[0], texts[1]))
    return [
        user("Use these\n" + "\n".join(texts)),
        say("I see " + " and ".join(texts)),
        act(
            "Bash",
            {"command": f"cat {named}.txt; echo '{texts[5]}'", "env": texts},
            "\n".join(texts),
            0,
        ),
        act(
            "Write", {"file_path": f"/tmp/{texts[2]}.pem", "content": blob, texts[1]: 1}, blob, None
        ),
        act("Bash", {"command": f"psql -W correct{number}horse"}, f"as correct{number}horse", 1),
        say(f"Done with correct{number}horse"),
    ]


def leaks(said: str, workspace: Path) -> list[str]:
    """What of the secrets stands in a text or below a folder, also encoded."""
    files = [file for file in workspace.rglob("*") if file.is_file()]
    said += "\n".join(file.read_text("utf-8", "replace") + str(file) for file in files)
    encoded = {b64encode(core.encode()).decode()[:10]: core for core in CORES}
    return [core for core in CORES if core in said] + [
        encoded[one] for one in encoded if one in said
    ]


def write_secrets(folder: Path, label: str, number: int) -> tuple[str, Path]:
    name, write = WRITERS[label]
    place = folder / SECRETS["GitHub"][number]
    place.mkdir(parents=True)
    path = write(place, SECRETS["Slack"][number], a_session_full_of_secrets(number))
    return name, path


@pytest.mark.parametrize("label", WRITERS)
def test_no_planted_secret_leaves_a_session(label: str, workspace: Path) -> None:
    said = ""
    for number in range(3):
        name, path = write_secrets(workspace.parent, label, number)
        done = studio(
            "data", "import", name, str(path), "--name", f"n{number}", workspace=workspace
        )
        assert done.code == 0, done.stderr
        said += done.stdout + done.stderr
    assert leaks(said, workspace) == []


def test_no_planted_secret_is_shown_or_journalled_later(workspace: Path) -> None:
    name, path = write_secrets(workspace.parent, "codex", 0)
    given = path.read_text()
    assert [core for core in CORES if core in given] != []
    words = ("data", "import", name, str(path), "--name", "mine")
    commands = [(*words, "--dry-run", "--json"), words, ("data", "preview", "mine")]
    commands += [("data", "review", "mine"), ("data", "review", "mine", "--json")]
    commands += [("headless", "replay", "data.practice=mine", "verifier=recorded")]
    said = ""
    for command in commands:
        done = studio(*command, typed="v\ny\n", workspace=workspace)
        assert done.code in (0, 4), done.stderr
        said += done.stdout + done.stderr
    with path.open("a") as file:
        file.write("{")
    path.rename(path.with_suffix(".json"))
    refused = studio(*words, workspace=workspace)
    assert refused.code == 2
    assert leaks(said + refused.stderr, workspace) == []


# The mark


REFUSED = [
    ("headless", "FILE"),
    ("headless", "FILE", "--dry-run"),
    ("try", "FILE"),
    ("eval", "FILE", "evaluation.data=[mine]", "data.practice=arithmetic"),
    ("headless", "FILE", "policy=replay:mine", "data.practice=arithmetic"),
]


@pytest.mark.parametrize("words", REFUSED)
def test_nothing_is_sent_before_the_mark_not_even_a_ping(
    words: tuple[str, ...], workspace: Path
) -> None:
    import_acts(workspace, SORT)
    file = workspace.parent / "mine.yaml"
    with an_endpoint(says("A: 1")) as endpoint:
        model = {"model": "openai:m", "base_url": endpoint.base_url, "api_key": "k"}
        config = {"exp_id": "mine", "policy": model, "reflector": model, "verifier": "recorded"}
        config |= {"data": {"practice": "mine"}, "practice": {"group_size": 2}}
        file.write_text(json.dumps(config))
        done = studio(
            *[str(file) if word == "FILE" else word for word in words], workspace=workspace
        )
        assert done.code == 2, done.stderr
        place = workspace / "datasets" / "mine.jsonl"
        assert f"{place}:1: " in done.stderr and "studio data review mine" in done.stderr
        assert endpoint.bodies == []
    assert not (workspace / "runs").exists()


def test_a_marked_item_is_used_and_a_change_of_it_drops_the_mark(workspace: Path) -> None:
    import_acts(workspace, SORT, [user("Name it"), say("x")])
    tried = ("try", "replay", "data.practice=mine", "verifier=recorded")
    assert studio("data", "review", "mine", typed="y\ns\n", workspace=workspace).code == 0
    refused = studio(*tried, workspace=workspace)
    assert refused.code == 2 and "mine.jsonl:2: " in refused.stderr
    studio("data", "review", "mine", "--yes", workspace=workspace)
    assert studio(*tried, workspace=workspace).code == 0
    one, other = rows_of(workspace)
    write_rows(workspace, one, {**other, "question": "Name it anew"})
    assert "mine.jsonl:2: " in studio(*tried, workspace=workspace).stderr
    write_rows(workspace, one, {**other, "reviewed_content": None})
    assert studio(*tried, workspace=workspace).code == 2


def test_a_column_of_that_name_in_other_data_stops_nothing_but_a_no(workspace: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "2", "reviewed": "by Ann"}]
    (workspace / "datasets").mkdir(parents=True)
    write_rows(workspace, *rows)
    tried = ("try", "rehearsal", "data.practice=mine")
    assert studio(*tried, workspace=workspace).code == 0
    write_rows(workspace, {**rows[0], "reviewed": False})
    assert studio(*tried, workspace=workspace).code == 2


def test_the_person_decides_item_by_item_and_every_answer_is_kept_at_once(workspace: Path) -> None:
    sessions = [
        [user(f"Request {n}"), say("\n".join(f"line {m}" for m in range(40)))] for n in range(4)
    ]
    import_acts(workspace, *sessions)
    done = studio("data", "review", "mine", typed="v\ny\nn\nx\n?\ny\ny\n", workspace=workspace)
    assert done.code == 3 and "models may see the item" in done.stdout
    assert "16 lines of it not shown in full yet.\ny again marks it" in done.stdout
    assert "line 20" in done.stdout and "… 16 lines more (v)" in done.stdout
    assert "would be sent: the question (9 characters)" in done.stdout
    assert "2 of 3 items may be used" in done.stdout
    assert [(row["question"], row["reviewed"]) for row in rows_of(workspace)] == [
        ("Request 0", True),
        ("Request 2", True),
        ("Request 3", False),
    ]
    (out,) = (workspace / "datasets" / "mine.jsonl.taken-out").read_text().splitlines()
    assert json.loads(out)["question"] == "Request 1"
    listed = json.loads(studio("data", "list", "--json", workspace=workspace).stdout)
    assert [one["name"] for one in listed if one["where"] == "workspace"] == ["mine"]
    one = studio("data", "review", "mine", typed="y\nq\n", workspace=workspace)
    assert one.code == 0 and "2 of 3 items" in one.stdout  # the extra key was q
    piped = run_here(workspace, "data", "review", "mine", typed="s\n")
    assert "q quit: \nitem" in piped.stdout or "q quit: \nmine: 2 of" in piped.stdout


def test_an_edited_item_is_redacted_anew_and_keeps_its_rewards(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_acts(workspace, SORT)

    def rewrite(text: str) -> str:
        return text.replace("Sort it", "Sort all").replace("By date.", "sk-k29fJ3nd8Ls0xQ7v")

    edits = iter(
        [rewrite, lambda _: "", lambda _: '{"question": ["x"], "tries": [[], []]}', str.upper]
    )
    monkeypatch.setattr("click.edit", lambda text, extension: next(edits)(text))
    done = studio("data", "review", "mine", typed="e\ne\ne\ne\ny\n", workspace=workspace)
    assert (
        done.stdout.count("It must stay JSON") == 2
        and "answer n to take the item out" in done.stdout
    )
    (row,) = rows_of(workspace)
    assert (row["question"], row["reviewed"]) == ("Sort all", True)
    assert row["rollouts"][1]["response"].endswith("[assistant] ***")
    run = studio(
        "headless", "replay", "data.practice=mine", "verifier=recorded", workspace=workspace
    )
    assert "0.500 (n=4)" in run.stdout  # the rewards still belong to their tries


def test_a_try_that_was_changed_by_hand_keeps_its_reward_once_it_is_marked(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_acts(workspace, SORT)
    (row,) = rows_of(workspace)
    row["rollouts"][1]["response"] = "By day."
    row["rollouts"].append({"model": "m", "response": "Not at all."})
    row["outcomes"].reverse()  # what a try says comes before its place
    write_rows(workspace, row)
    added = studio("data", "review", "mine", typed="s\n", workspace=workspace).stdout
    assert "try 1: reward 0.0, corrected" in added and added.count("it was not recorded") == 2
    del row["rollouts"][2]
    row["outcomes"].reverse()
    write_rows(workspace, row)
    monkeypatch.setattr("click.edit", lambda text, extension: text)
    done = studio("data", "review", "mine", typed="e\ny\n", workspace=workspace)
    assert "reward 1.0, kept though the try was changed, thanked" in done.stdout
    run = studio(
        *("headless", "replay", "data.practice=mine", "verifier=recorded"),
        *("practice.group_size=2",),
        workspace=workspace,
    )
    assert "0.500 (n=2)" in run.stdout
    assert "draws no lesson from your tries: name a model" in run.stderr
    import_acts(workspace, [user("Same"), say("x")], name="same")
    same = studio("data", "review", "same", typed="e\ns\ns\n", workspace=workspace)
    assert "Nothing was changed." in same.stdout and same.code == 0


def test_the_end_of_a_review_tells_how_to_practise_on_imported_data_alone(workspace: Path) -> None:
    twice = [[user(f"R{n}"), say("a"), user("No, wrong"), say("b")] for n in range(2)]
    three = [[user("R2"), say("a"), user("No, wrong"), say("b"), user("No"), say("c")]]
    import_acts(workspace, *twice, *three, [user("R3"), say("a")])
    done = studio("data", "review", "mine", "--yes", workspace=workspace)
    assert "verifier=recorded practice.group_size=2 reflector=openai:MODEL" in done.stderr
    assert "the mechanics alone" in done.stderr
    write_rows(workspace, {"question": "1 + 1?", "answer": "2"}, name="own")
    own = studio("data", "review", "own", "--yes", workspace=workspace)
    assert own.code == 0 and "next:" not in own.stderr


def test_imported_data_is_checked_and_previewed_with_its_tries(workspace: Path) -> None:
    import_acts(workspace, SORT, [user("Sort it"), say("By size.")])
    shown = studio("data", "preview", "mine", workspace=workspace).stdout
    assert "3 tries: 0.0, 1.0, unknown" in shown
    item = {**rows_of(workspace)[0], "rollouts": [{"model": "", "response": "By name."}]}
    assert "corrected by the person, model unknown\n" in item_text(read_item(1, 1, item))
    done = studio("data", "check", "mine", workspace=workspace)
    assert done.code == 0 and "tries          1 wrong, 1 right, 1 unknown" in done.stdout
    assert "clean" in done.stdout and "data review mine" in done.stderr
    file = workspace / "datasets" / "mine.jsonl"
    other = studio("data", "check", str(file), workspace=workspace.parent / "other")
    assert other.code == 0 and "data add" in other.stderr
    studio("data", "review", "mine", "--yes", workspace=workspace)
    run = studio("headless", "replay", "data.practice=mine", workspace=workspace)
    assert run.code == 2 and "Set verifier=recorded" in run.stderr


def test_an_import_names_broken_files_and_counts_private_things_apart(workspace: Path) -> None:
    folder = workspace.parent / "sessions"
    mail = [say("hi"), user("Mail ann@example.org from /home/ann"), say("Done.")]
    write_claude(folder, "s", [user("Say hi"), *mail])
    (folder / "broken.jsonl").write_text("{oh no\n")
    words = ("data", "import", "claude", str(folder), "--anonymous", "--dry-run")
    done = studio(*words, workspace=workspace).stdout
    assert "1 file without a session" in done
    with next(folder.glob("**/s.jsonl")).open("a") as file:
        file.write("{cut")
    done = studio(*words, workspace=workspace).stdout
    assert "1 unreadable line" in done
    assert '1 "summary" entry' in done
    assert "0 secrets, 2 home folders or addresses" in done


def test_epochs_of_one_sample_of_inspect_are_its_tries(workspace: Path) -> None:
    samples = [inspect_sample([user("A"), say(f"a{n}")], epoch=n) for n in (1, 2)]
    log = write_json(workspace.parent / "log.json", {**inspect_head("t"), "samples": samples})
    done = studio("data", "import", "inspect", str(log), workspace=workspace).stdout
    assert "1 problem from 1 sample," in done and "2 unknown; 1 problem with several" in done


def test_a_script_decides_by_what_json_printed(workspace: Path) -> None:
    import_acts(workspace, *[[user(f"Request {n}"), say("a")] for n in range(3)])
    items = json.loads(studio("data", "review", "mine", "--json", workspace=workspace).stdout)
    assert [(one["item"], one["reviewed"]) for one in items] == [(1, False), (2, False), (3, False)]
    (told,) = items[0]["tries"]
    assert (told["reward"], told["signals"], told["response"]) == (None, [], "a")
    items[0]["reviewed"], items[1]["reviewed"] = True, "out"
    stale = {"content": "0" * 16, "reviewed": True}
    file = workspace.parent / "marks.json"
    file.write_text(json.dumps([*items, stale]))
    done = studio("data", "review", "mine", "--marks", str(file), workspace=workspace)
    assert "1 of 2 items may be used" in done.stdout and "1 decision for items" in done.stderr
    file.write_text('[{"reviewed": true}]')
    wrong = studio("data", "review", "mine", "--marks", str(file), workspace=workspace)
    assert wrong.code == 2 and "marks.json, row 1" in wrong.stderr
    nothing = studio("data", "review", "arithmetic", workspace=workspace)
    assert nothing.code == 2 and "other data needs no review" in nothing.stderr
    nothing = studio("data", "review", "nowhere", workspace=workspace)
    assert nothing.code == 2 and "no imported data set" in nothing.stderr


# Practice


def test_recorded_sessions_are_practised_by_replay_with_their_own_rewards(workspace: Path) -> None:
    log = Path(__file__).parents[3] / "sample_data" / "replay.jsonl"
    sessions = []
    for line in log.read_text().splitlines()[:4]:
        row = json.loads(line)
        for reply in row["rollouts"]:
            said = "Thanks!" if reply["reward"] else "No, that's wrong"
            sessions.append([user(row["question"]), say(reply["response"]), user(said)])
    import_acts(workspace, *sessions)
    assert studio("data", "review", "mine", "--yes", workspace=workspace).code == 0
    run = studio(
        "headless", "replay", "data.practice=mine", "verifier=recorded", workspace=workspace
    )
    assert run.code == 0, run.stderr
    assert "groups   4 used" in run.stdout
    shown = studio("library", "show", "replay", workspace=workspace)
    assert "[E1]" in shown.stdout or "E1" in shown.stdout  # a lesson of winners and losers


def test_a_try_that_was_not_recorded_has_no_recorded_reward(workspace: Path) -> None:
    import_acts(workspace, SORT)
    (row,) = rows_of(workspace)
    row["rollouts"][0]["response"] = "By colour."
    write_rows(workspace, set_mark(row, True))
    run = studio(
        "headless", "replay", "data.practice=mine", "verifier=recorded", workspace=workspace
    )
    assert run.code == 4 and "1.000 (n=2)" in run.stdout  # of four, two of them unjudged
    lone = studio(
        *("headless", "rehearsal", "data.practice=mine", "verifier=recorded"),
        *("practice.group_size=2", "evaluation.do_eval=false"),
        workspace=workspace,
    )
    assert lone.code == 4 and "this try was not recorded" in lone.stdout + lone.stderr


def test_an_item_that_changes_while_it_is_looked_at_is_not_marked(workspace: Path) -> None:
    import_acts(workspace, SORT, [user("Name it"), say("x")])
    target, said = workspace / "datasets" / "mine.jsonl", list[str]()

    def ask(_: str) -> str:
        one, other = rows_of(workspace)
        write_rows(workspace, {**one, "question": "Sort all of it"}, set_mark(other, True))
        return "y"

    review_items(Workspace(workspace), target, ask, said.append, lambda text: text)
    assert any("changed meanwhile" in text for text in said)
    assert [row["reviewed"] for row in rows_of(workspace)] == [False, True]
