"""From what a run file says of its verifier to the verifier.

Reading comes first and opens nothing, so that a mistake anywhere in a list is found before any
of it exists.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from engines.core.protocols import Verifier
from engines.verifiers.choice import judge_choice
from engines.verifiers.compose import (
    EachVerifier,
    LearnedSettings,
    LearnedVerifier,
    WeightedCriterion,
    WeightedVerifier,
)
from engines.verifiers.harbor import HarborVerifier
from engines.verifiers.judge import JudgeContext, JudgeSettings, JudgeVerifier
from engines.verifiers.math.verifier import MathSettings, MathVerifier
from engines.verifiers.shaping import (
    AccuracySettings,
    FormatSettings,
    FormatVerifier,
    LengthPenalty,
    ShapedVerifier,
    StepBonus,
    own_verdict,
    recorded_verdict,
)
from engines.verifiers.spec import (
    At,
    NoSettings,
    SpecError,
    find_file,
    known_names_text,
    parse_settings,
    require_file,
)
from engines.verifiers.text import TextSettings, TextVerifier

SHAPED = "accuracy"
"""What a shape shapes where its `of` says nothing."""
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Spec = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What verifiers are opened with; see `open_verifier`."""

    judging: JudgeContext | None = None
    columns: frozenset[str] | None = None
    grading: HarborVerifier | None = None
    open_learned: Callable[[str], LearnedVerifier] | None = None


@dataclass(frozen=True, slots=True)
class VerifierKind:
    """A verifier that a run file can name."""

    settings: type
    about: str
    open: Callable[[Any, Any], Verifier] | None = None
    """From settings and `Means`; None: it shapes the reward of the verifier below `of`."""
    needs_answer: bool = False  # problems without an answer are of no use to it
    asks_judge: bool = False
    requires: tuple[str, str, str] | None = None
    """One of the `Means`; and what to say, and to do, where it is missing."""


KINDS: Mapping[str, VerifierKind] = {
    "math": VerifierKind(
        MathSettings,
        "Is the stated answer mathematically the expected one?",
        lambda settings, _: MathVerifier(settings),
        needs_answer=True,
    ),
    "text": VerifierKind(
        TextSettings,
        "Does the stated answer match the expected text? (exact, contains, choice, regex)",
        lambda settings, _: TextVerifier(settings),
        needs_answer=True,
    ),
    "judge": VerifierKind(
        JudgeSettings,
        "Does a model find that the response meets a rubric?",
        lambda settings, means: JudgeVerifier(settings, means.judging),
        asks_judge=True,
        requires=(
            "judging",
            "it asks a model, and there is none that can judge.",
            "Set judge: openai:MODEL, or judge: rehearsal to try it out.",
        ),
    ),
    "accuracy": VerifierKind(
        AccuracySettings,
        "1 for a right answer, else 0 (by: math or text)",
        lambda settings, _: MathVerifier() if settings.by == "math" else TextVerifier(),
        needs_answer=True,
    ),
    "length_penalty": VerifierKind(
        LengthPenalty, "The reward of another verifier, less what is too long (of, max_length)"
    ),
    "step": VerifierKind(
        StepBonus,
        "The reward of another verifier and a bonus for shown steps: it may pay for padding",
    ),
    "format": VerifierKind(
        FormatSettings,
        "Does the response match a regular expression? (pattern)",
        lambda settings, _: FormatVerifier(settings),
    ),
    "choice": VerifierKind(
        NoSettings,
        "Which option of its problem does the response name, by letter or text?",
        lambda *_: EachVerifier(judge_choice),
        needs_answer=True,
    ),
    "harbor": VerifierKind(
        NoSettings,
        "What the grader of a task folder makes of the files that a program left",
        lambda _, means: means.grading,
        requires=(
            "grading",
            "it grades the files that a program leaves, and the agent is none.",
            "Set agent.command.",
        ),
    ),
    "reward_model": VerifierKind(
        LearnedSettings,
        "A guess, learned from the verdicts of a run (folder: a path, or run:RUN)",
        lambda settings, means: means.open_learned(settings.folder),
        requires=("open_learned", "its weights cannot be loaded here.", "Name another one."),
    ),
    "own_reward": VerifierKind(
        NoSettings,
        "The reward that the agent's own function gave its try",
        lambda *_: EachVerifier(own_verdict),
    ),
    "recorded": VerifierKind(
        NoSettings,
        "What came of a recorded try (studio data import), as it was found with it",
        lambda *_: EachVerifier(recorded_verdict),
    ),
}


@dataclass(frozen=True, slots=True)
class ParsedCriterion:
    name: str
    weight: float
    verifier: "ParsedVerifier"


