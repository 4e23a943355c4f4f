"""Replies as models write them where they were asked for one JSON array, and what they mean.

Every row is (habit, reply, what must be read). The habits are those of served models of 3 to
200 billion parameters: local ones write Python, cut replies and TeX with single backslashes,
larger ones prose round the array, headings, drafts and quotes that they do not escape.
"""

from __future__ import annotations

from engines.training_free.reading import CreditRow, DoubtRow, ExtractionRow, Suggestion

ATTEMPTS = (0, 1, 2, 3)
"""Their numbers; the library holds E1, E2 and E3."""


def add(text: str, reason: str = "", sources: tuple[int, ...] = ATTEMPTS) -> Suggestion:
    return Suggestion("add", None, text, reason, sources)


def modify(name: str, text: str, reason: str = "", at: tuple[int, ...] = ATTEMPTS) -> Suggestion:
    return Suggestion("modify", name, text, reason, at)


CARRY = add("Carry: add the carry.", "1 kept it", (1,))
UNITS = modify("E2", "Units: name them.", "2 lost them", (2, 3))
KEEP = Suggestion("keep", "E1", "", "", ATTEMPTS)
FIRST = (
    '{"operation": "add", "id": null, "experience": "Carry: add the carry.",'
    ' "reason": "1 kept it", "attempts": [1]}'
)
SECOND = (
    '{"operation": "modify", "id": "E2", "experience": "Units: name them.",'
    ' "reason": "2 lost them", "attempts": [2, 3]}'
)
BOTH = (CARRY, UNITS)
PRETTY = """[
  {
    "operation": "add",
    "id": null,
    "experience": "Carry: add the carry.",
    "reason": "1 kept it",
    "attempts": [1]%s
  },
  {
    "operation": "modify",
    "id": "E2",
    "experience": "Units: name them.",
    "reason": "2 lost them",
    "attempts": [2, 3]%s
  }%s
]"""

Labelled = tuple[str, str, tuple[ExtractionRow, ...]]

