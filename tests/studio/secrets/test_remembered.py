"""Secrets of earlier runs are recognised later, and cannot be read from what is kept of them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engines.secrets.mask import MASK, Mask
from studio.secrets.workspace import FILE, remember_secrets, secret_finder
from tests.support.processes import SMALL
from tests.support.processes import studio as other_process
from tests.support.run_studio import studio

HEADER, FROM_ENV = "lit-header-77-kkq1", "zebra-42-quokka-9917"


def test_a_header_s_secret_is_masked_in_later_commands_though_nothing_holds_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / "practice"
    policy = f"policy={{model: rehearsal, headers: {{X-A: {HEADER}, X-B: '${{oc.env:TEAM}}'}}}}"
    (tmp_path / ".env").write_text(f"TEAM={FROM_ENV}\n")
    made = studio("headless", "rehearsal", *SMALL, policy, "--name", "h", workspace=home)
    assert made.code == 0, made.stderr
    (tmp_path / ".env").unlink()
    said = f"use {HEADER}, or https://u:{FROM_ENV}@host"
    # In a process of its own: this one still knows them.
    edited = other_process(home, "library", "edit", "h", "--add", said, "--reason", said)
    assert edited.returncode == 0, edited.stderr
    held = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert HEADER.encode() not in held and FROM_ENV.encode() not in held
    shown = studio("library", "show", "h", workspace=home).stdout
    assert f"use {MASK}, or https://{MASK}@host" in shown
    assert (home / FILE).stat().st_mode & 0o777 == 0o600


@given(st.text("ab1-/ ", min_size=12, max_size=30), st.text("ab1-/ \n\"'", max_size=60))
def test_whatever_a_secret_begins_after_it_is_found_whole(
    tmp_path_factory: object, secret: str, rest: str
) -> None:
    secret = secret.strip().rjust(12, "x")
    folder = tmp_path_factory.mktemp("w")  # type: ignore[attr-defined]
    remember_secrets(folder, [secret])
    mask = Mask((), secret_finder(folder))
    for before in ("", " ", "key=", '"', "https://u:", "@"):
        assert secret not in mask(f"{before}{secret} {rest.replace(secret, '')}")


def test_short_values_are_not_kept_and_what_is_damaged_keeps_nobody(tmp_path: Path) -> None:
    remember_secrets(tmp_path, ["short-1"])
    assert not (tmp_path / FILE).exists() and secret_finder(tmp_path) is None
    for text in ("", "[]", '{"salt": 3}', '{"salt": "zz", "known": [[1]]}', "\x00"):
        (tmp_path / FILE).write_text(text)
        assert secret_finder(tmp_path) is None
    remember_secrets(tmp_path, ["long-enough-1234"])
    assert secret_finder(tmp_path) is not None
