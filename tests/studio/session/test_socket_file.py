"""Where a run's socket is bound when its path is too long, and what a killed process left."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from engines.core.errors import ConflictError
from engines.record.run_dir import RunDir
from studio.session.control_socket import LONGEST_PATH, bind_path, check_owner, connect_path

LONG = "/" + "x" * LONGEST_PATH


@pytest.fixture
def deep(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / ("deep" * 30) / "runs" / "exp")
    run.path.mkdir(parents=True)
    return run


def test_a_run_with_a_short_path_is_bound_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        path = Path(short) / "control.sock"
        with bind_path(path) as name:
            assert name == str(path)


def test_a_short_relative_path_of_a_deep_folder_counts_whole(
    deep: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deep.path)
    with bind_path(Path("control.sock")) as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        assert deep.socket.is_symlink(), "by its whole name it could not be connected to"
        with connect_path(deep) as path:
            assert path == name and len(path) <= LONGEST_PATH
    assert not deep.socket.is_symlink() and not Path(name).parent.exists()


def test_a_folder_for_temporary_files_that_is_too_long_itself_is_passed_over(
    deep: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(deep.path))
    with bind_path(deep.socket) as name:
        assert len(name) <= LONGEST_PATH
        assert Path(name).parent.stat().st_mode & 0o777 == 0o700


def test_without_any_short_folder_the_run_is_refused_with_a_move(deep: RunDir) -> None:
    with (
        pytest.raises(ConflictError, match=r"too long for a socket .* Set TMPDIR"),
        bind_path(deep.socket, (LONG, "", "/nowhere")),
    ):
        pass


def test_what_a_killed_process_left_is_swept_when_its_run_is_bound_again(deep: RunDir) -> None:
    left = Path(tempfile.mkdtemp(prefix="studio-", dir="/tmp"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left / "control.sock"))
    deep.socket.symlink_to(left / "control.sock")
    with bind_path(deep.socket) as name:
        assert not left.exists()
        assert Path(name).parent != left


@pytest.mark.parametrize(
    ("prefix", "mode", "more"),
    [("other-", 0o700, ""), ("studio-", 0o755, ""), ("studio-", 0o700, "x")],
)
def test_a_folder_that_is_not_what_a_process_makes_is_left_alone(
    prefix: str, mode: int, more: str, deep: RunDir, tmp_path: Path
) -> None:
    left = Path(tempfile.mkdtemp(prefix=prefix, dir=tmp_path))
    (left / "kept").write_text("mine") if more else (left / "control.sock").write_text("mine")
    left.chmod(mode)
    deep.socket.symlink_to(left / "control.sock")
    with bind_path(deep.socket):
        assert left.exists()


def test_a_socket_of_another_user_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.socket.touch()
    check_owner(str(run.socket), run)
    with pytest.raises(ConflictError, match=r"another user \(uid \d+\)"):
        check_owner(str(run.socket), run, uid=run.socket.stat().st_uid + 1)