REPLIES: list[Labelled] = [
    # where the array stands
    ("reasoning first", f"Attempt 1 kept the carry [see r1].\n\n[{FIRST}, {SECOND}]", BOTH),
    ("prose behind it", f"[{FIRST}, {SECOND}]\n\nBoth hold for {{all}} problems [0, 1].", BOTH),
    ("a fence of json", f"Here it is:\n```json\n[{FIRST}, {SECOND}]\n```\nDone.", BOTH),
    ("a fence of JSON5", f"```JSON5\n[{FIRST}, {SECOND}]\n```", BOTH),
    ("a fence of tildes", f"~~~json\n[{FIRST}, {SECOND}]\n~~~", BOTH),
    ("a fence in one line", f"```[{FIRST}, {SECOND}]```", BOTH),
    ("a fence of four", f"````json\n[{FIRST}, {SECOND}]\n````", BOTH),
    ("a fence that stays open", f"So:\n```json\n[{FIRST}, {SECOND}]", BOTH),
    ("a fence that only closes", f"[{FIRST}, {SECOND}]\n```", BOTH),
    ("an inline code span", f"I propose `[{FIRST}, {SECOND}]`.", BOTH),
    ("tags round it", f"<answer>\n[{FIRST}, {SECOND}]\n</answer>", BOTH),
    ("a label in front", f"json\n[{FIRST}, {SECOND}]", BOTH),
    ("a byte order mark", f"\ufeff[{FIRST}, {SECOND}]", BOTH),
    ("a thought with a draft", f"<think>Maybe [{SECOND}]? No.</think>\n[{FIRST}]", (CARRY,)),
    ("a thought whose tag the template took", f"Hm, [{SECOND}]?\n</think>\n\n[{FIRST}]", (CARRY,)),
    (
        "the channels of harmony",
        f"<|channel|>analysis<|message|>Draft: [{SECOND}] is wrong.<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>[{FIRST}]",
        (CARRY,),
    ),
    ("a code example before it", f"```python\nx = [1, 2]\n```\nSo:\n[{FIRST}]", (CARRY,)),
    (
        "a matrix and a set before it",
        f"With A = [[1, 2], [3, 4]] and {{1, 2}}:\n[{FIRST}]",
        (CARRY,),
    ),
    ("an object of the task before it", f'They gave {{"answer": 42}}. So:\n[{FIRST}]', (CARRY,)),
    # several of them
    ("a draft, then the answer", f"Draft:\n[{SECOND}]\nBetter:\n[{FIRST}]", (CARRY,)),
    (
        "a broken draft, then the answer",
        f'Draft: [{{"operation": "add", "exp\n\n[{FIRST}]',
        (CARRY,),
    ),
    ("a draft, then nothing to learn", f"First [{FIRST}], yet that is known. So: []", ()),
    ("nothing to learn, in prose", "Nothing general can be learned here:\n\n[]", ()),
    ("an array a lesson", f"```json\n[{FIRST}]\n```\n\n```json\n[{SECOND}]\n```", BOTH),
    (
        "an array a lesson, with headings",
        f"**Lesson 1:**\n[{FIRST}]\n\n**Lesson 2:**\n[{SECOND}]",
        BOTH,
    ),
    ("arrays in a row", f"[{FIRST}]\n[{SECOND}]", BOTH),
    ("the same array twice", f"[{FIRST}, {SECOND}]\n\n[{FIRST}, {SECOND}]", BOTH),
    ("lists in a list", f"[[{FIRST}], [{SECOND}]]", BOTH),
    # objects in place of the array
    ("a lone object", FIRST, (CARRY,)),
    ("JSON lines", f"{FIRST}\n{SECOND}\n", BOTH),
    ("objects with commas and no brackets", f"{FIRST},\n{SECOND}", BOTH),
    ("objects in a list of prose", f"1. {FIRST} since it held.\n2. {SECOND} too.", BOTH),
    ("an object round the list", f'{{"operations": [{FIRST}, {SECOND}]}}', BOTH),
    ("an object with a note", f'{{"analysis": "x", "operations": [{FIRST}, {SECOND}]}}', BOTH),
    ("an object of several lists", f'{{"add": [{FIRST}], "modify": [{SECOND}]}}', BOTH),
    ("numbered objects", f'{{"1": {FIRST}, "2": {SECOND}}}', BOTH),
    # commas, brackets and colons
    ("trailing commas", PRETTY % (",", ",", ","), BOTH),
    ("two commas", f"[{FIRST},, {SECOND}]", BOTH),
    ("no comma between objects", f"[{FIRST}\n {SECOND}]", BOTH),
    ("no comma between fields", f"[{FIRST}, {SECOND}]".replace('",', '"'), BOTH),
    ("no bracket at the end", f"[{FIRST}, {SECOND}", BOTH),
    ("no bracket at the start", f"{FIRST}, {SECOND}]", BOTH),
    ("a bracket too many", f"[{FIRST}, {SECOND}]]", BOTH),
    ("a brace too many", f"[{FIRST}, {SECOND}}}]", BOTH),
    ("semicolons", f"[{FIRST}, {SECOND}]".replace('", "', '"; "'), BOTH),
    (
        "a wrapper whose list is cut short of its brackets",
        f'{{"operations": [{FIRST}, {SECOND}',
        BOTH,
    ),
    # quotes
    (
        "single quotes and None",
        f"[{FIRST}, {SECOND}]".replace('"', "'").replace("null", "None"),
        BOTH,
    ),
    (
        "Python with an apostrophe",
        """[{'operation': 'add', 'id': None, 'experience': "Don't round before the end."}]""",
        (add("Don't round before the end."),),
    ),
    (
        "Python with an escaped apostrophe",
        r"""[{'operation': 'add', 'id': None, 'experience': 'Don\'t round before the end.'}]""",
        (add("Don't round before the end."),),
    ),
    (
        "an apostrophe that nobody escaped",
        """[{'operation': 'add', 'experience': 'Don't round, it's late', 'attempts': [2]}]""",
        (add("Don't round, it's late", "", (2,)),),
    ),
    (
        "no quotes at the names",
        f"[{FIRST}]".replace('"operation"', "operation").replace('"id"', "id"),
        (CARRY,),
    ),
    (
        "smart quotes",
        "[{“operation”: “add”, “experience”: “Carry: add the carry.”, “reason”: “1 kept it”,"
        " “attempts”: [1]}]",
        (CARRY,),
    ),
    (
        "smart quotes within a text",
        f"[{FIRST}]".replace("Carry: add the carry.", "Say “none”, don’t guess."),
        (add("Say “none”, don’t guess.", "1 kept it", (1,)),),
    ),
    (
        "quotes in a text",
        f"[{FIRST}]".replace("add the carry", 'say "carry" first'),
        (add('Carry: say "carry" first.', "1 kept it", (1,)),),
    ),
    (
        "quotes in a text, with commas",
        f"[{FIRST}]".replace("add the carry.", 'write "x", "y" and "z".'),
        (add('Carry: write "x", "y" and "z".', "1 kept it", (1,)),),
    ),
    (
        "quotes at the end of a text",
        f"[{FIRST}]".replace("add the carry.", 'end with "Answer: 7"'),
        (add('Carry: end with "Answer: 7"', "1 kept it", (1,)),),
    ),
    (
        "an escaped apostrophe between double quotes",
        f"[{FIRST}]".replace("add the carry", r"don\'t drop it"),
        (add("Carry: don't drop it.", "1 kept it", (1,)),),
    ),
    # values
    ("NaN", f"[{FIRST}]".replace("null", "NaN"), (CARRY,)),
    ("undefined", f"[{FIRST}]".replace("null", "undefined"), (CARRY,)),
    ("True of Python in JSON", f'[{FIRST[:-1]}, "general": True}}]', (CARRY,)),
    ("an id without quotes", f"[{SECOND}]".replace('"E2"', "E2"), (UNITS,)),
    ("an id in brackets", f"[{SECOND}]".replace('"E2"', '"[E2]"'), (UNITS,)),
    ("attempts as words", f"[{FIRST}]".replace("[1]", '["#1", "r1"]'), (CARRY,)),
    # control characters and comments
    (
        "a raw new line in a text",
        f"[{FIRST}]".replace("add the", "add\nthe"),
        (CARRY,),
    ),
    (
        "a raw new line and a quote in a text",
        f"[{FIRST}]".replace("add the carry", 'say\n"carry" first'),
        (add('Carry: say "carry" first.', "1 kept it", (1,)),),
    ),
    ("a raw tab in a text", f"[{FIRST}]".replace("add the", "add\tthe"), (CARRY,)),
    ("line comments", PRETTY % (" // one", "  # two, three", ""), BOTH),
    ("a block comment", f"[/* the first */ {FIRST}, {SECOND}]", BOTH),
    (
        "what looks like a comment",
        f"[{FIRST},]".replace("add the carry.", "see https://a.example/x // y # z"),
        (add("Carry: see https://a.example/x // y # z", "1 kept it", (1,)),),
    ),
    # backslashes
    (
        "TeX with single backslashes",
        f"[{FIRST}]".replace("add the carry", r"use $\frac{1}{2} \times \nu \neq \beta$"),
        (add(r"Carry: use $\frac{1}{2} \times \nu \neq \beta$.", "1 kept it", (1,)),),
    ),
    (
        "TeX between quotes that nobody escaped",
        r'[{"operation": "add", "experience": "Use "\pi" for \(\frac{c}{d}\)."}]',
        (add(r'Use "\pi" for \(\frac{c}{d}\).'),),
    ),
    (
        "a new line before prose",
        f"[{FIRST}]".replace("add the carry", r"let\nu be x.\nThen add"),
        (add("Carry: let u be x. Then add.", "1 kept it", (1,)),),
    ),
    (
        "escapes of Markdown",
        f"[{FIRST}]".replace("add the carry", r"keep \_names\_ and \$5"),
        (add(r"Carry: keep \_names\_ and \$5.", "1 kept it", (1,)),),
    ),
    # rows of other kinds
    (
        "credits and doubts, in Python",
        "[{'credit': '[E3]', 'use': 'used', 'attempts': [1]}, {'doubt': 'typo', 'attempts': [2]}]",
        (CreditRow("E3", "used", (1,)), DoubtRow("typo", (2,))),
    ),
    (
        "lists of operations and of credits",
        f'{{"operations": [{FIRST}], "credits": [{{"credit": "3", "use": "misled"}}]}}',
        (CARRY, CreditRow("E3", "misled", ())),
    ),
]

