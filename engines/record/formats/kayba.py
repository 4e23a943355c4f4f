"""Skillbook JSON of kayba (ace 0.9); later ones say `insight` for `content`."""

from datetime import UTC, datetime
from pathlib import Path

from engines.record.formats.source import Card, ForeignEntry, ForeignLibrary, Source, dump_json

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
            "evidence": "; ".join([card.title, *filter(None, [worths.get(one.id)]), *measured]),
            **{"created_at": times[0], "updated_at": times[-1], "embedding": None},
            **{"status": "active", "sources": []},
        }
    sections, last = {"experiences": list(skills)}, max(0, card.library.next_number - 1)
    shared = {"sections": sections, "next_id": last, "similarity_decisions": {}}
    return dump_json({"skills": skills, **shared})


def read(path: Path) -> ForeignLibrary:
    source = Source(path, MOVE)
    data = source.json()
    found, losses, cards = [], [], list[str]()
    for name, value in source.mapping(data.get("skills"), ": skills").items():
        inside = f": skills.{name[:60]}"
        row = source.mapping(value, inside)
        if not name or row.get("id", name) != name:
            raise source.error("its id is not the key that it stands under.", inside)
        if row.get("status") == "invalid" or row.get("active") is False:
            losses.append(f"{name}, which is marked invalid")
            continue
        text = row.get("content") or row.get("insight") or row.get("issue") or ""
        notes = {n: row[n] for n in _NOTES if isinstance(row.get(n), str | int) and row[n] != text}
        note, section = "; ".join(f"{n}={v}" for n, v in notes.items()), row.get("section")
        cards.append(str(row.get("evidence"))[:300])
        content = source.string(text, f"{inside}.content")
        section = section if isinstance(section, str) else ""
        found.append((inside, ForeignEntry(name, content, section, note)))
    if data.get("similarity_decisions"):
        losses.append("decisions about similar skills")
    return source.library("kayba", found, losses, card="\n".join(cards))
