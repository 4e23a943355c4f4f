"""The file of the screen's settings: read, refused, written, turned."""

from pathlib import Path

import pytest

from engines.core.errors import ConfigError
from studio.tui.help import value_text, with_next_value
from studio.tui.settings import (
    FILE,
    ScreenSettings,
    format_settings,
    read_settings,
    user_settings_path,
    write_settings,
)


@pytest.fixture(autouse=True)
def _no_settings_of_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def given(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(text, encoding="utf-8")
    return folder


def test_without_a_file_the_shipped_settings_hold(tmp_path: Path) -> None:
    settings = read_settings(tmp_path / "practice")
    assert settings == ScreenSettings(place=str(tmp_path / "practice" / FILE))


def test_every_setting_is_read(tmp_path: Path) -> None:
    settings = read_settings(
        given(
            tmp_path,
            """
theme: studio-light
ascii: true
mouse: off
low_bandwidth: yes
notify:
  bell: false
  desktop: no
  command: mail -s "a run waits" ann
keys:
  review.approve: [y, "?"]
  global.detach: ctrl+x
""",
        )
    )
    assert settings == ScreenSettings(
        theme="studio-light",
        ascii=True,
        mouse=False,
        low_bandwidth=True,
        bell=False,
        desktop=False,
        command='mail -s "a run waits" ann',
        keys={"review.approve": "y,question_mark", "global.detach": "ctrl+x"},
        place=str(tmp_path / FILE),
    )


def test_the_workspace_stands_before_the_person(tmp_path: Path) -> None:
    given(user_settings_path().parent, "mouse: false\nascii: true\n")
    assert read_settings(tmp_path / "practice").mouse is False
    given(tmp_path / "practice", "ascii: false\n")
    assert read_settings(tmp_path / "practice").mouse is True


@pytest.mark.parametrize("text", ["", "# nothing\n", "keys:\n", "notify: null\n", "theme: auto\n"])
def test_what_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    settings = read_settings(given(tmp_path, text))
    assert settings == ScreenSettings(place=str(tmp_path / FILE))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("mous: true", 1, 'Did you mean "mouse"?'),
        ("mouse: maybe", 1, "There are: true, false"),
        ("\ntheme: studio-drak", 2, 'Did you mean "studio-dark"?'),
        ("notify:\n  bel: true", 2, 'Did you mean "bell"?'),
        ("notify: true", 1, "holds no keys"),
        ("notify:\n  command: mail 'ann", 2, "quote that does not end"),
        ("mouse: [true]", 1, "not one value"),
        ("mouse: true\nmouse: false", 2, "duplicate key mouse"),
        ("keys: 5", 1, "holds no keys"),
    ],
)
def test_what_nobody_understands_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_settings(given(tmp_path, text))
    assert f"{FILE}:{line}" in refused.value.place
    assert told in str(refused.value)
    assert refused.value.move


@pytest.mark.parametrize("content", [b"a: [", b"- 1", b"\xff\xfe", b"a: &a [*a]"])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=FILE):
        read_settings(tmp_path)


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    settings = ScreenSettings(
        theme="studio-mono",
        ascii=False,
        mouse=False,
        command="notify-send 'a: b' # no comment",
        keys={"review.approve": "y,question_mark", "diff.same": "comma"},
        place=str(tmp_path / "new" / FILE),
    )
    path = write_settings(settings, tmp_path / "new")
    assert read_settings(tmp_path / "new") == settings
    assert path.stat().st_mode & 0o077 == 0
    assert format_settings(ScreenSettings()).startswith("#")


def test_every_setting_turns_through_its_values_and_comes_back() -> None:
    start = ScreenSettings()
    for name, count in (
        ("theme", 5),
        ("ascii", 3),
        ("mouse", 2),
        ("low_bandwidth", 2),
        ("bell", 2),
        ("desktop", 2),
    ):
        now, seen = start, []
        for _ in range(count):
            seen.append(value_text(now, name))
            now = with_next_value(now, name)
        assert now == start
        assert len(set(seen)) == count
    assert with_next_value(start, "command") == start
