"""Write an invented country: `wiki/`, pages about it, and questions that need two of them.

Run `python -m sample_data.make_wiki [FOLDER]`; without a folder the files beside this program are
replaced. The same program always writes the same bytes. `research.jsonl` and its held-out set ask
what `wiki/` tells; `web.jsonl`, its held-out set and `web-pages.jsonl` are about another country.

Each of the five kinds of question goes wrong in a way of its own, as agents with tools do: in the
wrong order, too early, by an empty result, without a page, or by a verifier who stops too soon.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_STARTS = "Al Bar Cor Dun El Fen Gar Hol Is Kel Lor Mar Nor Ost Pel Quin Ros Sel Tal Ul Ver Wen Yar"
_ENDS = "dale den ford gate ham holt ley mere more nock port rick stead ton vale wick worth bury"
_FIRST = "Ada Boris Clara Dorin Edda Felix Greta Hanno Ilse Jonas Karla Ludo Mira Nils Olga Paul"
_LAST = "Arnem Brasko Corvin Delmas Eskel Farron Gellert Hasper Ingram Jorvin Kesten Lomar Merlo"
_RIVERS = "Arle Brin Cass Dorn Esk Fale Glan Hune Irre Jass Lune Moda Nair Orle"
_CRAFTS = "lace glass clocks bells paper candles saddles violins ropes barrels knives"
_OTHER_CRAFTS = "silk tin salt cheese honey felt amber cork dye tar flax"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_WORK = "painter poet physician surveyor composer botanist printer astronomer"
_KINDS = "Bridge Mill Tower Hall"
_GUILDS = "Weavers Coopers Glaziers Binders Founders Saddlers Carvers Dyers Masons Tanners"

KINDS: tuple[tuple[str, str], ...] = (
    ("order", "Which river flows past the birthplace of {of}?"),
    ("premature", "Who is the mayor of the town where the {of} stands?"),
    ("empty", "On which day is the market held in the town where {of} died?"),
    ("ungrounded", "In which year was the town founded where the {of} have their house?"),
    ("unchecked", "What is the town known for in which the {of} stands?"),
)
"""Each kind of question by how it goes wrong."""


@dataclass(frozen=True, slots=True)
class Town:
    """What is told of a town."""

    name: str
    river: str
    mayor: str
    craft: str
    day: str
    year: int


@dataclass(frozen=True, slots=True)
class Land:
    """Pages by title, and the questions of each kind with their answers."""

    pages: dict[str, str]
    questions: dict[str, list[tuple[str, str]]]


def make_land(seed: int, of_each: int) -> Land:
    """A country with so many questions of each kind, about things that each occur in one."""
    chance = random.Random(seed)
    names = [a + b for a in _STARTS.split() for b in _ENDS.split()]
    people = [f"{a} {b}" for a in _FIRST.split() for b in _LAST.split()]
    chance.shuffle(names)
    chance.shuffle(people)
    towns = [
        Town(
            names.pop(),
            chance.choice(_RIVERS.split()[1:]),
            people.pop(),
            chance.choice(_CRAFTS.split()),
            chance.choice(_DAYS.split()),
            chance.randint(1020, 1690),
        )
        for _ in range(2 * of_each - 4)
    ]
    pages = dict(_town_page(town, chance) for town in towns) | dict(_general_pages(towns))
    questions: dict[str, list[tuple[str, str]]] = {kind: [] for kind, _ in KINDS}
    for kind, question in KINDS:
        for number in range(of_each):
            town, other = chance.sample(towns, 2)
            if kind in ("order", "empty"):
                name = people.pop()
                page = _person_page(name, *((town, other) if kind == "order" else (other, town)))
            elif kind == "ungrounded":
                name = f"{names.pop()} {_GUILDS.split()[number % 10]}"
                page = _guild_page(name, town, chance)
            else:
                name = f"{names.pop()} {_KINDS.split()[number % 4]}"
                page = _building_page(name, town, other, people.pop(), chance)
            pages[name] = page
            answers = (town.river, town.mayor, town.day, str(town.year), town.craft)
            answer = answers[[one for one, _ in KINDS].index(kind)]
            questions[kind].append((question.format(of=name), answer))
    return Land(pages, questions)


def _town_page(town: Town, chance: random.Random) -> tuple[str, str]:
    hills = chance.choice(("low hills", "wide meadows", "old vineyards", "a beech forest"))
    return town.name, (
        f"{town.name} is a town that lies on the {town.river}, amid {hills}. It was founded in "
        f"{town.year}. Its mayor is {town.mayor}. The town is known for its {town.craft}.\n\n"
        f"The market is held on {town.day}, on the square before the old granary. A road of "
        f"{chance.randint(4, 30)} miles leads to the coast."
    )


def _general_pages(towns: list[Town]) -> list[tuple[str, str]]:
    rivers = [
        (
            f"{river} (river)",
            f"The {river} is a river. It rises in the eastern hills and reaches the sea after "
            f"{31 + 7 * number} miles. Barges carry timber on it from May to October.",
        )
        for number, river in enumerate(_RIVERS.split())
    ]
    return [
        *rivers,
        (
            "Rivers",
            "Many rivers cross the country. The longest river is the Arle.",
        ),
        ("Mayors", "A mayor is elected for six years by those who own a house in the town."),
        ("Markets", "A market needs a charter. Most towns hold theirs once a week."),
        ("Guilds", "A guild has a house of its own, a seal and a chest with three locks."),
        ("Founding of towns", "A town counts from the day on which its charter was sealed."),
        ("Crafts", f"Towns mark their wares. There are {len(towns)} such marks in the register."),
    ]


def _person_page(name: str, born: Town, died: Town) -> str:
    work = _WORK.split()[sum(map(ord, name)) % 8]
    work = f"an {work}" if work[0] == "a" else f"a {work}"
    return (
        f"{name} was {work}, who was born in {born.name} and died in {died.name}. In youth "
        f"{name.split()[0]} travelled for seven years and kept a diary, which is printed to this "
        "day.\n\nA street in the capital bears the name."
    )


def _building_page(name: str, town: Town, other: Town, guest: str, chance: random.Random) -> str:
    return (
        f"The {name} stands in {town.name}. It was built in {chance.randint(1700, 1890)} and "
        f"opened by {guest}, who was mayor of {other.name} at the time. For some years it served "
        f"the {chance.choice(_OTHER_CRAFTS.split())} trade.\n\nIts roof was renewed after a storm."
    )


def _guild_page(name: str, town: Town, chance: random.Random) -> str:
    return (
        f"The {name} are a guild. They have their house in {town.name}, and a key on their seal. "
        f"They number {chance.randint(20, 90)} masters and keep a chest of letters.\n\nOnce a "
        "year they walk to the river with torches."
    )


def file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower()).strip("-")


def _write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _write_questions(folder: Path, name: str, land: Land, practised: int, source: str) -> None:
    kinds = land.questions.items()
    for file, cut in ((name, slice(practised)), (f"{name}-heldout", slice(practised, None))):
        rows = [(kind, *row) for kind, questions in kinds for row in questions[cut]]
        random.Random(len(rows)).shuffle(rows)
        fields = [{"question": q, "answer": a, "source": f"{source}: {k}"} for k, q, a in rows]
        _write_rows(folder / f"{file}.jsonl", fields)


def main(folder: Path) -> None:
    wiki = make_land(20_26, 20)
    shutil.rmtree(folder / "wiki", ignore_errors=True)
    (folder / "wiki").mkdir(parents=True)
    for title, text in wiki.pages.items():
        (folder / "wiki" / f"{file_name(title)}.md").write_text(f"# {title}\n\n{text}\n", "utf-8")
    _write_questions(folder, "research", wiki, 12, "two pages")
    web = make_land(11_17, 14)
    del web.questions["unchecked"]  # one agent has nobody who checks it
    rows = [
        {"title": title, "url": f"https://example.com/{file_name(title)}", "text": text}
        for title, text in web.pages.items()
    ]
    _write_rows(folder / "web-pages.jsonl", rows)
    _write_questions(folder, "web", web, 6, "two pages")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
