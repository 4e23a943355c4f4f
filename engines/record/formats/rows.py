"""Formats that hold a row for each experience: playbooks of ACE and kayba, the studio's own files.

* ace: sections of lines `[slug-00001] helpful=5 harmful=0 :: text`. Its next id is the highest
  number behind a hyphen, so `E7` is written as `E-00007`.
* kayba: skillbook JSON of kayba's ace 0.9; later ones say `insight` for `content`.
* json: all of a version. studio: `vNNNN.yaml`, and `agent.yaml`, the enhanced agent as a file that
  another run file can mount. It holds no key: secrets are masked in every text.
"""

import re
from datetime import UTC, datetime
from pathlib import Path

from engines.core.codec import JsonMapping, JsonObject, to_dict
from engines.core.library import Experience, Library
from engines.core.library_notes import NO_USES
from engines.record import appender, libraries, seal, yaml_text
from engines.record.formats.source import (
    Card,
    ForeignEntry,
    ForeignLibrary,
    Source,
    count_lines,
    dump_json,
)
from engines.secrets.mask import NO_SECRETS, Mask

_ACE_ENTRY = re.compile(r"\[([^\]]*)\]\s*(helpful=\d+\s+harmful=\d+(?:\s+\w+=\S+)*)\s*::\s*(.*)")
_ACE_CARD = "EVALUATION OF THE LIBRARY"


def write_ace(card: Card) -> bytes:
    lines = ["## EXPERIENCES"]
    for experience in card.library.experiences:
        uses = card.library.notes.uses.get(experience.id, NO_USES)
        name = re.sub(r"^E([1-9]\d*)$", lambda match: f"E-{match[1]:0>5}", experience.id)
        lines.append(f"[{name}] helpful={uses.used} harmful={uses.misled} :: {experience.text}")
    lines += ["", f"## {_ACE_CARD}", *(f"* {line}" for line in card.lines()), ""]
    return "\n".join(lines).encode("utf-8", "replace")


def read_ace(source: Source) -> ForeignLibrary:
    section = card = ""
    found: list[tuple[str, ForeignEntry]] = []
    left_out: list[str] = []
    for number, line in enumerate(map(str.strip, source.text().split("\n")), 1):
        match = _ACE_ENTRY.fullmatch(line)
        if line.startswith("#"):
            section = line.lstrip("#").strip()
        elif match and match[1]:
            name = re.sub(r"^E-0*(\d+)$", r"E\1", match[1])
            found.append((f":{number}", ForeignEntry(name, match[3], section, match[2])))
        elif line.startswith("["):
            raise source.error("it is no line of a playbook.", f":{number}")
        elif section != _ACE_CARD:
            left_out.append(line)
        else:
            card = card or line
    return source.library(found, count_lines(left_out, "of text that is no entry"), card=card)


_KAYBA_NOTES = ("helpful", "harmful", "neutral", "justification", "evidence", "issue")


def write_kayba(card: Card) -> bytes:
    worths = card.worths()
    results = [result.text for result in card.results]
    skills: JsonObject = {}
    for experience in card.library.experiences:
        history = experience.history
        # A time must stand there, also where none is known.
        times = [datetime.fromtimestamp(made.at, UTC).isoformat() for made in history]
        times = times or ["1970-01-01T00:00:00+00:00"]
        worth = [worths[experience.id]] if experience.id in worths else []
        skills[experience.id] = {
            "id": experience.id,
            "section": "experiences",
            "content": experience.text,
            "justification": (history[-1].rationale if history else "") or None,
            "evidence": "; ".join([card.title, *worth, *results]),
            "created_at": times[0],
            "updated_at": times[-1],
            "embedding": None,
            "status": "active",
            "sources": [],
        }
    book = {
        "skills": skills,
        "sections": {"experiences": list(skills)},
        "next_id": max(0, card.library.next_number - 1),
        "similarity_decisions": {},
    }
    return dump_json(book)


def read_kayba(source: Source) -> ForeignLibrary:
    data = source.json()
    found: list[tuple[str, ForeignEntry]] = []
    losses: list[str] = []
    cards: list[str] = []
    for name, value in source.mapping(data.get("skills"), ": skills").items():
        inside = f": skills.{name[:60]}"
        row = source.mapping(value, inside)
        if not name or row.get("id", name) != name:
            raise source.error("its id is not the key that it stands under.", inside)
        if row.get("status") == "invalid" or row.get("active") is False:
            losses.append(f"{name}, which is marked invalid")
            continue
        text = row.get("content") or row.get("insight") or row.get("issue") or ""
        notes = [
            f"{field}={row[field]}"
            for field in _KAYBA_NOTES
            if isinstance(row.get(field), str | int) and row[field] != text
        ]
        section = row.get("section")
        entry = ForeignEntry(
            id=name,
            text=source.string(text, f"{inside}.content"),
            section=section if isinstance(section, str) else "",
            note="; ".join(notes),
        )
        found.append((inside, entry))
        cards.append(str(row.get("evidence"))[:300])
    if data.get("similarity_decisions"):
        losses.append("decisions about similar skills")
    return source.library(found, losses, card="\n".join(cards))