@dataclass(frozen=True, slots=True)
class ParsedVerifier:
    """A verifier that is read and not yet opened."""

    at: At
    name: str = ""  # among `KINDS`; "" of a function and of a list
    settings: Any = None
    path: Path | None = None  # of a function
    of: tuple[ParsedCriterion, ...] = ()  # the criteria of a list, or the one that is shaped

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it would load, in order."""
        own = () if self.path is None else (self.path,)
        return own + tuple(path for criterion in self.of for path in criterion.verifier.files)


def open_verifier(
    spec: Spec,
    judging: JudgeContext | None = None,
    folders: Sequence[Path] = (),
    *,
    columns: frozenset[str] | None = None,
    grading: HarborVerifier | None = None,
    open_learned: Callable[[str], LearnedVerifier] | None = None,
) -> Verifier:
    """Make the verifier that `spec` says.

    Args:
        spec: a name, or {name: NAME} with its settings beside it; a function has its `file`, a
            weighted list its criteria below `of`, a shape the verifier whose reward it shapes.
        judging: the model that verifiers may ask.
        folders: where a verifier's file is looked up, in order.
        columns: of the data beside question and answer (`shared_columns`); a function that
            needs another one is refused by `check`. None: not known.
        grading: runs the graders of task folders; None: the agent leaves nothing to grade.
        open_learned: loads a reward model by its folder; None: no weights can be loaded here.

    Raises SpecError: unknown name or setting, a value that cannot be, a file that is not there.
    """
    means = Means(judging=judging, columns=columns, grading=grading, open_learned=open_learned)
    return _open_parsed(parse_spec(spec, folders), means)


def parse_spec(spec: Spec, folders: Sequence[Path] = ()) -> ParsedVerifier:
    """Check a specification and find its files; opens nothing. SpecError as `open_verifier`."""
    return _parse_mapping({"name": spec} if isinstance(spec, str) else spec, folders, ())


def needs_answer(spec: Spec) -> bool:
    """Whether problems without an answer are of no use to it."""
    return _any_verifier(spec, lambda name: name in KINDS and KINDS[name].needs_answer)


def asks_judge(spec: Spec) -> bool:
    """Whether it asks the judge role, or may: what a function does is known when it runs."""
    return _any_verifier(
        spec, lambda name: name == "function" or (name in KINDS and KINDS[name].asks_judge)
    )


def _any_verifier(spec: object, holds: Callable[[str], bool]) -> bool:
    """Looks no closer than needed: what is wrong in a specification `parse_spec` says."""
    spec = _as_mapping(spec)
    if not isinstance(spec, Mapping):
        return False
    name, inner = spec.get("name"), spec.get("of")
    if name == "weighted" and isinstance(inner, Sequence):
        return any(_any_verifier(entry, holds) for entry in inner)
    if not isinstance(name, str):
        return False
    if name in KINDS and KINDS[name].open is None:
        return _any_verifier(inner or SHAPED, holds)
    return holds(name)


def _as_mapping(given: object) -> object:
    """A verifier as a mapping with its name, where that can be told."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping) and "name" not in given and "file" in given:
        return {**given, "name": "function"}
    return given


def _parse_mapping(spec: Mapping[str, Any], folders: Sequence[Path], at: At) -> ParsedVerifier:
    settings = dict(spec)
    name = settings.pop("name", None)
    if isinstance(name, str) and (kind := KINDS.get(name)):
        if "file" in settings:
            cause = f'"file" stands beside the name "{name}".'
            raise SpecError((*at, "file"), "verifier", cause, "Leave one of them out.")
        of: tuple[ParsedCriterion, ...] = ()
        if kind.open is None:
            of = (_parse_inner(settings.pop("of", SHAPED), folders, (*at, "of")),)
        return ParsedVerifier(at, name, parse_settings(kind.settings, name, settings, at), of=of)
    match name:
        case "function":
            file = settings.pop("file", None)
            if not isinstance(file, str) or not file.strip():
                cause = '"file" is missing.' if file is None else '"file" is no path.'
                raise SpecError((*at, "file"), "verifier", cause, "Give the file: file: MINE.py.")
            path = require_file(file, folders, at)
            from engines.verifiers.foreign.verifier import FunctionSettings

            parsed = parse_settings(FunctionSettings, path.stem, settings, at)
            return ParsedVerifier(at, settings=parsed, path=path)
        case "weighted":
            return _parse_list(settings, folders, at)
        case None:
            move = f"Known: {', '.join(KINDS)}; or give a file: {{file: MINE.py}}."
            raise SpecError(at, "verifier", '"name" is missing.', move)
    move = known_names_text(str(name), (*KINDS, "function"))
    if isinstance(name, str) and (found := find_file(name, folders)):
        move = f"{found.name} is a file: write {{file: {found.name}}}."
    elif str(name).endswith(".py"):
        move += " For a file of your own write verifier.file=PATH."
    raise SpecError((*at, "name"), f'verifier "{name}"', "there is no such verifier.", move)


