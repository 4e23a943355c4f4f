"""Optional parts of the studio: which are installed, and what each would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import metadata

from packaging.requirements import Requirement

from engines.core.extras import install_command
from studio.workspace.checks.finding import Finding

PACKAGE = "practice-studio"
GIVES = {
    "grpo": "models in this process, and training of their weights",
    "qlora": "4-bit weights",
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


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def extra_findings(
    requires: Iterable[str], version_of: Callable[[str], str | None] = installed_version
) -> list[Finding]:
    """`requires` is what the package's metadata ask for."""
    every = [Requirement(text) for text in requires]
    return [_extra(extra, _parts(every, extra), version_of) for extra in GIVES]


def _parts(every: list[Requirement], extra: str) -> list[Requirement]:
    asked = [part for part in every if part.marker is not None]
    return [
        part
        for part in asked
        if part.marker
        and part.marker.evaluate({"extra": extra})
        and not part.marker.evaluate({"extra": ""})
    ]


def _extra(
    extra: str, parts: list[Requirement], version_of: Callable[[str], str | None]
) -> Finding:
    place, command = f"extra {extra}", f"Run: {install_command(extra)}"
    have = {part.name: version_of(part.name) for part in parts}
    missing = [name for name, version in have.items() if version is None]
    if missing:
        lacks = "" if len(missing) == len(have) else f" (without {', '.join(missing)})"
        return Finding("ok", place, f"not installed{lacks}; it gives {GIVES[extra]}.", command)
    old = [part for part in parts if not part.specifier.contains(have[part.name] or "", True)]
    if old:
        told = ", ".join(f"{part.name} {have[part.name]} is not {part.specifier}" for part in old)
        return Finding("note", place, f"{told}; it gives {GIVES[extra]}.", command)
    told = ", ".join(f"{name} {version}" for name, version in have.items())
    return Finding("ok", place, f"{told or 'part of Python'}.")
