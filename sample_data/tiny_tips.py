"""Experiences for the warm-up of the tiny policy: those that help and those that do not.

Owns their wordings, and libraries drawn from them as a prompt shows them. An experience
helps a skill when it states the skill's condition and rule; everything else, whatever
words it shares with one that helps, must leave the policy as it is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from engines.core.library import guidance_text
from sample_data.tiny_text import LESSONS, SKILLS, Skill


@dataclass(frozen=True, slots=True)
class Wordings:
    """Every name, condition and rule of a skill fits every other one."""

    names: tuple[str, ...]
    conditions: tuple[str, ...]
    rules: tuple[str, ...]
    lazy: tuple[str, ...]  # what an experience says that recommends the slip


HELPFUL: dict[Skill, Wordings] = {
    "addition": Wordings(
        ("Carry", "Carrying", "Carry one", "Adding", "Sums", "Addition", "Columns"),
        (
            "when a column makes ten or more",
            "when a column adds up to ten or more",
            "when two digits make more than nine",
            "when numbers are added and a column goes over nine",
            "if the sum of a column is ten or more",
            "whenever a column of a sum reaches ten",
            "in an addition, when the ones make ten or more",
            "when you add and the digits make ten or more",
            "when adding two numbers",
            "if the ones add up to more than nine",
        ),
        (
            "carry one",
            "carry one into the next column",
            "carry the one to the left",
            "add the carried one to the next column",
            "always carry the one",
            "remember to carry one to the next column",
            "write the last digit and carry one",
            "do not forget to carry",
            "take the carry along",
            "carry the ten over to the next column",
        ),
        (
            "write the last digit and go on",
            "write the last digit and drop the rest",
            "add each column on its own",
            "go on with the next column as it stands",
            "do not carry",
        ),
    ),
    "subtraction": Wordings(
        ("Borrow", "Borrowing", "Borrow ten", "Subtracting", "Subtraction", "Minus", "Columns"),
        (
            "when the upper digit is smaller",
            "when the upper digit is smaller than the lower one",
            "when a digit is too small to take the lower one from",
            "if the lower digit is larger than the upper one",
            "whenever the upper digit of a column is smaller",
            "in a subtraction, when the upper digit is too small",
            "when you subtract and the ones are too small",
            "when one number is subtracted from another",
            "if the ones of the first number are smaller",
            "when a number is taken from another",
        ),
        (
            "borrow ten",
            "borrow ten from the next column",
            "borrow one from the left",
            "always borrow from the next column",
            "remember to borrow ten",
            "take ten from the next column",
            "do not forget to borrow",
            "borrow first and then subtract",
            "borrow from the tens",
            "borrow from the neighbour on the left",
        ),
        (
            "take the smaller digit from the larger",
            "turn the two digits round",
            "take the smaller one from the larger one",
            "leave the next column as it stands",
            "do not borrow",
        ),
    ),
    "story": Wordings(
        ("Last change", "Two changes", "Stories", "Story", "Both changes", "To the end", "Finish"),
        (
            "when a story has two changes",
            "when a story tells of more than one change",
            "when a story has several changes",
            "if something changes twice in a story",
            "whenever a story goes on after the first change",
            "in a story with two steps",
            "when a word problem has two steps",
            "when there is more than one change",
            "if a story tells of two events",
            "when an amount changes more than once",
        ),
        (
            "answer only after the last one",
            "answer only after the last change",
            "work out both changes before you answer",
            "do not stop after the first change",
            "go on to the last change",
            "give the answer only after the second change",
            "work out every change to the end",
            "do the second change as well",
            "wait with the answer until the last change is done",
            "finish all the changes",
        ),
        (
            "give the number that is there",
            "answer after the first change",
            "stop at the first number",
            "give the first result",
            "do not work out the second change",
        ),
    ),
    "precedence": Wordings(
        (
            "Multiply first",
            "Times first",
            "Precedence",
            "Order",
            "Signs",
            "Products",
            "Mixed signs",
        ),
        (
            "when signs are mixed",
            "when an expression mixes several signs",
            "when plus and times stand together",
            "if an expression has times beside plus or minus",
            "whenever an expression mixes times with plus or minus",
            "in an expression with different signs",
            "when there are several signs",
            "when times stands behind plus or minus",
            "if there is a product in an expression",
            "when an expression has more than one sign",
        ),
        (
            "multiply before anything else",
            "multiply first",
            "work out the product first",
            "do times before plus and minus",
            "multiply before you add or subtract",
            "always begin with the product",
            "begin with times",
            "do not add or subtract before you multiply",
            "work out times first, whatever stands before it",
            "the product comes first",
        ),
        (
            "take the signs in their order",
            "work from left to right",
            "begin on the left",
            "do what stands first",
            "add or subtract first",
        ),
    ),
}
"""Skill → wordings of the experience that helps, and of one that misleads."""

_NEUTRAL_NAMES = """
Neatness Reading Pace Paper Check Names Calm Order Work Numbers Pencil Lines Rest Time
Friends Garden Water Music Window Letters Focus Habit Desk First Last Two Ten
"""
_NEUTRAL = Wordings(
    tuple(_NEUTRAL_NAMES.split()),
    (
        "when a page is full",
        "when a question is long",
        "when numbers are large",
        "when a problem looks new",
        "when the last page is reached",
        "when two people talk at once",
        "when the room is dark",
        "when a letter has two pages",
        "when the work takes more than one day",
        "when something is lost",
        "when it rains or snows",
        "when the first line is hard to read",
        "if the time is short",
        "if an answer has been found",
        "if there are many words",
        "if a friend comes by",
        "if ten people are waiting",
        "whenever a name occurs in a question",
        "whenever the music is too loud",
        "in a long list of problems",
        "in the morning",
        "after a long day",
        "before you begin",
        "at the end of the week",
    ),
    (
        "begin a new one",
        "read it twice",
        "write clearly",
        "stay calm",
        "keep the lines short",
        "leave some room below the last one",
        "look at the numbers again",
        "put the date at the top before anything else",
        "use a sharp pencil",
        "write one line at a time",
        "think before you write",
        "leave the names out",
        "answer with a friendly word",
        "open the window first",
        "take a break only after the second part",
        "close the book",
        "drink a glass of water",
        "ask the one who knows best",
        "put ten of them into the next box",
        "give one to your neighbour",
        "do the larger part first",
        "wait until all the others are done",
        "clean the table",
        "keep smaller things together",
    ),
    (),
)
_NOISE = """
river green seven window quick bright table number add sign story digit garden light paper
carefully first last before after time please always never good work think step answer one
two ten when if only more than other smaller larger change column next every keep book hand
friend word read write again part long short house open close water day night old new small
great rest order line page clear hard easy help smile desk music left right up down over
"""
_NOISE_WORDS = tuple(_NOISE.split())


def helpful_experience(skill: Skill, chance: random.Random) -> str:
    """An experience that states the skill; the reflector's own wording is among them."""
    if chance.random() < 0.25:
        return LESSONS[skill]
    words = HELPFUL[skill]
    text = _sentence(chance, words.conditions, words.rules)
    return _add_name(
        chance, words.names, _add_noise(chance, text) if chance.random() < 0.35 else text
    )