def _parse_inner(given: object, folders: Sequence[Path], at: At) -> ParsedCriterion:
    entry = _as_mapping(given)
    if not isinstance(entry, Mapping):
        cause = "it is a list." if isinstance(given, list | tuple) else "it is no verifier."
        move = "Write a name or {name: …}; for several: {name: weighted, of: […]}."
        raise SpecError(at, "verifier to be shaped", cause, move)
    verifier = _parse_mapping(entry, folders, at)
    return ParsedCriterion(_default_name(entry, verifier), 1.0, verifier)


def _default_name(settings: Mapping[str, Any], verifier: ParsedVerifier) -> str:
    return verifier.path.stem if verifier.path else str(settings["name"])


def _parse_list(given: Mapping[str, Any], folders: Sequence[Path], at: At) -> ParsedVerifier:
    place, entries = "list of verifiers", given.get("of")
    if unknown := [key for key in given if key != "of"]:
        cause = f'"{unknown[0]}" cannot stand beside a list.'
        raise SpecError((*at, str(unknown[0])), place, cause, "Write it in an entry.")
    if not isinstance(entries, list | tuple) or not entries:
        cause = "it is empty." if entries in ([], (), None) else "it is no list."
        raise SpecError((*at, "of"), place, cause, "Name at least one: [math, judge].")
    read = [_parse_entry(entry, folders, (*at, "of", str(n))) for n, entry in enumerate(entries)]
    usual = {name for name, _, _, own in read if not own}
    taken: set[str] = set()
    for n, (name, _, _, own) in enumerate(read):
        if own and name in taken | usual:
            at_entry = (*at, "of", str(n), "as")
            move = "Give each criterion a name of its own."
            raise SpecError(at_entry, f"criterion {n + 1}", f'"{name}" is taken.', move)
        taken |= {name} if own else set()
    criteria = []
    for name, weight, verifier, own in read:
        unique, number = name, 2
        while not own and unique in taken:
            unique, number = f"{name}-{number}", number + 1
        taken.add(unique)
        criteria.append(ParsedCriterion(unique, weight, verifier))
    return ParsedVerifier(at, of=tuple(criteria))


def _parse_entry(
    entry: object, folders: Sequence[Path], at: At
) -> tuple[str, float, ParsedVerifier, bool]:
    """Metric name, weight and verifier of one entry; last whether it names itself."""
    place = f"criterion {int(at[-1]) + 1}"
    if isinstance(entry, str):
        entry = {"name": entry}
    if isinstance(entry, list | tuple):
        entry = {"of": entry}
    if not isinstance(entry, Mapping):
        raise SpecError(at, place, "it is no verifier.", "Write a name or {name: …}.")
    settings = dict(entry)
    weight, own = settings.pop("weight", 1), settings.pop("as", None)
    if type(weight) not in (int, float) or not isfinite(weight) or not weight:
        move = "Set another number than 0, or take the entry out."
        raise SpecError((*at, "weight"), place, f"weight is {weight!r}.", move)
    if own is not None and not (isinstance(own, str) and _METRIC.fullmatch(own)):
        move = "Use letters, digits, dots and dashes."
        raise SpecError((*at, "as"), place, f'"as" is {own!r}, which names no metric.', move)
    if settings.get("name") == "weighted" or ("of" in settings and "name" not in settings):
        raise SpecError(at, place, "it is a list itself.", "Write its entries in the outer list.")
    verifier = _parse_mapping(settings, folders, at)
    return own or _default_name(settings, verifier), float(weight), verifier, own is not None


def loads_weights(spec: Spec) -> bool:
    """Whether a reward model is loaded for it."""
    return _any_verifier(spec, lambda name: name == "reward_model")


def grades_tasks(spec: Spec) -> bool:
    """Whether it runs the graders of task folders."""
    return _any_verifier(spec, lambda name: name == "harbor")


def _open_parsed(ready: ParsedVerifier, means: Means) -> Verifier:
    if ready.path is not None:
        from engines.verifiers.foreign.verifier import FunctionVerifier

        judging, columns = means.judging, means.columns
        return FunctionVerifier(ready.settings, ready.path, judging, columns=columns)
    parts = [
        WeightedCriterion(part.name, part.weight, _open_parsed(part.verifier, means))
        for part in ready.of
    ]
    if not ready.name:
        return WeightedVerifier(parts)
    kind = KINDS[ready.name]
    if kind.open is None:
        (part,) = parts
        return ShapedVerifier(ready.settings, part.name, part.verifier)
    if kind.requires is not None:
        name, cause, move = kind.requires
        if getattr(means, name) is None:
            raise SpecError(ready.at, f'verifier "{ready.name}"', cause, move)
    return kind.open(ready.settings, means)
