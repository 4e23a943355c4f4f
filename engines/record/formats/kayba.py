"""Skillbook JSON of kayba (ace 0.9); later ones say `insight` for `content`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.record.formats.card import Card
from engines.record.formats.source import ForeignEntry, ForeignLibrary, Placed, Source, dump_json

MOVE = "Give a skillbook as kayba's ace saves it, with an object `skills`."
_UNKNOWN = "1970-01-01T00:00:00+00:00"  # a time must stand there
_NOTES = ("helpful", "harmful", "neutral", "justification", "evidence", "issue")


def write(card: Card) -> bytes:
    worths, skills = card.worths(), {}
    measured = [result.text for result in card.results]
    for one in card.library.experiences:
        marks = one.history
        times = [datetime.fromtimestamp(m.at, UTC).isoformat() for m in marks] or [_UNKNOWN]
        skills[one.id] = {
            "id": one.id,
            "section": "experiences",
            "content": one.text,
            "justification": (marks[-1].rationale if marks else "") or None,
            "evidence": "; ".join([*filter(None, [worths.get(one.id)]), *measured]) or None,
            **{"created_at": times[0], "updated_at": times[-1], "embedding": None},
            **{"status": "active", "sources": []},
        }
    sections, last = {"experiences": list(skills)}, max(0, card.library.next_number - 1)
    shared = {"sections": sections, "next_id": last, "similarity_decisions": {}}
    return dump_json({"skills": skills, **shared})


def read(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    data = source.json()
    skills = source.mapping(data.get("skills"), ": skills")
    rows = {name: source.mapping(one, f": skills.{name[:60]}") for name, one in skills.items()}
    gone = {n for n, r in rows.items() if r.get("status") == "invalid" or r.get("active") is False}
    losses = [f"{name}, which is marked invalid" for name in sorted(gone)]
    if data.get("similarity_decisions"):
        losses.append("decisions about similar skills")
    kept = {name: row for name, row in rows.items() if name not in gone}
    return source.library("kayba", _entries(source, kept), losses)


def _entries(source: Source, rows: dict[str, dict[str, Any]]) -> Placed:
    for name, row in rows.items():
        inside = f": skills.{name[:60]}"
        if not name or row.get("id", name) != name:
            raise source.error("its id is not the key that it stands under.", inside)
        text = row.get("content") or row.get("insight") or row.get("issue")
        content = source.string("" if text is None else text, f"{inside}.content")
        notes = {n: row[n] for n in _NOTES if isinstance(row.get(n), str | int) and row[n] != text}
        note, section = "; ".join(f"{n}={v}" for n, v in notes.items()), row.get("section")
        yield inside, ForeignEntry(name, content, section if isinstance(section, str) else "", note)
