"""Whether the experiences in a prompt state a family's skill.

An experience states a skill when it holds, within its one line,
words of the family's condition and words of its rule; so rewording by a person does
no harm, and another family's condition in front of the rule does no good.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from engines.policies.rehearsal.families import Family

Stance = Literal["silent", "stated", "denied"]

_EXPERIENCE = re.compile(r"^\s*(?:[-*|]\s*)?\[[A-Za-z]*\d+\]\s*(\S.*)$", re.M)
_NAME = re.compile(r"^[^:.]{1,60}:\s+")


def _any_of(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{a})" for a in alternatives), re.I)


_CONDITIONS: dict[Family, re.Pattern[str]] = {
    "addition": _any_of(
        r"\badd(?:s|ed|ing|ition|itions|ends?)?\b",
        r"\bsum(?:s|med|ming)?\b",
        r"\b(?:10|ten) or (?:more|over|higher|above)\b",
        r"\b(?:over|above|exceeds?|more than|at least|reach(?:es)?) (?:9|nine|10|ten)\b",
    ),
    "subtraction": _any_of(
        r"\bsubtract\w*",
        r"\bminus\b",
        r"\bdifferences?\b",
        r"\btak(?:e|es|ing) away\b",
        r"\bdigit\b[^.;]*\b(?:too small|smaller|less|lower than)\b",
    ),
    "story": _any_of(
        r"\bstor(?:y|ies)\b",
        r"\b(?:word|text) problems?\b",
        r"\b(?:more than one|two|several|many|multiple)[ -](?:changes?|steps?|events?|things?)\b",
    ),
    "precedence": _any_of(
        r"\bmix\w*",
        r"\bexpressions?\b",
        r"\b(?:several|different|other|both|many) (?:operations?|operators?|signs?)\b",
    ),
    "remainder": _any_of(r"\bremainders?\b", r"\b(?:modulo|modulus|powers?|exponents?)\b"),
    "inclusive": _any_of(r"\branges?\b", r"\bcount(?:s|ed|ing)?\b", r"\b(?:loops?|bounds)\b"),
    "whole": _any_of(
        r"\bfactorials?\b|\bdigits? sums?\b",
        r"\bsums? of (?:\w+ ){0,3}digits\b",
        r"\b(?:large|big|huge|long) (?:whole )?(?:numbers?|integers?)\b",
    ),
    "printed": _any_of(r"\b(?:code|programs?|scripts?)\b", r"\b(?:interpreter|python)\b"),
    "order": _any_of(r"\bdescribes?\b", r"\bby way of\b", r"\b(?:chain|indirect)\w*\b"),
    "premature": _any_of(r"\bpage\b[^.;]*\b(?:names?|gives?|mentions?)\b", r"\bnext place\b"),
    "empty": _any_of(r"\b(?:nothing|empty|no results?|no hits?)\b"),
    "ungrounded": _any_of(r"\bfacts?\b", r"\bevidence\b"),
    "unchecked": _any_of(r"\bcheck\w*\b", r"\bverif\w*\b", r"\bmemory\b"),
}
_RULES: dict[Family, re.Pattern[str]] = {
    "addition": _any_of(
        r"\bcarr(?:y|ies|ied|ying)\b",
        r"\bbring\w* (?:\w+ ){0,3}over\b",
        r"\bregroup\w*",
        r"\b(?:move|pass|transfer)\w*\b[^.;]*\bto the (?:next|left)\b",
    ),
    "subtraction": _any_of(
        r"\bborrow\w*",
        r"\bregroup\w*",
        r"\b(?:trade|exchange|fetch|take)\w*\b[^.;,]{0,20}\b(?:10|ten|1|one)\b"
        r"[^.;,]*\b(?:next|left|neighbou?r\w*)\b",
    ),
    "story": _any_of(
        r"\bonly after\b",
        r"\b(?:last|second|final|every|all|both|remaining)\b[^.,;]{0,24}"
        r"\b(?:changes?|steps?|events?|parts?|one|operations?|calculations?)\b",
        r"\buntil\b",
        r"\bto the end\b",
        r"\b(?:not|never|n't) (?:stop|answer|finish)\w*",
    ),
    "precedence": _any_of(
        r"\b(?:multipl\w*|times|products?|divi\w*)\b[^.;,]{0,30}"
        r"\b(?:first|before|earlier|ahead)\b",
        r"\b(?:first|begin with|start with)\b[^.;,]{0,20}\b(?:multipl|times|product)",
        r"\border of operations\b",
        r"\bprecedence\b",
    ),
    "remainder": _any_of(
        r"\b(?:three|3|third|3rd)[- ]arguments?\b",
        r"\bpow ?\([^(),]+,[^(),]+,[^(),]+\)",
        r"\bmodular (?:power|pow|exponent)\w*",
    ),
    "inclusive": _any_of(
        r"\bone (?:above|past|beyond|after|more|higher|further)\b",
        r"\+ ?1\b",
        r"\binclud\w* (?:\w+ ){0,3}(?:last|end|upper|final)\b",
        r"\b(?:last|end|upper|final)(?: \w+){0,3} (?:included|inclusive|inside)\b",
    ),
    "whole": _any_of(
        r"//",
        r"\b(?:whole|floor|integer)(?:[- ]number)? division\b",
        r"\b(?:keep|stay|work|remain|calculate)\w*\b[^.;,]{0,24}\b(?:whole|integers?|exact)\b",
        r"\b(?:no|not|never|avoid|without|n't)\b[^.;,]{0,20}\b(?:floats?|floating|decimals?)\b",
    ),
    "printed": _any_of(
        r"\bprint\w*",
        r"\b(?:leave|put|write|show|output|end)\w*\b[^.;,]{0,40}\b(?:last|final) line\b",
    ),
    "order": _any_of(r"\b(?:first|begin|start)\b[^.;]*\bnam(?:es?|ed)\b", r"\bnamed\b.*\bfirst\b"),
    "premature": _any_of(r"\b(?:read|open|look up)\b[^.;]*\b(?:page of|own page|too|next|also)\b"),
    "empty": _any_of(r"\bagain\b", r"\bonce more\b", r"\b(?:other|another) (?:words?|names?)\b"),
    "ungrounded": _any_of(r"\b(?:pages?|results?|tools?|sources?)\b[^.;]*\bbefore\b"),
    "unchecked": _any_of(r"\bonly (?:where|when|once|if|after)\b", r"\bstated of\b"),
}
# "never forget to …" and "do not stop before …" are encouragement, not denial.
_ENCOURAGED = re.compile(
    r"\b(?:never|not|don't|dont)\s+(?:ever\s+)?"
    r"(?:forget|skip|ignore|omit|lose|drop|leave out|miss|stop|answer|finish)\w*",
    re.I,
)
_DENIAL = (
    r"\b(?:never|not|don't|dont|no|without|avoid|skip|ignore|forget|omit|instead of|rather than)\b"
    r"(?:\s+[\w'-]+){0,4}?\s+"
)
_DENIED = {
    family: re.compile(_DENIAL + f"(?:{rule.pattern})", re.I) for family, rule in _RULES.items()
}


@lru_cache(maxsize=256)  # the same library stands in front of every prompt of a batch
def stance(family: Family, instructions: str) -> Stance:
    """What the experiences in the instructions say of the family's skill.

    Those that state it and those that deny it cancel each other.
    """
    found: set[Stance] = set()
    for line in _EXPERIENCE.findall(instructions):
        if not _CONDITIONS[family].search(line):
            continue
        # The rule counts in the sentence only: a name may be left over from another wording.
        sentence = _NAME.sub("", line, count=1)
        if not _RULES[family].search(sentence):
            continue
        denied = _DENIED[family].search(_ENCOURAGED.sub("remember", sentence))
        found.add("denied" if denied else "stated")
    return found.pop() if len(found) == 1 else "silent"
