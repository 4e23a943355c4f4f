"""The mark of a value that holds all that is told of one subject.

A subject (a run, a step, a rollout …) is one frozen dataclass in a file of this folder, made in one
place from what lies on disk. Renderers in `studio.render` and the pages of the screen only choose
words and widths: every figure they show is a field or a property here, hence in `--json`.
"""

LIFTED = {"lifted": True}
"""Metadata of a field whose own fields stand beside those of the subject in JSON."""


class Subject:
    """A value whose public properties are told like its fields."""

    __slots__ = ()
