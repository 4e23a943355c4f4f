"""`studio` alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import SMALL, STUDIO
from tests.support.run_studio import studio


def test_a_first_start_shows_presets_and_how_to_begin_and_creates_nothing(
    workspace: Path,
) -> None:
    shown = studio(workspace=workspace)
    assert (shown.code, shown.stderr) == (0, "")
    assert "none yet" in shown.stdout
    assert "studio headless rehearsal" in shown.stdout
    assert "replay" in shown.stdout
    assert not workspace.exists()


def test_runs_are_shown_newest_first_with_what_comes_next(practised: Path) -> None:
    second = ("headless", "rehearsal", *SMALL, "--name", "later")
    assert studio(*second, workspace=practised).code == 0
    shown = studio(workspace=practised).stdout
    assert shown.index("later") < shown.index("rehearsal ")
    assert "rehearsal: scripted replies took part" in shown
    assert "studio runs show later" in shown
    assert "studio diff later@0 later@" in shown
    assert max(len(line) for line in shown.replace(str(practised), "").splitlines()) <= 80


def test_every_command_offered_on_an_empty_home_works(workspace: Path) -> None:
    shown = studio(workspace=workspace).stdout.partition("\nnext\n")[2]
    offered = [line.split("  ")[1].split()[1:] for line in shown.splitlines()]
    assert ["try", "rehearsal"] in offered
    for words in offered:
        settings = SMALL if words[0] == "headless" else ()
        done = studio(*words, *settings, workspace=workspace)
        assert done.code == 0, (words, done.stderr)


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("runs list", ">&-", 0),
        ("runs list --json", ">&- 2>&- <&-", 0),
        ("library list", "2>&-", 0),
        ("nonsense", ">&- 2>&-", 2),
        ("nonsense", "2>/dev/full", 2),
        ("presets list", ">/dev/full", 2),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_streams_that_are_closed_or_full_end_no_command_as_a_bug_would(
    workspace: Path, words: str, streams: str, code: int
) -> None:
    command = f'"$@" --workspace "$WHERE" {words} {streams}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *STUDIO],
        env={**os.environ, "WHERE": str(workspace)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
