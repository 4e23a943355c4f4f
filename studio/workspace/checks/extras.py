"""Optional parts of the studio: which are installed, and what each would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from packaging.requirements import Requirement

from engines.core.extras import install_command, installed_version
from engines.record.repair import Finding, Grade

PACKAGE = "practice-studio"
GIVES = {
    "grpo": "models in this process, and training of their weights",
    "qlora": "4-bit weights",
    "deepspeed": "training divided by DeepSpeed's ZeRO",
    "tensorboard": "curves of every run",
    "ray": "rollouts on a cluster",
    "otel": "traces by OpenTelemetry",
    "mcp": "tools of MCP servers, and serving by MCP",
    "web": "pages of the web as text",
    "parquet": "data in Parquet",
    "datasets": "data sets of the hub",
    "xlsx": "data in Excel files",
    "inspect": "logs of inspect, and data compressed by Zstandard",
    "report": "plots in reports",
}
"""All but `rl`, which is three of them, and those for whoever works on the studio itself."""


def extra_findings(
    requires: Iterable[str], version_of: Callable[[str], str | None] = installed_version
) -> list[Finding]:
    """`requires` is what the package's metadata ask for."""
    every = [Requirement(text) for text in requires]
    found, whole = list[Finding](), list[str]()
    for extra in GIVES:
        parts = _parts(every, extra)
        have = {part.name: version_of(part.name) for part in parts}
        if trouble := _lacks(parts, have):
            grade: Grade = "ok" if None in have.values() else "note"
            cause, move = f"{trouble}; it gives {GIVES[extra]}.", f"Run: {install_command(extra)}"
            found.append(Finding(grade, f"extra {extra}", cause, move))
        else:
            told = ", ".join(f"{name} {version}" for name, version in have.items())
            whole.append(f"{extra} ({told or 'part of Python'})")
    return [*found, *([Finding("ok", "extras", f"{', '.join(whole)}.")] if whole else [])]


def _parts(every: list[Requirement], extra: str) -> list[Requirement]:
    return [
        part
        for part in every
        if (marker := part.marker) is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    ]


def _lacks(parts: list[Requirement], have: Mapping[str, str | None]) -> str:
    missing = [name for name, version in have.items() if version is None]
    if missing:
        partly = "" if len(missing) == len(have) else f" (without {', '.join(missing)})"
        return f"not installed{partly}"
    old = [part for part in parts if not part.specifier.contains(have[part.name] or "", True)]
    return ", ".join(f"{part.name} {have[part.name]} is not {part.specifier}" for part in old)
