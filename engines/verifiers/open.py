"""From what a run file says of its verifier to the verifier.

Reading comes first and opens nothing, so that a mistake anywhere in a list is found before any
of it exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from engines.core.protocols import Verifier
from engines.verifiers.choice import ChoiceSettings, ChoiceVerifier
from engines.verifiers.compose import WeightedCriterion, WeightedVerifier
from engines.verifiers.harbor import HarborSettings, HarborVerifier
from engines.verifiers.judge import JudgeContext, JudgeSettings, JudgeVerifier
from engines.verifiers.learned import LearnedSettings, LearnedVerifier
from engines.verifiers.math.verifier import MathSettings, MathVerifier
from engines.verifiers.shaping import (
    AccuracySettings,
    FormatSettings,
    FormatVerifier,
    LengthPenalty,
    OwnRewardSettings,
    OwnRewardVerifier,
    RecordedSettings,
    RecordedVerifier,
    ShapedVerifier,
    StepBonus,
)
from engines.verifiers.spec import (
    At,
    SpecError,
    find_file,
    known_names_text,
    parse_settings,
    require_file,
)
from engines.verifiers.text import TextSettings, TextVerifier

SETTINGS: Mapping[str, type] = {
    "math": MathSettings,
    "text": TextSettings,
    "judge": JudgeSettings,
    "accuracy": AccuracySettings,
    "length_penalty": LengthPenalty,
    "step": StepBonus,
    "format": FormatSettings,
    "choice": ChoiceSettings,
    "harbor": HarborSettings,
    "reward_model": LearnedSettings,
    "own_reward": OwnRewardSettings,
    "recorded": RecordedSettings,
}
KNOWN = (*SETTINGS, "function")
SHAPES = ("length_penalty", "step")
SHAPED = "accuracy"
"""What a shape shapes where its `of` says nothing."""
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Spec = Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class ParsedCriterion:
    name: str
    weight: float
    verifier: ParsedVerifier


@dataclass(frozen=True, slots=True)
class ParsedVerifier:
    """A verifier that is read and not yet opened."""

    at: At
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
    return _open_parsed(parse_spec(spec, folders), _Means(judging, columns, grading, open_learned))


def parse_spec(spec: Spec, folders: Sequence[Path] = ()) -> ParsedVerifier:
    """Check a specification and find its files; opens nothing. SpecError as `open_verifier`."""
    return _parse_mapping({"name": spec} if isinstance(spec, str) else spec, folders, ())


def needs_answer(spec: Spec) -> bool:
    """Whether problems without an answer are of no use to it."""
    return _any_verifier(spec, lambda name: name in ("math", "text", "choice", "accuracy"))


def asks_judge(spec: Spec) -> bool:
    """Whether it asks the judge role, or may: what a function does is known when it runs."""
    return _any_verifier(spec, lambda name: name in ("judge", "function"))


def _any_verifier(spec: object, holds: Callable[[object], bool]) -> bool:
    """Looks no closer than needed: what is wrong in a specification `parse_spec` says."""
    spec = _as_mapping(spec)
    if not isinstance(spec, Mapping):
        return holds(spec)
    name, inner = spec.get("name"), spec.get("of")
    if name == "weighted" and isinstance(inner, Sequence):
        return any(_any_verifier(entry, holds) for entry in inner)
    if isinstance(name, str) and name in SHAPES:
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
    if isinstance(name, str) and name in SETTINGS:
        if "file" in settings:
            cause = f'"file" stands beside the name "{name}".'
            raise SpecError((*at, "file"), "verifier", cause, "Leave one of them out.")
        of: tuple[ParsedCriterion, ...] = ()
        if name in SHAPES:
            of = (_parse_inner(settings.pop("of", SHAPED), folders, (*at, "of")),)
        return ParsedVerifier(at, parse_settings(SETTINGS[name], name, settings, at), of=of)
    match name:
        case "function":
            file = settings.pop("file", None)
            if not isinstance(file, str) or not file.strip():
                cause = '"file" is missing.' if file is None else '"file" is no path.'
                raise SpecError((*at, "file"), "verifier", cause, "Give the file: file: MINE.py.")
            path = require_file(file, folders, at)
            from engines.verifiers.foreign.verifier import FunctionSettings

            parsed = parse_settings(FunctionSettings, path.stem, settings, at)
            return ParsedVerifier(at, parsed, path)
        case "weighted":
            return _parse_list(settings, folders, at)
        case None:
            move = f"Known: {', '.join(KNOWN[:-1])}; or give a file: {{file: MINE.py}}."
            raise SpecError(at, "verifier", '"name" is missing.', move)
    move = known_names_text(str(name), KNOWN)
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


@dataclass(frozen=True, slots=True)
class _Means:
    """What verifiers are opened with; see `open_verifier`."""

    judging: JudgeContext | None
    columns: frozenset[str] | None
    grading: HarborVerifier | None
    open_learned: Callable[[str], LearnedVerifier] | None


def _open_parsed(ready: ParsedVerifier, means: _Means) -> Verifier:
    judging = means.judging
    match ready.settings:
        case MathSettings() as settings:
            return MathVerifier(settings)
        case TextSettings() as settings:
            return TextVerifier(settings)
        case ChoiceSettings():
            return ChoiceVerifier()
        case JudgeSettings() as settings:
            if judging is None:
                cause = "it asks a model, and there is none that can judge."
                move = "Set judge: openai:MODEL, or judge: rehearsal to try it out."
                raise SpecError(ready.at, 'verifier "judge"', cause, move)
            return JudgeVerifier(settings, judging)
        case AccuracySettings(by="text"):
            return TextVerifier()
        case AccuracySettings():
            return MathVerifier()
        case FormatSettings() as settings:
            return FormatVerifier(settings)
        case OwnRewardSettings():
            return OwnRewardVerifier()
        case RecordedSettings():
            return RecordedVerifier()
        case HarborSettings():
            if means.grading is None:
                cause = "it grades the files that a program leaves, and the agent is none."
                raise SpecError(ready.at, 'verifier "harbor"', cause, "Set agent.command.")
            return means.grading
        case LearnedSettings() as settings:
            if means.open_learned is None:
                cause = "its weights cannot be loaded here."
                raise SpecError(ready.at, 'verifier "reward_model"', cause, "Name another one.")
            return means.open_learned(settings.folder)
        case LengthPenalty() | StepBonus() as shape:
            (shaped,) = ready.of
            inner = _open_parsed(shaped.verifier, means)
            return ShapedVerifier(shape, shaped.name, inner)
    if ready.path is not None:
        from engines.verifiers.foreign.verifier import FunctionVerifier

        return FunctionVerifier(ready.settings, ready.path, judging, columns=means.columns)
    opened = [_open_parsed(c.verifier, means) for c in ready.of]
    pairs = zip(ready.of, opened, strict=True)
    return WeightedVerifier([WeightedCriterion(c.name, c.weight, inner) for c, inner in pairs])
