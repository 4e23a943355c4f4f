"""Formats in which the experiences are one text for a model: a prompt, and files that hold one.

Text of ours is read line by line. Of others' every `[G0]. text` line is an experience; where there
is none, every item of a list; where there is no list, every paragraph that is no heading.

* prompt: the text alone.
* agents: a section of AGENTS.md between two markers, one for each library. Everything outside the
  markers is somebody else's, and stays byte for byte.
* skill: a folder of agentskills.io that is called as its skill. The body of SKILL.md holds all that
  fits below 500 lines; the rest, the card and pins lie in references and metadata.
* youtu: an agent file of Youtu-Agent. It is composed by Hydra, so `${` stands escaped; its model is
  the one of the checkout.
* dspy: state of a program, as `program.save("x.json")` writes it: the instructions of predictors.
  Ours is called `predict`, as that of ChainOfThought; a program finds its own by name.
* gepa: the best candidate, a text for each component of a system.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from engines.core import codec, errors
from engines.core.library import guidance_text
from engines.record.formats.source import (
    Card,
    ForeignEntry,
    ForeignLibrary,
    Source,
    count_lines,
    dump_json,
)
from engines.record.yaml_text import dump_yaml, escape_interpolation, unescape_interpolation

HEAD = guidance_text([("E1", "x")]).removesuffix("[E1] x")
_OURS = re.compile(r"\[(?P<id>[^\]\s]+)\] (?P<text>.+)")
_FOREIGN = (
    re.compile(r"\s*(?:[-*+] )?\[(?P<id>[^\W_][\w.-]*\d)\]\.?\s+(?P<text>\S.*)"),
    re.compile(r"\s*(?:[-*+•]|\d+[.)])\s+(?P<text>\S.*)"),
)
_NO_TEXT = re.compile(r"\s*(#{1,6}\s|<!--|---+\s*$|```|$)")

Found = list[tuple[str, ForeignEntry]]


def write_prompt(card: Card) -> bytes:
    """Return the text without a card: whatever stands there, a model reads."""
    return card.library.guidance().encode("utf-8", "replace")


def read_prompt(source: Source) -> ForeignLibrary:
    return source.library(*read_lines(source.text()))


def read_texts(texts: Mapping[str, str]) -> tuple[Found, list[str]]:
    """Return the experiences of several prompts, each under its place inside a file."""
    found: Found = []
    losses: list[str] = []
    for inside, text in texts.items():
        entries, left_out = read_lines(text)
        found += [(inside, entry) for _, entry in entries]
        losses += [f"{inside.lstrip(': ')}: {loss}" for loss in left_out]
    return found, losses


def read_lines(text: str, number: int = 1) -> tuple[Found, tuple[str, ...]]:
    """Return experiences, each with its line, and what is left out. `number`: of the first line."""
    before, head, behind = text.partition(HEAD)
    if head:
        number += (before + head).count("\n")
        lines = behind.split("\n")
        ours = list(takewhile(bool, map(_OURS.fullmatch, lines)))
        found = [(f":{number + at}", _entry(match, [])) for at, match in enumerate(ours)]
        left_out = lines[len(ours) :]  # what stands before are instructions
    else:
        found, left_out = _read_foreign(text.split("\n"), number)
    left_out = [line for line in left_out if not line.startswith("<!--")]
    return found, count_lines(left_out, "of text that is no experience")


def _read_foreign(lines: list[str], number: int) -> tuple[Found, list[str]]:
    """Return items, or paragraphs; a line that goes on below one belongs to it."""
    pattern = next((p for p in _FOREIGN if any(map(p.match, lines))), None)
    blocks: list[tuple[int, re.Match[str] | None, list[str]]] = []
    left_out: list[str] = []
    is_inside = False
    for at, line in enumerate(lines, number):
        match = pattern.match(line) if pattern else None
        if _NO_TEXT.match(line) or not (match or is_inside or pattern is None):
            left_out.append(line)
            is_inside = False
        elif is_inside and not match:
            blocks[-1][2].append(line)
        else:
            blocks.append((at, match, [] if match else [line]))
            is_inside = True
    return [(f":{at}", _entry(match, more)) for at, match, more in blocks], left_out


def _entry(match: re.Match[str] | None, more: list[str]) -> ForeignEntry:
    parts = match.groupdict() if match else {}
    return ForeignEntry(parts.get("id", ""), " ".join(filter(None, (parts.get("text"), *more))))


# -- AGENTS.md --------------------------------------------------------------------------------

AGENTS_NAMES = ("AGENTS.md", "CLAUDE.md")
MARKER = re.compile(r"^<!-- practice-studio:(begin|end) (\S+) -->\r?$", re.M)
_SECTION_CARD = re.compile(r"^<!-- library \S+@(\d{1,18}), content ", re.M)


def write_section(card: Card) -> bytes:
    """Return the section alone."""
    name = card.library.name
    # Two hyphens would end a comment.
    comments = "".join(f"<!-- {re.sub('-{2,}', '-', line)} -->\n" for line in card.lines())
    text = (
        f"<!-- practice-studio:begin {name} -->\n{card.library.guidance()}\n\n"
        f"{comments}<!-- practice-studio:end {name} -->\n"
    )
    return text.encode("utf-8", "replace")


def merge_section(path: Path, section: bytes) -> bytes:
    """Return the file with the section in the place of the one before, or behind all else."""
    present = path.read_bytes() if path.is_file() else b""
    Source(path).decode(present)
    lines = present.split(b"\n")
    new = section.rstrip(b"\n").split(b"\n")
    begins, ends = (
        [at for at, line in enumerate(lines) if line.rstrip(b"\r") == mark]
        for mark in (new[0], new[-1])
    )
    if not begins and not ends:
        gap = b"\n" * (2 - present.endswith(b"\n")) if present else b""
        return present + gap + section
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise errors.DataError(
            f"{path}:{1 + max(begins + ends)}",
            "a marker of this library has lost its other half, or stands there twice.",
            "Take what is left of its section out, then export again.",
        )
    return b"\n".join([*lines[: begins[0]], *new, *lines[ends[0] + 1 :]])


def read_sections(source: Source) -> ForeignLibrary:
    """Return the first section; where there is none, the list that the file holds."""
    text = source.text()
    marks = list(MARKER.finditer(text))
    if not marks:
        return source.library(*read_lines(text))
    kinds = [mark[1] for mark in marks]
    names = [mark[2] for mark in marks]
    if kinds != ["begin", "end"] * (len(marks) // 2) or names[::2] != names[1::2]:
        raise source.error("its markers do not stand in pairs.")
    begin, end = marks[0].end(), marks[1].start()
    section = text[begin:end]
    found, losses = read_lines(section, text.count("\n", 0, begin) + 1)
    outside = (text[: marks[0].start()] + text[marks[1].end() :]).split("\n")
    losses += count_lines(outside, "outside of that section")
    losses += tuple(f"the section of library {name}" for name in names[2::2])
    version = _SECTION_CARD.search(section)
    card = {"library": names[0], "version": int(version[1]) if version else None}
    return source.library(found, losses, names[0], card)


# -- skills -----------------------------------------------------------------------------------

FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.M | re.S)
_SKILL_NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_MOST_IN_BODY = 480
"""Experiences in the body, whose lines must be fewer than 500."""
_REFERENCE = "references/experiences.md"


def write_skill(card: Card, folder: Path) -> dict[str, bytes]:
    """Return the files of the folder, by their path in it.

    Raises ConfigError: no skill is called so.
    """
    name = folder.name
    if not _SKILL_NAME.fullmatch(name):
        raise errors.ConfigError(
            f"--to {folder}",
            "a skill is called as its folder: at most 64 of a-z, 0-9 and single hyphens.",
            f"Write --to {folder.parent / slug(card)}.",
        )
    library = card.library
    ids = [experience.id for experience in library.experiences]
    texts = {"SKILL.md": "", "references/evaluation.md": _evaluation_page(card)}
    body = library.guidance(shown=ids[:_MOST_IN_BODY])
    if behind := library.guidance(shown=ids[_MOST_IN_BODY:]):
        body += f"\n\nThere are {len(ids) - _MOST_IN_BODY} more: read {_REFERENCE}."
        texts[_REFERENCE] = f"{behind}\n"
    metadata = {
        "source": f"practice studio, library {library.name}@{library.version}",
        "content-hash": library.content_hash,
    }
    for number, result in enumerate(card.results, 1):
        metadata[f"result-{number}"] = result.text
    if library.pinned_ids:
        metadata["pinned"] = " ".join(library.pinned_ids)
    topics = "; ".join(e.text.partition(":")[0][:60] for e in library.experiences)
    about = f"Experiences from practice. Use it for tasks like those of {library.name}: {topics}"
    head = {"name": name, "description": about[:1024], "metadata": metadata}
    # Its checker ends the head at the first three hyphens, wherever they stand.
    front = re.sub("-{3,}", "--", dump_yaml(head, width=10**6))
    texts["SKILL.md"] = f"---\n{front}---\n\n{body}\n"
    files = {path: text.encode("utf-8", "replace") for path, text in texts.items()}
    if card.evals:
        rows = [
            {
                "id": problem.id,
                "prompt": problem.question,
                "expected_output": problem.answer or "",
                "files": [],
                "assertions": [],
            }
            for problem in card.evals
        ]
        files["evals/evals.json"] = dump_json({"skill_name": name, "evals": rows})
    for result in card.results:
        if result.benchmark:
            files.setdefault("benchmark.json", dump_json(result.benchmark))
    return files


def slug(card: Card) -> str:
    """Return the name of a folder for the library."""
    return re.sub(r"[^a-z0-9]+", "-", card.library.name.lower())[:64].strip("-") or "library"


def _evaluation_page(card: Card) -> str:
    lines = ["# Evaluation", ""]
    lines += [f"* {line}" for line in card.lines(worths=False)]
    if worths := card.worths():
        lines += ["", "| experience | worth and uses |", "|---|---|"]
        lines += [f"| {name} | {worth} |" for name, worth in worths.items()]
    return "\n".join([*lines, ""])


def read_skill(source: Source) -> ForeignLibrary:
    if source.path.is_dir():
        source = replace(source, path=source.path / "SKILL.md")
    text = source.text()
    front = FRONT.match(text)
    if front is None:
        raise source.error("it does not begin with a head between two lines `---`.")
    head = source.yaml(front[1])
    name = source.string(head.get("name"), ": name")
    found, losses = read_lines(text[front.end() :], text.count("\n", 0, front.end()) + 1)
    behind = source.path.parent / _REFERENCE
    if _REFERENCE in text and behind.is_file():
        found += read_lines(replace(source, path=behind).text())[0]
        losses = ()
    metadata = head.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    pins = metadata.get("pinned")
    pins = pins.split() if isinstance(pins, str) else ()
    pinned = [(inside, replace(entry, pinned=entry.id in pins)) for inside, entry in found]
    return source.library(pinned, losses, name, metadata.get("source"))


# -- files of other programs ------------------------------------------------------------------

YOUTU_PACKAGE = "# @package _global_\n"  # begins an agent file, whatever its name ends in


def write_youtu(card: Card) -> bytes:
    """Return an agent whose instructions are the system message of the studio's agent.

    They do not ask to cite.
    """
    text = "\n\n".join(filter(None, (card.instructions.strip(), card.library.guidance())))
    agent = {"name": card.library.name, "instructions": escape_interpolation(text)}
    body = {"defaults": ["/model/base@model", "_self_"], "type": "simple", "agent": agent}
    comments = "".join(f"# {line}\n" for line in card.lines())
    return f"{YOUTU_PACKAGE}{comments}{dump_yaml(body)}".encode("utf-8", "replace")


def read_youtu(source: Source) -> ForeignLibrary:
    agent, inside = source.yaml(), ""
    while "instructions" not in agent and inside != ": agent.agent":
        inside += ".agent" if inside else ": agent"  # a whole run file has it one level deeper
        agent = source.mapping(agent.get("agent"), inside)
    inside += ".instructions"
    text = source.string(agent.get("instructions"), inside)
    lines, losses = read_lines(unescape_interpolation(text))
    found = [(inside, entry) for _, entry in lines]
    return source.library(found, losses, agent.get("name"), source.first_line("# library "))


def write_dspy(card: Card) -> bytes:
    predictor: dict[str, Any] = {
        "traces": [],
        "train": [],
        "demos": [],
        "lm": None,
        "signature": {"instructions": card.library.guidance(), "fields": []},
    }
    # DSPy compares the versions named there with its own, and reads nothing else of it.
    metadata = {"dependency_versions": {}, "evaluation": card.data()}
    return dump_json({"predict": predictor, "metadata": metadata})


def find_predictors(data: codec.JsonMapping) -> dict[str, Any]:
    """Return the predictors of a state of DSPy."""
    return {n: v for n, v in data.items() if isinstance(v, dict) and "signature" in v}


def read_dspy(source: Source) -> ForeignLibrary:
    data = source.json()
    texts: dict[str, str] = {}
    lost: list[str] = []
    for name, predictor in find_predictors(data).items():
        inside = f": {name[:60]}.signature"
        text = source.mapping(predictor["signature"], inside).get("instructions")
        texts[f"{inside}.instructions"] = source.string(text, f"{inside}.instructions")
        lost += [f"{name}: its {part}" for part in ("demos", "lm") if predictor.get(part)]
    if not texts:
        raise source.error("no predictor in it has instructions.")
    found, losses = read_texts(texts)
    metadata = data.get("metadata")
    card = metadata.get("evaluation") if isinstance(metadata, dict) else None
    return source.library(found, [*losses, *lost], card=card)


def write_gepa(card: Card) -> bytes:
    best = {"system_prompt": card.library.guidance()}
    return dump_json({"best_candidate": best, "evaluation": card.data()})


def is_candidate(data: codec.JsonMapping) -> bool:
    if data.keys() & {"best_candidate", "candidates"}:
        return True
    return bool(data) and all(isinstance(value, str) for value in data.values())


def read_gepa(source: Source) -> ForeignLibrary:
    data = source.json()
    others = data.get("candidates")
    best: Any = data.get("best_candidate", data if others is None else None)
    if best is None:  # a whole result names it by its place
        at = data.get("best_idx")
        if not isinstance(others, list) or not isinstance(at, int) or not 0 <= at < len(others):
            raise source.error("it does not say which of its candidates is best.")
        best = others[at]
    parts = {"prompt": best} if isinstance(best, str) else source.mapping(best, ": best_candidate")
    texts: dict[str, str] = {}
    for name, part in parts.items():
        inside = f": {name[:60]}"
        texts[inside] = source.string(part, inside)
    found, losses = read_texts(texts)
    if isinstance(others, list) and len(others) > 1:
        losses.append(f"{len(others) - 1} other candidates")
    return source.library(found, losses, card=data.get("evaluation"))
