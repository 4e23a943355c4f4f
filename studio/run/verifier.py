"""The verifier of a run: how it is opened, and what of its files is in a run's fingerprint.

`engines.verifiers.open` knows the kinds, `studio.data.verifiers` the folders.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from engines.core.codec import digest, digest_bytes
from engines.core.errors import VerifierError
from engines.core.protocols import Ledger, Verifier, judges_whole_groups
from engines.core.types import Problem, Rollout, Verdict
from engines.data.source import resolve_data
from engines.policies.limits import Slots
from engines.record.run_dir import Workspace
from engines.secrets.mask import Mask
from engines.verifiers.compose import LearnedSettings, LearnedVerifier
from engines.verifiers.foreign.calls import shared_columns
from engines.verifiers.open import (
    ParsedVerifier,
    SpecError,
    grades_tasks,
    loads_weights,
    open_verifier,
    parse_spec,
)
from studio.config.loading import LoadedRun, own_programs
from studio.config.run_yaml import fingerprint
from studio.config.settings.policy import PolicyConfig
from studio.data.verifiers import verifier_folders
from studio.render.lines import to_stderr
from studio.render.words import count_text
from studio.run.models import LocalModels, Roles, make_judging
from studio.secrets.run_files import without_secrets


def open_run_verifier(
    loaded: LoadedRun,
    workspace: Workspace,
    roles: Roles,
    ledger: Ledger,
    slots: Slots,
    *,
    stack: AsyncExitStack,
    sets: Sequence[Sequence[Problem]] = (),
) -> Verifier:
    """Make the verifier that a run file asks for; its `check` is left to the caller.

    `sets` are what it will judge, practice and held-out: its `check` refuses a function that needs
    a column which one of them lacks.

    Raises VerifierError: unknown, wrongly set, or without a model that it needs; the place is a
    line of the run file.
    """
    config = loaded.config
    judging = make_judging(config, roles, ledger, slots)
    with _locate_errors(loaded):
        spec, folders = config.verifier.spec, verifier_folders(loaded, workspace)
        columns = shared_columns(*sets)
        if (dispatcher := roles.acting.dispatcher) and roles.remote and not loads_weights(spec):
            roles.remote.want_verifier(spec, folders, columns, judging)
            return MaskedAnswers(dispatcher.verifier(), loaded.mask)
        grading = roles.acting.grading() if grades_tasks(spec) else None
        verifier = open_verifier(
            spec,
            judging,
            folders,
            columns=columns,
            grading=grading,
            open_learned=lambda folder: _open_reward_model(folder, loaded, workspace),
        )
    stack.push_async_callback(verifier.aclose)
    return MaskedAnswers(verifier, loaded.mask)


REWARD_MODEL, HEAD_FILE = "reward_model", "head.safetensors"
"""The folder of a run in which `studio train --stage reward` keeps what it made."""


def _reward_folder(named: str, workspace: Workspace) -> Path:
    kind, _, run = named.partition(":")
    return workspace.run(run).path / REWARD_MODEL if kind == "run" else Path(named).expanduser()


def _open_reward_model(named: str, loaded: LoadedRun, workspace: Workspace) -> LearnedVerifier:
    """Load head and base model. Raises DataError, PolicyError: one of them cannot be used."""
    folder = _reward_folder(named, workspace)
    if not folder.is_dir():
        raise VerifierError(
            named,
            f"there is no reward model at {folder}.",
            "Train one: studio train RUNFILE --stage reward.",
        )
    settings = PolicyConfig(model=json.loads((folder / "reward_model.json").read_bytes())["model"])
    local = LocalModels(loaded.config, to_stderr).open(settings).local
    from engines.policies.hf_local.reward_head import features_of, load_head

    head, card = load_head(folder)
    about = (
        f"learned from run {card['run']}, with whose verifier it agrees on "
        f"{card['held_out_agreement']:.2f} of n={card['held_out_pairs']} pairs"
    )
    to_stderr(f"note: rewards are guesses of a model {about}")
    return LearnedVerifier(lambda pairs: head.rewards(features_of(local, pairs)).tolist(), about)


class MaskedAnswers:
    """A verifier that leaves a try unjudged where the expected answer holds a secret.

    Such an answer is masked in journals and in prompts: the same try would be right when it is
    made and wrong when a resume judges it, which is no reward of 0.
    """

    def __init__(self, verifier: Verifier, mask: Mask) -> None:
        self._verifier, self._mask = verifier, mask

    @property
    def whole_groups(self) -> bool:
        return judges_whole_groups(self._verifier)

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
    """A note before practice begins; None where every answer can be judged."""
    count = 0
    rest = iter(problems)
    while some := tuple(islice(rest, 1000)):
        # Masked together, since looking at one text costs as much as at many; a secret in any
        # of them is found, and seldom more, so the answers of such a chunk are looked at alone.
        texts = "\n".join(text for problem in some for text in problem.accepted_answers)
        if mask(texts) != texts:
            count += sum(is_answer_masked(problem, mask) for problem in some)
    if not count:
        return None
    answers = count_text(count, "expected answer")
    return f"{answers} with what looks like a secret: tries at them stay unjudged"


def fingerprint_of(
    loaded: LoadedRun, workspace: Workspace, data_digest: str = ""
) -> dict[str, Any]:
    """`RunConfig.fingerprint` with what the verifier's files hold.

    A file counts by its name and content, in whatever folder; what it imports does not.

    Raises VerifierError: see `open_run_verifier`; or a file cannot be read.
    """
    spec = loaded.config.verifier.spec
    with _locate_errors(loaded):
        ready = parse_spec(spec, verifier_folders(loaded, workspace))
    # By content, so that a resume after an edited verifier or log is noticed.
    found = fingerprint(loaded.config, data_digest, _portable_spec(spec, ready, workspace))
    found["agent.files"] = {file.name: _digest(file) for file in own_programs(loaded.config.agent)}
    for role in ("policy", "reflector", "judge"):
        name = f"{role}.model"
        if str(found[name]).startswith("replay:"):
            found[name] += f"#{_log_digest(loaded.config.role(role).model)}"
    return found


def _log_digest(model: str) -> str:
    """Of a log's content: another log of the same name is another model."""
    source = resolve_data(model.partition(":")[2], (Path(),))
    return digest([_digest(file) for file in source.files()], 6)


def _portable_spec(
    spec: Mapping[str, Any], ready: ParsedVerifier, workspace: Workspace
) -> dict[str, Any]:
    plain: dict[str, Any] = without_secrets(spec)
    if isinstance(ready.settings, LearnedSettings):
        plain["digest"] = _digest(_reward_folder(ready.settings.folder, workspace) / HEAD_FILE)
    if ready.path is not None:
        plain |= {"file": ready.path.stem, "digest": _digest(ready.path)}
    if ready.of:
        inner = spec.get("of")
        if isinstance(inner, list | tuple):
            plain["of"] = [
                _portable_spec(entry, criterion.verifier, workspace)
                for entry, criterion in zip(inner, ready.of, strict=True)
            ]
        elif isinstance(inner, Mapping):  # the one that is shaped
            plain["of"] = _portable_spec(inner, ready.of[0].verifier, workspace)
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
    """Name the line of the run file that has a refused setting."""
    try:
        yield
    except SpecError as error:
        place = loaded.place(".".join(("verifier", *error.at)))
        raise VerifierError(place, f"{error.place}: {error.cause}", error.move) from error
