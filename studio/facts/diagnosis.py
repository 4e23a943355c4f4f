"""What `studio doctor` tells: what was looked at, and each finding."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Self, get_args

from engines.core.codec import JsonMapping
from engines.core.frozen import frozen
from engines.record.repair import Finding, Grade
from studio.facts.subject import Subject

GRADES: tuple[Grade, ...] = get_args(Grade)


@frozen
class Diagnosis(Subject):
    """All findings of a look at a workspace, its machine and a run's models."""

    looked_at: Mapping[str, int] = field(default_factory=dict)  # in numbers
    findings: Sequence[Finding] = ()
    living: Mapping[str, str] = field(default_factory=dict)  # runs at work, each with its process
    is_read_only: bool = False  # no repair can be written
    machine: JsonMapping = field(default_factory=dict)

    def add(self, machine: JsonMapping, findings: Sequence[Finding]) -> Self:
        """Return the diagnosis with the machine, what hinders most first."""
        every = sorted((*self.findings, *findings), key=_weight)
        return replace(self, machine=machine, findings=tuple(every))

    @property
    def to_fix(self) -> int:
        """How many findings hinder still."""
        return sum(is_open(finding) for finding in self.findings)

    @property
    def repairable(self) -> int:
        """How many of those a repair puts right."""
        return sum(is_open(f) and f.repair is not None for f in self.findings)

    @property
    def notes(self) -> int:
        return sum(f.grade == "note" and not f.repaired for f in self.findings)

    @property
    def well(self) -> bool:
        """Nothing is damaged, or what was is repaired; and nothing else fails to work."""
        return not self.to_fix


def is_open(finding: Finding) -> bool:
    return finding.grade == "fix" and not finding.repaired


def _weight(finding: Finding) -> tuple[bool, bool, int]:
    """What is to be fixed first, then what was repaired."""
    return not is_open(finding), not finding.repaired, GRADES.index(finding.grade)
