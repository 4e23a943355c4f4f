"""A module with a tool."""

from __future__ import annotations


def shout(word: str) -> str:
    """Say it louder."""
    return word.upper()