UNSURE: list[Labelled] = [
    ("cut within a text", f"[{FIRST}, {SECOND[:70]}", (CARRY,)),
    ("no brace between objects", f"[{FIRST[:-1]},\n{SECOND}]", BOTH[1:]),
    ("no brace at the end", f"[{FIRST}, {SECOND[:-1]}]", (CARRY,)),
    ("wide colons and commas", f"[{FIRST}]".replace('": ', '"：').replace(', "', '，"'), ()),
    ("cut behind a comma", f"[{FIRST}, ", (CARRY,)),
    ("cut within a list", f"[{FIRST}, {SECOND[:-4]}", (CARRY,)),
    ("cut within a thought", f"<think>Perhaps [{FIRST}", ()),
    ("a quote that is not closed", f"[{FIRST}, {SECOND}]".replace("them.", 'them".', 1), (CARRY,)),
    ("two lessons in one object", f"[{FIRST[:-1]}, {SECOND[1:]}]", ()),
    ("a field twice", f'[{FIRST[:-1]}, "experience": "Other."}}]', ()),
    ("the form of the prompt", '[{"operation": "add" | "modify", "experience": "Name: ..."}]', ()),
    ("more than it writes", f"[{FIRST}, ..., {SECOND}]", BOTH),
    ("a number with a zero before it", f"[{FIRST}]".replace("[1]", "[01]"), ()),
    ("JSON in a string", '"[{\\"operation\\": \\"keep\\", \\"id\\": \\"E1\\"}]"', ()),
    ("every quote escaped", f"[{FIRST}]".replace('"', '\\"'), ()),
    ("a text of two parts", '[{"operation": "add", "experience": "One " + "two."}]', ()),
]
"""Replies of which something is lost or may be: that is said, and the rest is right."""
