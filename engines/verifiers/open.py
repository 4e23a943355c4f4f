"""From what a run file says of its verifier to the verifier.

Reading comes first and opens nothing, so that a mistake anywhere in a list is found before any
of it exists. Settings are checked against their types, and files found. Each refusal has the key it
is about, so that whoever knows the run file can name its line.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from engines.core.codec import JsonMapping
from engines.core.errors import VerifierError, did_you_mean
from engines.core.frozen import frozen
from engines.core.protocols import Verifier
from engines.core.settings import is_derived
from engines.verifiers import answers, compose, harbor, judge

S = TypeVar("S")
At = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NoSettings:
    """Settings of a verifier that has none."""


class SpecError(VerifierError):
    """A verifier's setting that cannot be; `at` is its key inside the specification."""

    def __init__(self, at: At, place: str, cause: str, move: str) -> None:
        self.at = at
        super().__init__(place, cause, move)


def parse_settings(kind: type[S], name: str, given: JsonMapping, at: At) -> S:
    """Make a verifier's settings, a dataclass, from plain values.

    Raises SpecError: an unknown setting, or a value that cannot be.
    """
    place = f'verifier "{name}"'
    known = {
        field.name: field.metadata
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if not is_derived(field.metadata)
    }
    for key in given:
        if key not in known:
            raise SpecError(
                (*at, str(key)),
                place,
                f'there is no setting "{key}".',
                known_names_text(str(key), known),
            )
    try:
        # From JSON a strict check still takes a list for a tuple, and 1 for 1.0.
        return TypeAdapter(kind).validate_json(orjson.dumps(given, default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise SpecError(
            (*at, key),
            place,
            f"{key} is {orjson.dumps(given[key], default=str).decode()[:60]}.",
            f"{first['msg']}: {known[key]['description']}.",
        ) from error
    except VerifierError as error:
        words = re.findall(r"\w+", error.cause)
        key_at = next(((*at, key) for key in given if key in words), at)
        raise SpecError(key_at, error.place, error.cause, error.move) from error


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """A verifier's file, with or without `.py`: a whole path, else in the first folder with it."""
    given = Path(name).expanduser()
    for folder in folders or (Path(),):
        for candidate in (folder / given, folder / f"{given}.py"):
            if candidate.is_file():
                return candidate
    return None


def require_file(name: str, folders: Sequence[Path], at: At) -> Path:
    """See `find_file`; SpecError where no folder has it."""
    if file := find_file(name, folders):
        return file
    names = sorted({file.name for folder in folders for file in folder.glob("*.py")})
    places = ", ".join(str(folder) for folder in folders) or "the current folder"
    cause = f"There is no such file. Searched: {places}."
    nearest = did_you_mean(f"{Path(name).stem}.py", names)
    raise SpecError(
        (*at, "file"),
        f'verifier "{name}"',
        cause,
        f"{nearest}Give a path, or see `studio data verifiers`.",
    )


def known_names_text(given: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"{did_you_mean(given, names)}Known: {', '.join(names)}."


SHAPED = "accuracy"
"""What a shape shapes where its `of` says nothing."""
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Spec = JsonMapping | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What verifiers are opened with; see `open_verifier`."""

    judging: judge.JudgeContext | None = None
    columns: frozenset[str] | None = None
    grading: harbor.HarborVerifier | None = None
    open_learned: Callable[[str], compose.LearnedVerifier] | None = None


@frozen
class VerifierKind:
    """A verifier that a run file can name."""

    settings: type
    about: str
    open: Callable[[Any, Any], Verifier] | None = None
    """From settings and `Means`; None: it shapes the reward of the verifier below `of`."""
    needs_answer: bool = False  # problems without an answer are of no use to it
    requires: tuple[str, str, str] | None = None
    """One of the `Means`; and what to say, and to do, where it is missing."""


KINDS: Mapping[str, VerifierKind] = {
    "math": VerifierKind(
        answers.MathSettings,
        "Is the stated answer mathematically the expected one?",
        lambda settings, _: answers.MathVerifier(settings),
        needs_answer=True,
    ),
    "text": VerifierKind(
        answers.TextSettings,
        "Does the stated answer match the expected text? (exact, contains, choice, regex)",
        lambda settings, _: answers.TextVerifier(settings),
        needs_answer=True,
    ),
    "judge": VerifierKind(
        judge.JudgeSettings,
        "Does a model find that the response meets a rubric?",
        lambda settings, means: judge.JudgeVerifier(settings, means.judging),
        requires=(
            "judging",
            "it asks a model, and there is none that can judge.",
            "Set judge: openai:MODEL, or judge: rehearsal to try it out.",
        ),
    ),
    "accuracy": VerifierKind(
        compose.AccuracySettings,
        "1 for a right answer, else 0 (by: math or text)",
        lambda settings, _: (
            answers.MathVerifier() if settings.by == "math" else answers.TextVerifier()
        ),
        needs_answer=True,
    ),
    "length_penalty": VerifierKind(
        compose.LengthPenalty,
        "The reward of another verifier, less what is too long (of, max_length)",
    ),
    "step": VerifierKind(
        compose.StepBonus,
        "The reward of another verifier and a bonus for shown steps: it may pay for padding",
    ),
    "format": VerifierKind(
        compose.FormatSettings,
        "Does the response match a regular expression? (pattern)",
        lambda settings, _: compose.FormatVerifier(settings),
    ),
    "choice": VerifierKind(
        NoSettings,
        "Which option of its problem does the response name, by letter or text?",
        lambda *_: compose.PlainVerifier(answers.judge_choice),
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
        compose.LearnedSettings,
        "A guess, learned from the verdicts of a run (folder: a path, or run:RUN)",
        lambda settings, means: means.open_learned(settings.folder),
        requires=("open_learned", "its weights cannot be loaded here.", "Name another one."),
    ),
    "own_reward": VerifierKind(
        NoSettings,
        "The reward that the agent's own function gave its try",
        lambda *_: compose.PlainVerifier(compose.own_verdict),
    ),
    "recorded": VerifierKind(
        NoSettings,
        "What came of a recorded try (studio data import), as it was found with it",
        lambda *_: compose.PlainVerifier(compose.recorded_verdict),
    ),
}


@frozen
class ParsedCriterion:
    name: str
    weight: float
    verifier: "ParsedVerifier"


@frozen
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
    judging: judge.JudgeContext | None = None,
    folders: Sequence[Path] = (),
    *,
    columns: frozenset[str] | None = None,
    grading: harbor.HarborVerifier | None = None,
    open_learned: Callable[[str], compose.LearnedVerifier] | None = None,
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
    return any(KINDS[name].needs_answer for name in _names(spec) if name in KINDS)


def asks_judge(spec: Spec) -> bool:
    """Whether it asks the judge role, or may: what a function does is known when it runs."""
    return not {"judge", "function"}.isdisjoint(_names(spec))


def loads_weights(spec: Spec) -> bool:
    """Whether a reward model is loaded for it."""
    return "reward_model" in _names(spec)


def grades_tasks(spec: Spec) -> bool:
    """Whether it runs the graders of task folders."""
    return "harbor" in _names(spec)


def _names(spec: object) -> Iterator[str]:
    """The names of those that judge; what is wrong in a specification `parse_spec` says."""
    spec = _as_mapping(spec)
    name = spec.get("name") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(name, str):
        return
    inner = spec.get("of")
    if name == "weighted":
        for entry in inner if isinstance(inner, list | tuple) else ():
            yield from _names(entry)
    elif name in KINDS and KINDS[name].open is None:
        yield from _names(inner or SHAPED)
    else:
        yield name


def _as_mapping(given: object) -> object:
    """A verifier as a mapping with its name, where that can be told."""
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping) and "name" not in given and "file" in given:
        return {**given, "name": "function"}
    return given


def _parse_mapping(spec: JsonMapping, folders: Sequence[Path], at: At) -> ParsedVerifier:
    settings = dict(spec)
    name = settings.pop("name", None)
    if name == "weighted":
        return _parse_list(settings, folders, at)
    if name == "function":
        return _parse_function(settings, folders, at)
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        move = known_names_text(str(name), (*KINDS, "function"))
        if isinstance(name, str) and (file := find_file(name, folders)):
            move = f"{file.name} is a file: write {{file: {file.name}}}."
        cause = '"name" is missing.' if name is None else "there is no such verifier."
        raise SpecError((*at, "name") if name else at, f'verifier "{name}"', cause, move)
    if "file" in settings:
        raise SpecError(
            (*at, "file"),
            "verifier",
            f'"file" stands beside the name "{name}".',
            "Leave one of them out.",
        )
    of: tuple[ParsedCriterion, ...] = ()
    if kind.open is None:
        of = (_parse_criterion(settings.pop("of", SHAPED), folders, (*at, "of")),)
    return ParsedVerifier(at, name, parse_settings(kind.settings, name, settings, at), of=of)


def _parse_function(settings: dict[str, Any], folders: Sequence[Path], at: At) -> ParsedVerifier:
    from engines.verifiers.foreign.verifier import FunctionSettings

    file = settings.pop("file", None)
    if not isinstance(file, str) or not file.strip():
        cause = '"file" is missing.' if file is None else '"file" is no path.'
        raise SpecError((*at, "file"), "verifier", cause, "Give the file: file: MINE.py.")
    path = require_file(file, folders, at)
    parsed = parse_settings(FunctionSettings, path.stem, settings, at)
    return ParsedVerifier(at, settings=parsed, path=path)


def _parse_list(given: JsonMapping, folders: Sequence[Path], at: At) -> ParsedVerifier:
    place, entries = "list of verifiers", given.get("of")
    if unknown := [key for key in given if key != "of"]:
        raise SpecError(
            (*at, str(unknown[0])),
            place,
            f'"{unknown[0]}" cannot stand beside a list.',
            "Write it in an entry.",
        )
    if not isinstance(entries, list | tuple) or not entries:
        raise SpecError(
            (*at, "of"), place, "it is no list with an entry.", "Name at least one: [math, judge]."
        )
    criteria: dict[str, ParsedCriterion] = {}
    for number, entry in enumerate(entries):
        below = (*at, "of", str(number))
        criterion = _parse_criterion(entry, folders, below)
        if criterion.name in criteria:
            raise SpecError(
                (*below, "as"),
                f"criterion {number + 1}",
                f'"{criterion.name}" is taken.',
                "Give each criterion a name of its own: as: NAME.",
            )
        criteria[criterion.name] = criterion
    return ParsedVerifier(at, of=tuple(criteria.values()))


def _parse_criterion(given: object, folders: Sequence[Path], at: At) -> ParsedCriterion:
    """An entry of a list, or the one that is shaped; only the former has weight and metric."""
    entry, place = _as_mapping(given), f"verifier at {'.'.join(at)}"
    if not isinstance(entry, Mapping):
        raise SpecError(
            at,
            place,
            "it is no verifier.",
            "Write a name or {name: …}; for several: {name: weighted, of: […]}.",
        )
    settings = dict(entry)
    weight, name = 1.0, None
    if at[-1] != "of":
        weight, name = settings.pop("weight", 1), settings.pop("as", None)
        if settings.get("name") == "weighted":
            raise SpecError(
                at, place, "it is a list itself.", "Write its entries in the outer one."
            )
    if type(weight) not in (int, float) or not isfinite(weight) or not weight:
        raise SpecError(
            (*at, "weight"),
            place,
            f"weight is {weight!r}.",
            "Set another number than 0, or take the entry out.",
        )
    if name is not None and not (isinstance(name, str) and _METRIC.fullmatch(name)):
        raise SpecError(
            (*at, "as"),
            place,
            f'"as" is {name!r}, which names no metric.',
            "Use letters, digits, dots and dashes.",
        )
    verifier = _parse_mapping(settings, folders, at)
    usual = verifier.path.stem if verifier.path else str(settings["name"])
    return ParsedCriterion(name or usual, float(weight), verifier)


def _open_parsed(ready: ParsedVerifier, means: Means) -> Verifier:
    if ready.path is not None:
        from engines.verifiers.foreign.verifier import FunctionVerifier

        judging, columns = means.judging, means.columns
        return FunctionVerifier(ready.settings, ready.path, judging, columns=columns)
    parts = [
        compose.WeightedCriterion(part.name, part.weight, _open_parsed(part.verifier, means))
        for part in ready.of
    ]
    if not ready.name:
        return compose.WeightedVerifier(parts)
    kind = KINDS[ready.name]
    if kind.open is None:
        (part,) = parts
        return compose.ShapedVerifier(ready.settings, part.name, part.verifier)
    if kind.requires is not None:
        name, cause, move = kind.requires
        if getattr(means, name) is None:
            raise SpecError(ready.at, f'verifier "{ready.name}"', cause, move)
    return kind.open(ready.settings, means)
