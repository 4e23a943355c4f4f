"""Skillbook JSON of kayba (ace 0.9); later ones say `insight` for `content`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.core.library import Library
from engines.record.formats.card import Card
from engines.record.formats.entries import (
    ForeignEntry,
    ForeignLibrary,
    Placed,
    as_object,
    as_text,
    check_entries,
    parse_json,
    read_text,
)

MOVE = "Give a skillbook as kayba's ace saves it, with an object `skills`."
SECTION = "experiences"


def write(library: Library, card: Card) -> bytes:
    skills = {}
    measured = "; ".join(result.text for result in card.results)
    for one in library.experiences:
        marks = one.history
        skills[one.id] = {
            "id": one.id,
            "section": SECTION,
            "content": one.text,
            "justification": (marks[-1].rationale if marks else "") or None,
            "evidence": "; ".join(filter(None, (card.worth(one.id), measured))) or None,
            "created_at": _time(marks[0].at if marks else 0.0, card),
            "updated_at": _time(marks[-1].at if marks else 0.0, card),
            "embedding": None,
            "status": "active",
            "sources": [],
        }
    data = {
        "skills": skills,
        "sections": {SECTION: list(skills)},
        "next_id": max(0, library.next_number - 1),
        "similarity_decisions": {},
    }
    return f"{json.dumps(data, ensure_ascii=False, indent=2)}\n".encode("utf-8", "replace")


def _time(at: float, card: Card) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat() if at else f"{card.date}T00:00:00+00:00"


def read(path: Path) -> ForeignLibrary:
    data = parse_json(path, read_text(path, MOVE), MOVE)
    skills = as_object(path, data.get("skills"), ": skills", MOVE)
    entries = check_entries(path, _entries(path, skills), MOVE)
    invalid = [name for name, skill in skills.items() if _is_invalid(skill)]
    losses = [f"{name}: it is marked invalid" for name in invalid]
    if data.get("similarity_decisions"):
        losses.append("its decisions about similar skills")
    return ForeignLibrary("kayba", path.stem, entries, tuple(losses))


def _is_invalid(skill: Any) -> bool:
    return isinstance(skill, dict) and (
        skill.get("status") == "invalid" or skill.get("active") is False
    )


def _entries(path: Path, skills: dict[str, Any]) -> Placed:
    for name, value in skills.items():
        inside = f": skills.{name[:40]}"
        skill = as_object(path, value, inside, MOVE)
        if not name or skill.get("id", name) != name:
            raise DataError(f"{path}{inside}", "its id is not the key that it stands under.", MOVE)
        if _is_invalid(skill):
            continue
        text = skill.get("content") or skill.get("insight") or skill.get("issue")
        text = as_text(path, text, f"{inside}.content", MOVE)
        notes = [
            f"{field}={skill[field]}"
            if isinstance(skill[field], int)
            else f"{field}: {skill[field]}"
            for field in ("helpful", "harmful", "neutral", "justification", "evidence", "issue")
            if isinstance(skill.get(field), str | int) and skill[field] != text
        ]
        section = skill.get("section")
        section = section if isinstance(section, str) else ""
        yield inside, ForeignEntry(name, text, section, "; ".join(notes))
