"""`studio completion`: what a TAB offers, through the scripts that the shells run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli import build_parser
from studio.commands.reference.completion import KEYS_FILE, VARIABLE, print_candidates
from studio.commands.reference.guide import every_setting
from studio.config.settings import reference
from tests.support.run_studio import studio

KEYS = Path(reference.__file__).with_name(KEYS_FILE)


def declared_keys() -> str:
    """The list of keys as the settings declare it; `python -m` this module writes it anew."""
    rows: dict[str, str] = {}
    for setting in every_setting():
        if setting.kind != "section" and setting.file == reference.RUN_FILE:
            choices = setting.choices or ("true", "false") * (setting.kind == "true or false")
            rows.setdefault(setting.key, f"{setting.key}\t{'|'.join(choices)}\t{setting.meaning}")
    return "\n".join(rows.values()) + "\n"


def test_the_list_of_keys_is_that_of_the_settings() -> None:
    anew = "Write it anew: python -m tests.studio.commands.test_completion"
    assert KEYS.read_text(encoding="utf-8") == declared_keys(), anew


@pytest.fixture
def offered(practised: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """What is offered at the end of a line, in a folder with a workspace and a run file."""
    monkeypatch.chdir(practised.parent)
    Path("mine.yaml").write_text("defaults: [rehearsal, _self_]\n")

    def offer(line: str) -> list[str]:
        print_candidates(line, build_parser())
        return [row.partition("\t")[0] for row in capsys.readouterr().out.splitlines()]

    return offer


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("studio hea", ["headless"]),
        ("studio runs sh", ["show"]),
        ("studio headless rehearsal practice.gro", ["practice.group_size="]),
        ("studio headless rehearsal practice.shuffle=", []),
        ("studio headless rehearsal data.shuffle=", ["data.shuffle=true", "data.shuffle=false"]),
        ("studio headless rehearsal prac", ["practice."]),
        ("studio headless --resume rehearsal practice.epo", ["practice.epochs="]),
        ("studio headless --resume ", ["rehearsal"]),
        ("studio headless --resume=", ["--resume=rehearsal"]),
        ("studio headless --review w", ["wait"]),
        ("studio headless --dr", ["--dry-run"]),
        ("studio headless --ready", []),  # it is hidden
        ("studio headless min", ["mine.yaml"]),
        ("studio run rehe", ["rehearsal"]),
        ("studio runs show ", ["rehearsal"]),
        ("studio library show reh", ["rehearsal"]),
        ("studio eval rehearsal --library rehearsal@1", ["rehearsal@1"]),
        ("studio eval rehearsal --baseline n", ["none"]),
        ("studio diff rehearsal@0 rehearsal@e", ["rehearsal@epoch:"]),
        ("studio init grpo-ti", ["grpo-tiny"]),
        ("studio guide glos", ["glossary"]),
        ("studio data check arithmetic-h", ["arithmetic-heldout"]),
        ("studio config explain practice.grou", ["practice.group_size"]),
        ("studio --workspace elsewhere runs show ", []),
        ("studio runs show --workspace practice reh", ["rehearsal"]),
        ("studio diff --format h", ["html"]),
        ('studio runs show "reh', ["rehearsal"]),
        ("studio no-such-command x", []),
    ],
)  # fmt: skip
def test_what_a_tab_offers(line: str, found: list[str], offered) -> None:  # type: ignore[no-untyped-def]
    assert sorted(offered(line)) == sorted(found)


def test_a_tab_loads_nothing_heavy(practised: Path) -> None:
    program = (
        "import sys, studio.cli as c; c.main.__globals__['sys'].exit = lambda code: None; c.main();"
        "print(*{'pydantic', 'textual', 'hydra', 'openai'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={VARIABLE: "studio headless rehearsal practice.gro", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("practice.group_size=\trollouts of each problem")
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_says_where_it_goes(shell: str, workspace: Path) -> None:
    script = studio("completion", shell, workspace=workspace)
    assert script.code == 0 and "studio completion" in script.stdout.partition("_studio_")[0]
    assert VARIABLE in script.stdout


# zsh completes in a terminal alone.
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_takes_the_script_and_completes(
    shell: str, practised: Path, tmp_path: Path
) -> None:
    script = studio("completion", shell, workspace=practised)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    program = tmp_path / "bin" / "studio"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m studio "$@"\n')
    program.chmod(0o700)
    asks = {
        "bash": "\n".join(
            f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()\n"
            "_studio_completion studio 2>/dev/null; echo \"${COMPREPLY[@]}\""
            for line in ("studio headless rehearsal practice.gro", "studio library show rehearsal@")
        ),
        "fish": "complete -C 'studio headless rehearsal practice.gro' | cut -f1; echo 0 1 2 epoch:",
    }  # fmt: skip
    places = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", f"{script.stdout}\n{asks[shell]}\n"],
        cwd=practised.parent,
        env={**places, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["practice.group_size=", "0 1 2 epoch:"]


if __name__ == "__main__":
    KEYS.write_text(declared_keys(), encoding="utf-8")
