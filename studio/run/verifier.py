"""The verifier of a run: where its files are looked up, whom it may ask, what it is.

Owns naming the line of the run file that a refusal is about, and what of a verifier's
files belongs to a run's fingerprint. `engines.verifiers.open` knows the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from engines.core.errors import VerifierError
from engines.core.ids import digest, digest_bytes
from engines.core.protocols import Ledger, Verifier
from engines.core.text.masking import Mask
from engines.core.types import Problem, Rollout, Verdict
from engines.data.source import resolve_data
from engines.policies.limits.throttle import Slots
from engines.record.run_dir import Workspace
from engines.verifiers.foreign.calls import shared_columns
from engines.verifiers.open import ParsedVerifier, open_verifier, parse_spec
from engines.verifiers.spec import SpecError
from studio.config.loading import LoadedRun
from studio.config.settings.fingerprint import fingerprint
from studio.run.models import Roles, make_judging
from studio.secrets.rules import without_secrets


def shipped_verifiers() -> Path:
    return Path(str(files("sample_data"))) / "verifiers"


def open_run_verifier(
    loaded: LoadedRun,
    workspace: Workspace,
    roles: Roles,
    ledger: Ledger,
    slots: Slots,
    *,
    sets: Sequence[Sequence[Problem]] = (),
) -> Verifier:
    """Make the verifier that a run file asks for; its `check` is left to the caller.

    Args:
        loaded: the run file.
        workspace: its `verifiers/` is searched before the shipped ones.
        roles: the judge among them is asked through `ledger`.
        ledger: records what the judge replies.
        slots: shared by all calls of the run, unless the judge has slots of its own.
        sets: what it will judge, practice and held-out; with them its `check` refuses a
            function that needs a column which one of them does not have.

    Raises:
        VerifierError: unknown, wrongly set, or without a model that it needs; the place
            is a line of the run file.
    """
    config = loaded.config
    judging = make_judging(config, roles, ledger, slots)
    with _locate_errors(loaded):
        spec, folders = config.verifier.spec, _verifier_folders(loaded, workspace)
        verifier = open_verifier(spec, judging, folders, columns=shared_columns(*sets))
    return MaskedAnswers(verifier, loaded.mask)


class MaskedAnswers:
    """A verifier that judges no try whose problem's expected answer holds a secret.

    Such an answer stands masked in journals and in what models are shown: the same try would
    be right when it is made and wrong when a resume judges it. That is no reward of 0.
    """

    def __init__(self, verifier: Verifier, mask: Mask) -> None:
        self._verifier, self._mask = verifier, mask

    async def check(self) -> None:
        await self._verifier.check()

    async def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> Sequence[Verdict]:
        if is_answer_masked(problem, self._mask):
            return [Verdict(None, error=ANSWER_MASKED) for _ in rollouts]
        return await self._verifier.verify(problem, rollouts)

    async def aclose(self) -> None:
        await self._verifier.aclose()


ANSWER_MASKED = "masked: the expected answer holds what looks like a secret"


def is_answer_masked(problem: Problem, mask: Mask) -> bool:
    return any(mask(text) != text for text in problem.accepted_answers)


def masked_answers_warning(problems: Iterable[Problem], mask: Mask) -> str | None:
    """What to say before practice begins; None where every answer can be judged."""
    count = sum(is_answer_masked(problem, mask) for problem in problems)
    what = (
        "problem has an expected answer that holds"
        if count == 1
        else ("problems have expected answers that hold")
    )
    return f"{count} {what} what looks like a secret: tries at it stay unjudged" if count else None


def fingerprint_of(
    loaded: LoadedRun, workspace: Workspace, data_digest: str = ""
) -> dict[str, Any]:
    """`RunConfig.fingerprint` with what the verifier's files hold.

    A file counts by its name and content, wherever it lies; what it imports does not.

    Raises:
        VerifierError: see `open_run_verifier`; or a file cannot be read.
    """
    spec = loaded.config.verifier.spec
    with _locate_errors(loaded):
        ready = parse_spec(spec, _verifier_folders(loaded, workspace))
    found = fingerprint(loaded.config, data_digest, _portable_spec(spec, ready))
    for role in ("policy", "reflector", "judge"):
        name = f"{role}.model"
        if str(found[name]).startswith("replay:"):
            found[name] += f"#{_log_digest(loaded.config.role(role).model)}"
    return found


def _log_digest(model: str) -> str:
    """Of what a log holds: another log of the same name is another model."""
    source = resolve_data(model.partition(":")[2], (Path(),))
    return digest([_digest(file) for file in source.files()], 6)


def _verifier_folders(loaded: LoadedRun, workspace: Workspace) -> tuple[Path, ...]:
    beside = () if loaded.preset else (loaded.path.parent,)
    return (*beside, workspace.verifiers, shipped_verifiers())


def _portable_spec(spec: Mapping[str, Any], ready: ParsedVerifier) -> dict[str, Any]:
    plain: dict[str, Any] = without_secrets(spec)
    if ready.path is not None:
        plain |= {"file": ready.path.stem, "digest": _digest(ready.path)}
    if ready.of:
        inner = spec.get("of")
        if isinstance(inner, list | tuple):
            plain["of"] = [
                _portable_spec(entry, criterion.verifier)
                for entry, criterion in zip(inner, ready.of, strict=True)
            ]
        elif isinstance(inner, Mapping):  # the one that is shaped
            plain["of"] = _portable_spec(inner, ready.of[0].verifier)
    return plain


def _digest(file: Path) -> str:
    try:
        return digest_bytes(file.read_bytes())
    except OSError as error:
        raise VerifierError(
            str(file), f"it cannot be read ({error.strerror or error}).", "Check its permissions."
        ) from error


@contextmanager
def _locate_errors(loaded: LoadedRun) -> Iterator[None]:
    """Name the line of the run file that a refused setting stands on."""
    try:
        yield
    except SpecError as error:
        place = loaded.place(".".join(("verifier", *error.at)))
        raise VerifierError(place, f"{error.place}: {error.cause}", error.move) from error
