"""Whether the screen can be drawn here as it is meant: the terminal, and tmux or screen in between.

Says what is set; `link` measures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from studio.workspace.checks.finding import Finding, ask_program

Ask = Callable[..., Awaitable[tuple[int, str, str]]]
LEAST, WANTED = (60, 16), (80, 24)
"""Columns and rows from which the screen works, and for which it is made."""
SLOW_ESCAPE_MS = 50
_TMUX = (
    *("version", "default-terminal", "escape-time", "set-clipboard", "allow-passthrough"),
    *("client_termname", "client_termfeatures"),
)


def terminal_findings(
    environ: Mapping[str, str],
    missing: tuple[str, str] | None,
    size: tuple[int, int],
    encoding: str,
) -> list[Finding]:
    """`missing`: place and cause where no screen can be drawn at all."""
    if missing is not None:
        move = "`studio headless` and `studio review` do without."
        return [Finding("note", missing[0], f"{missing[1]}.", move)]
    term = environ.get("TERM", "")
    columns, rows = size
    shown = f"{term}, {columns}x{rows}, {_colours(environ)}, {encoding}"
    found = [Finding("ok", "terminal", f"{shown}.")]
    if columns < WANTED[0] or rows < WANTED[1]:
        cause = f"it has {columns}x{rows}, and the screen is made for {WANTED[0]}x{WANTED[1]}."
        worse = columns < LEAST[0] or rows < LEAST[1]
        move = "Make it larger: a list is all that is shown so." if worse else "Make it larger."
        found.append(Finding("note", "terminal", cause, move))
    if environ.get("TMUX") and not term.startswith(("tmux", "screen")):
        cause = f"TERM is {term} within tmux, which draws as tmux-256color."
        found.append(Finding("note", "TERM", cause, "Do not set TERM in your shell's start files."))
    return found


def _colours(environ: Mapping[str, str]) -> str:
    term = environ.get("TERM", "")
    if environ.get("NO_COLOR") or term.startswith("vt"):
        return "no colours" + (" (NO_COLOR)" if environ.get("NO_COLOR") else "")
    if environ.get("COLORTERM") in ("truecolor", "24bit") or "direct" in term:
        return "truecolor"
    return "256 colours" if "256" in term else "16 colours"


async def multiplexer_findings(environ: Mapping[str, str], ask: Ask = ask_program) -> list[Finding]:
    """What stands between the studio and the terminal; nothing where nothing does."""
    if environ.get("TMUX"):
        form = "\x1f".join(f"#{{{name}}}" for name in _TMUX)
        pane = ("-t", environ["TMUX_PANE"]) if environ.get("TMUX_PANE") else ()
        try:
            status, out, err = await ask("tmux", "display-message", "-p", *pane, form)
        except OSError as error:
            status, out, err = 1, "", str(error)
        if status:
            move = "Open a new shell in it, or unset TMUX where there is none."
            return [Finding("note", "tmux", f"it does not answer ({err.strip()}).", move)]
        # Some versions print a control character as `\037`, so that it cannot be typed.
        told = out.strip("\n").replace("\\037", "\x1f").split("\x1f")
        return tmux_findings(dict(zip(_TMUX, told, strict=False)))
    if environ.get("STY"):
        cause = "copies (OSC 52) do not pass it, and colours may be few."
        return [Finding("note", "screen", cause, "Use tmux, or no multiplexer, for the screen.")]
    return []


def tmux_findings(set_to: Mapping[str, str]) -> list[Finding]:
    """From what tmux says of itself, by the names of its options and formats."""
    outer, features = set_to.get("client_termname", ""), set_to.get("client_termfeatures", "")
    text = f"tmux {set_to['version']} in {outer or 'no terminal'}, "
    text += f"default-terminal {set_to.get('default-terminal')}, "
    text += "truecolor." if "RGB" in features.split(",") else "256 colours."
    found = [Finding("ok", "tmux", text)]

    def note(cause: str, setting: str) -> None:
        move = f"Put `{setting}` into ~/.tmux.conf, then: tmux source ~/.tmux.conf"
        found.append(Finding("note", "tmux", cause, move))

    waits = set_to.get("escape-time", "")
    if waits.isdecimal() and int(waits) > SLOW_ESCAPE_MS:
        note(f"the key escape comes {waits} ms late (escape-time).", "set -sg escape-time 10")
    passes = set_to.get("allow-passthrough", "") in ("on", "all")
    if not passes and set_to.get("set-clipboard") != "on":
        cause = "copies (OSC 52) do not reach the terminal: set-clipboard is "
        note(f"{cause}{set_to.get('set-clipboard')}.", "set -g set-clipboard on")
    if not set_to.get("default-terminal", "").startswith(("tmux", "screen")):
        cause = f"its default-terminal is {set_to.get('default-terminal')}: cells may be misdrawn."
        note(cause, "set -g default-terminal tmux-256color")
    elif (
        "256color" not in set_to["default-terminal"] and "direct" not in set_to["default-terminal"]
    ):
        note("its default-terminal names 8 colours.", "set -g default-terminal tmux-256color")
    return found
