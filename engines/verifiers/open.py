"""From a verifier's name and settings to the verifier.

The one place of this package that names concrete classes.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from engines.core.errors import VerifierError
from engines.core.protocols import Verifier
from engines.verifiers.judging import Judging
from engines.verifiers.math_answer import MathSettings, MathVerifier
from engines.verifiers.text_match import TextSettings, TextVerifier

KNOWN = ("math", "text")

S = TypeVar("S", MathSettings, TextSettings)


def open_verifier(
    spec: Mapping[str, Any] | str,
    judging: Judging | None = None,
    folders: Sequence[Path] = (),
) -> Verifier:
    """Make the verifier that `spec` names.

    Args:
        spec: a name, or {"name": NAME} with the settings of that verifier beside it.
        judging: the model that verifiers may ask; None where there is none.
        folders: where a verifier's file is looked up, in order.

    Raises:
        VerifierError: unknown name or setting, a value that cannot be, or the verifier
            cannot be loaded.
    """
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = settings.pop("name", None)
    match name:
        case "math":
            return MathVerifier(_settings(MathSettings, name, settings))
        case "text":
            return TextVerifier(_settings(TextSettings, name, settings))
        case None:
            raise VerifierError("verifier", '"name" is missing.', f"Known: {', '.join(KNOWN)}.")
        case _:
            raise VerifierError(
                f'verifier "{name}"', "there is no such verifier.", _offer(str(name), KNOWN)
            )


def _settings(kind: type[S], name: str, given: Mapping[str, Any]) -> S:
    known = [field.name for field in dataclasses.fields(kind)]
    for key in given:
        if key not in known:
            raise VerifierError(
                f'verifier "{name}"', f'there is no setting "{key}".', _offer(str(key), known)
            )
    try:
        return kind(**given)
    except (TypeError, AttributeError) as error:  # a value of another type, met on its use
        raise VerifierError(
            f'verifier "{name}"', f"a setting has the wrong type ({error}).", "Mend its value."
        ) from error


def _offer(given: str, known: Iterable[str]) -> str:
    names = list(known)
    nearest = difflib.get_close_matches(given, names, n=1)
    start = f'Did you mean "{nearest[0]}"? ' if nearest else ""
    return f"{start}Known: {', '.join(names)}."