def useless_experience(skill: Skill, chance: random.Random) -> str:
    """An experience that must not change how problems of the skill are solved."""
    words, kind = HELPFUL[skill], chance.random()
    if kind < 0.25:
        other = chance.choice([s for s in SKILLS if s != skill])
        return helpful_experience(other, chance)
    if kind < 0.55:
        text = _sentence(chance, _NEUTRAL.conditions, _NEUTRAL.rules)
        names = _NEUTRAL.names
    elif kind < 0.66:
        text, names = _sentence(chance, words.conditions, words.lazy), (*words.names, "Speed")
    elif kind < 0.74:
        text, names = _sentence(chance, words.conditions, _NEUTRAL.rules), words.names
    else:
        text = " ".join(_noise_word(chance) for _ in range(chance.randint(3, 14)))
        names = (_noise_word(chance).capitalize(),)
    return _add_name(chance, names, _add_noise(chance, text) if chance.random() < 0.35 else text)


def _sentence(chance: random.Random, conditions: tuple[str, ...], rules: tuple[str, ...]) -> str:
    condition, rule = chance.choice(conditions), chance.choice(rules)
    return f"{rule} {condition}" if chance.random() < 0.2 else f"{condition}, {rule}"


def _add_name(chance: random.Random, names: tuple[str, ...], text: str) -> str:
    if chance.random() < 0.75:
        return f"{chance.choice(names)}: {text}."
    return f"{text[:1].upper()}{text[1:]}."


def _add_noise(chance: random.Random, text: str) -> str:
    """Up to four words that say nothing, and now and then one word less."""
    words = text.split()
    for _ in range(chance.randint(1, 4)):
        words.insert(chance.randint(0, len(words)), _noise_word(chance))
    return " ".join(words)


def _noise_word(chance: random.Random) -> str:
    """A word that means nothing, a plain word, or rarely characters of any kind."""
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(_NOISE_WORDS)
    if kind < 0.95:
        return "".join(
            chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 8))
        )
    return "".join(chr(chance.randint(33, 0x24F)) for _ in range(chance.randint(1, 4)))


def system_text(skill: Skill, chance: random.Random) -> tuple[str, bool]:
    """A system message as the studio writes it, and whether it states the skill.

    Empty about a third of the time; otherwise one to six experiences under ids of any order.
    """
    kind = chance.random()
    if kind < 0.33:
        return "", False
    if kind < 0.48:  # the library that practice of all four skills leads to
        texts, helps = [helpful_experience(s, chance) for s in SKILLS], True
        texts += [useless_experience(skill, chance) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    else:
        texts = [
            useless_experience(skill, chance)
            for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4, 5)))
        ]
        helps = kind < 0.72
        if helps and chance.random() < 0.4:
            texts = []
        if helps:
            texts.append(helpful_experience(skill, chance))
    chance.shuffle(texts)
    ids = chance.sample(range(1, 41), len(texts))
    if chance.random() < 0.6:
        ids = sorted(ids) if chance.random() < 0.5 else list(range(1, len(texts) + 1))
    return guidance_text((f"E{id}", text) for id, text in zip(ids, texts, strict=True)), helps