# -- the studio's own -------------------------------------------------------------------------

_NO_LIST = "it does not hold a list `experiences` of `id` and `text`."


def library_data(library: Library) -> JsonObject:
    return {
        "library": library.name,
        "version": library.version,
        "content_hash": library.content_hash,
        "tokens_per_call": library.guidance_tokens,
        "experiences": [to_dict(experience) for experience in library.experiences],
        "uses": {name: to_dict(counts) for name, counts in library.notes.uses.items()},
        "effects": {name: to_dict(effect) for name, effect in library.notes.effects.items()},
    }


def write_json(card: Card) -> bytes:
    return dump_json({**library_data(card.library), "evaluation": card.data()})


def load_library(path: Path) -> Library:
    """Return a version as one of our files holds it. Raises DataError where it is none."""
    source = Source(path, "studio")
    if not re.search(r"\bexperiences[\"']?\s*:", source.text()):
        raise source.error(_NO_LIST)
    data = source.yaml()  # JSON is YAML, too
    library, version = _read_own(source, data), data.get("version")
    entries = tuple(Experience(e.id, e.text, pinned=e.pinned) for e in library.entries)
    last = max((int(e.id[1:]) for e in entries if e.id[1:].isdecimal()), default=0)
    return Library(library.name, version if isinstance(version, int) else 0, entries, last + 1)


def read_json(source: Source) -> ForeignLibrary:
    return _read_own(source, source.json())


def read_studio(source: Source) -> ForeignLibrary:
    return _read_own(source, source.yaml())


def _read_own(source: Source, data: JsonObject) -> ForeignLibrary:
    rows = data.get("experiences")
    if not isinstance(rows, list):
        raise source.error(_NO_LIST)
    # An agent file is written to be composed: `${` stands escaped in it.
    unescape = yaml_text.unescape_interpolation if "instructions" in data else str
    found: list[tuple[str, ForeignEntry]] = []
    for at, row in enumerate(rows):
        inside = f": experiences[{at}]"
        fields = source.mapping(row, inside)
        name = source.string(fields.get("id"), f"{inside}.id")
        text = source.string(fields.get("text"), f"{inside}.text")
        if not name:
            raise source.error("its id is empty.", inside)
        worth = fields.get("worth")
        entry = ForeignEntry(
            id=name,
            text=unescape(text),
            note=worth if isinstance(worth, str) else "",
            pinned=fields.get("pinned") is True,
        )
        found.append((inside, entry))
    held = tuple(Experience(entry.id, entry.text) for _, entry in found)
    if data.get("content_hash") not in (None, Library("", 0, held).content_hash):
        raise source.error(
            "its experiences do not give the content_hash it holds.",
            move="Delete its content_hash to use it as your own, or restore it from a copy.",
        )
    losses = [f"the {part} of its experiences" for part in ("uses", "effects") if data.get(part)]
    card = data if "library" in data else source.first_line("# Experiences (")  # of an agent.yaml
    return source.library(found, losses, data.get("library"), card)


def format_agent_yaml(
    agent: JsonMapping, library: Library, run: str, mask: Mask = NO_SECRETS
) -> bytes:
    """Render `agent.yaml`, sealed; `run` is "" outside runs.

    `agent` is what the run file says of it, with `${` escaped wherever it stands for itself.
    """
    return seal.add_seal(format_agent_head(library, run) + format_agent_body(agent, library, mask))


def format_agent_head(library: Library, run: str) -> bytes:
    """Return what the file says of itself."""
    return (
        "# An agent enhanced by practice. To mount it, copy it to configs/agents/NAME.yaml in\n"
        "# the workspace and write in a run file:  defaults: [/agents/NAME@agent, _self_]\n"
        "# To change it, delete the line `# sha256 …`: the file is your own then.\n"
        f"# Experiences ({library.content_hash}) of library {library.name}@{library.version}"
        f"{f', run {run}' if run else ''}.\n"
    ).encode()


def format_agent_body(agent: JsonMapping, library: Library, mask: Mask) -> bytes:
    rows = [
        {**libraries.experience_row(e), "text": yaml_text.escape_interpolation(mask(e.text))}
        for e in library.experiences
    ]
    data = {**mask.tree(dict(agent)), "experiences": rows}
    return yaml_text.dump_yaml(data).encode("utf-8", "replace")


def refresh_agent(path: Path, library: Library, run: str, mask: Mask = NO_SECRETS) -> None:
    """Write a run's `agent.yaml` again with the experiences of another version.

    Raises DamagedError: it was altered, and would be sealed as if it were the studio's.
    """
    seal.refuse_altered(path)
    described = yaml_text.load_yaml(path.read_text("utf-8"))
    described.pop("experiences", None)
    appender.write_atomic(path, format_agent_yaml(described, library, run, mask))
