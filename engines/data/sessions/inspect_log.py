"""inspect: the samples of `.eval` files (a zip of JSON) and of JSON logs, each with its score.

Source: EvalSample of inspect_ai/log/_log.py (0.3). Today's entries are compressed by Zstandard,
which zipfile knows from Python 3.14 on.
"""

import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.core.errors import DataError
from engines.data.rows import import_zstd
from engines.data.sessions.steps import (
    LONGEST_FILE,
    Intake,
    Session,
    Step,
    as_object,
    chat_steps,
    objects,
    parse_json,
)

MOVE = "Give a .eval or .json log as inspect writes it."
# By name, since zstd's are its own; encrypted or unknown ones are refused by the rest.
_DAMAGED = {"BadZipFile", "EOFError", "ZstdError", "LZMAError", "error"}
_DAMAGED |= {"RuntimeError", "NotImplementedError", "OSError"}
GRADES = {"c": 1.0, "p": 0.5, "i": 0.0, "n": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_ZSTANDARD = 93
_ATTACHED = re.compile(r"attachment://([0-9a-f]{32})")


@contextmanager
def open_archive(path: Path) -> Iterator[Any]:
    """A `.eval` file as a zip; raises DataError where it is damaged, also while it is read."""
    try:
        with _open_zip(path) as archive:
            yield archive
    except Exception as error:
        no_file = isinstance(error, OSError) and error.errno is not None
        if no_file or type(error).__name__ not in _DAMAGED:
            raise
        raise DataError(str(path), f"it is cut, or no zip ({error}).", MOVE) from error


def _open_zip(path: Path) -> Any:
    archive = zipfile.ZipFile(path)
    packed = any(entry.compress_type == _ZSTANDARD for entry in archive.filelist)
    if not packed or hasattr(zipfile, "ZIP_ZSTANDARD"):
        return archive
    archive.close()
    import_zstd(path)  # says how to get it where it is missing
    return import_module("backports.zstd.zipfile").ZipFile(path)


def read(path: Path, intake: Intake) -> Iterator[Session]:
    if path.suffix != ".eval":
        whole = as_object(intake.read_whole(path))
        for sample in objects(whole.get("samples")):
            yield _session(sample, whole, intake)
        return
    with open_archive(path) as archive:
        names = archive.namelist()
        heads = [name for name in ("header.json", "_journal/start.json") if name in names]
        head = as_object(parse_json(archive.read(heads[0]))) if heads else {}
        for name in names:
            if name.startswith("samples/"):
                small = archive.getinfo(name).file_size <= LONGEST_FILE
                if sample := as_object(parse_json(archive.read(name)) if small else None):
                    yield _session(sample, head, intake)
                else:
                    intake.drop("unreadable samples")


def _session(sample: dict[str, Any], head: dict[str, Any], intake: Intake) -> Session:
    told, target = as_object(head.get("eval")), sample.get("target")
    answers = [target] if isinstance(target, str) else target if isinstance(target, list) else []
    name = f"{told.get('task', 'task')}/{sample.get('id')}/{sample.get('epoch', 1)}"
    session = Session(name, _steps(sample, str(told.get("model") or ""), intake), whole=True)
    session.answer = str(answers[0]) if answers and answers[0] else None
    for scorer, score in as_object(sample.get("scores")).items():
        value = as_object(score).get("value")
        value = GRADES.get(value.lower()) if isinstance(value, str) else value
        if isinstance(value, int | float):
            session.score, session.score_name = float(value), f"score of {scorer}"
            break
    return session


def _steps(sample: dict[str, Any], model: str, intake: Intake) -> Iterator[Step]:
    attached = as_object(sample.get("attachments"))

    def attach(value: Any) -> Any:
        """Long texts stand elsewhere in the sample, once each."""
        if isinstance(value, str):
            return _ATTACHED.sub(lambda found: str(attached.get(found[1], found[0])), value)
        if isinstance(value, dict):
            return {key: attach(inner) for key, inner in value.items()}
        return [attach(inner) for inner in value] if isinstance(value, list) else value

    messages = objects(attach(sample.get("messages")))
    if not any(message.get("role") == "user" for message in messages):
        yield Step("user", intake.text_of(attach(sample.get("input"))))
    for message in messages:
        yield from chat_steps(message, intake, model)
    if error := as_object(sample.get("error")):
        yield Step("error", str(error.get("message") or ""))
