"""The data sets and verifiers of a workspace and those that are bundled, by name.

Data is added here. Files of verifiers are parsed and never run: listing must have no side effects.
"""

import ast
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from engines.core.codec import JsonObject, digest_bytes
from engines.core.errors import ConfigError, ConflictError, DataError
from engines.core.frozen import frozen
from engines.data.dataset import Numbered, check_dataset, check_rows, read_numbered_problems
from engines.data.rows import Unit, open_table
from engines.data.source import (
    PRACTISED,
    SUFFIXES,
    DataSource,
    find_splits,
    list_sources,
    locate,
    resolve_data,
)
from engines.record import appender, libraries
from engines.record.derived.catalogue import write_dataset_row
from engines.record.run_dir import Workspace
from engines.verifiers.foreign.calls import FORMS, detect_signature
from engines.verifiers.open import KINDS
from studio.config.loading import LoadedRun
from studio.facts.data_set import AddedData, DataCheck, ListedData, NumberedProblem


def bundled_folder() -> Path:
    return Path(str(files("sample_data")))


def field_names(question: str | None, answer: str | None) -> dict[str, str]:
    """The mapping that `engines.data.dataset` takes, from two options."""
    given = {"question": question, "answer": answer}
    return {field: name for field, name in given.items() if name is not None}


def hides_bundled(name: str) -> bool:
    """Tell if a data set of the workspace would hide a bundled one."""
    return (bundled_folder() / f"{name}.jsonl").is_file()


def preview_data(
    name: str, workspace: Workspace, fields: Mapping[str, str], limit: int
) -> list[NumberedProblem]:
    """Return the first problems as practice would meet them."""
    source = find_data(name, workspace)
    numbered = read_numbered_problems(source, fields=fields, needs_answer=False, limit=limit)
    unit = open_table(source).unit
    return [NumberedProblem(line, unit, problem) for line, problem in numbered]


def check_data(name: str, workspace: Workspace, fields: Mapping[str, str]) -> tuple[DataCheck, str]:
    """Look for usual mistakes; returns also the command that follows, "" where none can."""
    source = find_data(name, workspace)
    facts = DataCheck(source.stem, str(source), check_dataset(source, fields=fields))
    report = facts.report
    if 0 < report.n == len(report.without_answer) and not report.tries:
        return facts, ""
    if report.tries and source.path.parent == workspace.datasets:
        return facts, f"studio data review {quote(source.stem)}"
    if report.tries:
        return facts, f"studio data add {quote(name)}"
    return facts, f"studio headless rehearsal --name {quote(name)} data.practice={quote(name)}"


def find_data(name: str, workspace: Workspace) -> DataSource:
    """Find a data set as the `data.practice` of a run file would."""
    own = (workspace.datasets, bundled_folder())
    # A path is relative to the current folder; a bare name is looked up by name first.
    typed = os.sep in name or "." in name
    return resolve_data(name, (Path.cwd(), *own) if typed else (*own, Path.cwd()), PRACTISED)


def listed_data(workspace: Workspace, *, bundled: bool = True) -> tuple[ListedData, ...]:
    """The workspace's data sets, then the bundled ones; every row of each is read and counted."""
    taken: dict[str, Path] = {}
    return (
        *_list_folder(workspace.datasets, "workspace", taken),
        *(_list_folder(bundled_folder(), "bundled", taken) if bundled else ()),
    )


def add_data(
    workspace: Workspace, name_or_path: str, name: str | None, fields: Mapping[str, str]
) -> tuple[AddedData, ...]:
    """Check data and copy it into the workspace as datasets/<name>.jsonl.

    A JSONL file is copied byte for byte; anything else becomes JSONL row by row, with all
    its fields. Where `fields` names unusual fields, they are renamed in the copy, so that
    run files need not name them again. Of a folder each split is added as NAME-SPLIT.

    Raises DataError: the data cannot be practised on. ConfigError: the name cannot be one, or
    belongs to other content.
    """
    source = locate(name_or_path, (Path.cwd(),))
    is_folder = source.path.is_dir() and source.split is None
    splits = find_splits(source.path) if is_folder else {}
    if not splits:
        source = resolve_data(name_or_path, (Path.cwd(),))
    called = name
    if called is None:
        called = source.path.resolve().name if splits else source.stem
    sources = {called: source}
    if len(splits) > 1:
        sources = {f"{called}-{split}": DataSource(source.path, split) for split in splits}
    # All are checked before the first is written, so that half a folder is never added.
    ready = [
        (workspace.datasets / f"{check_data_name(called)}.jsonl", *_read_data(source, fields))
        for called, source in sources.items()
    ]
    for target, data, _, _ in ready:
        check_free(target, same=target.exists() and target.read_bytes() == data)
    added = []
    for target, data, numbered, unit in ready:
        new = not target.exists()
        # Also for a file that was there: the catalogue may have been lost since.
        write_dataset(workspace, target, data, len(numbered))
        facts = AddedData(
            name=target.stem,
            path=target,
            n=len(numbered),
            without_answer=sum(problem.answer is None for _, problem in numbered),
            new=new,
            hides_bundled=hides_bundled(target.stem),
            contradictory=check_rows(numbered).contradictory,
            unit=unit,
        )
        added.append(facts)
    return tuple(added)


def add_talks(
    workspace: Workspace, path: str, name: str | None, fields: Mapping[str, str]
) -> tuple[AddedData, ...]:
    """`add_data` of chat rows: each talk becomes a question, an answer and a history."""
    if fields:
        raise ConfigError(
            "--as-chat",
            "Talks have no such fields.",
            "Leave --question and --answer out: they follow from the roles.",
        )
    source = resolve_data(path, (Path.cwd(),), PRACTISED)
    rows = [_parse_talk(place, row) for _, place, row in open_table(source).good_rows()]
    talks = [row for row in rows if row is not None]
    with_tools = len(rows) - len(talks)
    if not talks:
        raise DataError(
            str(source),
            f"No talk is left; {with_tools} rows with calls of tools are left out.",
            "Give talks without tools.",
        )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "talks.jsonl"
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in talks)
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        added = add_data(workspace, str(file), name if name is not None else source.stem, {})
    return tuple(replace(one, with_tools=with_tools) for one in added)


def write_dataset(workspace: Workspace, target: Path, data: bytes, n: int) -> None:
    """Write a data set of the workspace, unless it is as it should be, and note it."""
    appender.make_folder(workspace.datasets)
    if not target.exists() or target.read_bytes() != data:
        appender.write_atomic(target, data)
    write_dataset_row(workspace, dataset_row(target, data, n))


def dataset_row(path: Path, data: bytes, n: int) -> JsonObject:
    """Return what the catalogue says of a data set of the workspace."""
    about = {"name": path.stem, "path": f"{path.parent.name}/{path.name}", "n": n}
    return {**about, "bytes": len(data), "digest": digest_bytes(data)}


def _read_data(
    source: DataSource, fields: Mapping[str, str]
) -> tuple[bytes, tuple[Numbered, ...], Unit]:
    """The data as JSONL, its problems, and the unit of their numbers.

    With `fields`, `question` and `answer` stand under these names, first.
    """
    numbered = read_numbered_problems(source, fields=fields, needs_answer=False)
    table = open_table(source)
    if table.verbatim and not fields:
        return source.files()[0].read_bytes(), numbered, table.unit
    problems = dict(numbered)
    rows = []
    for number, _, row in table.good_rows():
        problem = problems.get(number)
        if fields and problem is not None:
            used = {"question", "answer", *fields.values()}
            about = {**(problem.meta if problem.options else row)}
            if problem.options:
                about["options"] = about.pop("lettered_options")
            answer = problem.meta.get("alternatives", problem.answer)
            others = {key: value for key, value in about.items() if key not in used}
            row = {"question": problem.question, "answer": answer, **others}
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(rows).encode(), numbered, table.unit


def check_data_name(name: str) -> str:
    try:
        libraries.check_name(name)
    except ConflictError as error:
        raise ConfigError(error.place, error.cause, "Choose one with --name NAME.") from error
    return name


def check_free(target: Path, *, same: bool) -> None:
    """Refuse a name that other content has: in this file, unless it is the `same`, or another."""
    for suffix in ("", *SUFFIXES):
        path = target.with_suffix(suffix)
        if path.exists() and not (same and path == target):
            raise ConfigError(
                f"data set {target.stem}",
                f"{path} exists with other content.",
                "Choose another name with --name NAME.",
            )


def _list_folder(folder: Path, where: str, taken: dict[str, Path]) -> Iterator[ListedData]:
    """What a folder holds. `taken`: each name and what it means; names found join it."""
    for source in list_sources(folder):
        shown = where if taken.setdefault(source.name, source.path) == source.path else "hidden"
        called = source.name if source.split is None else f"{source.name}:{source.split}"
        try:
            n = len(read_numbered_problems(source, needs_answer=False))
        except DataError as error:
            yield ListedData(called, None, shown, str(source.path), str(error))
        else:
            yield ListedData(called, n, shown, str(source.path))


_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "assistant"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "function_call", "observation", "tool_call"), "tool"),
}
_TURNS = ("messages", "conversations")
_SHAPES = 'Write {"messages": [{"role": …, "content": …}]}, or "conversations" of from and value.'


def _parse_talk(place: str, row: JsonObject) -> JsonObject | None:
    """A row as a problem; None where it has calls of tools.

    Raises DataError: it holds no talk, or one in which nothing is asked.
    """
    turns = next((row[name] for name in _TURNS if isinstance(row.get(name), list)), None)
    if turns is None:
        raise DataError(place, f"The row holds no talk; its fields are: {', '.join(row)}.", _SHAPES)
    talk = [_parse_turn(place, turn) for turn in turns]
    if any(turn["role"] == "tool" for turn in talk):
        return None
    if isinstance(row.get("system"), str) and row["system"].strip():
        talk.insert(0, {"role": "system", "content": row["system"]})
    is_answered = bool(talk) and talk[-1]["role"] == "assistant"
    answer = talk.pop()["content"] if is_answered else None
    if not talk or talk[-1]["role"] != "user":
        raise DataError(
            place,
            "The talk does not end with a question, or a question and its answer.",
            "Mend it, or take the row out.",
        )
    question = talk.pop()["content"]
    others = {key: row[key] for key in row if key not in (*_TURNS, "system", "tools")}
    return {**others, "question": question, "answer": answer, "history": talk}


def _parse_turn(place: str, turn: Any) -> dict[str, str]:
    """Role and text of a turn; "tool" where it belongs to the call of one."""
    turn = turn if isinstance(turn, dict) else {}
    role = _ROLES.get(str(turn.get("role") or turn.get("from")))
    if role == "tool" or turn.get("tool_calls") or turn.get("function_call"):
        return {"role": "tool", "content": ""}
    text = turn.get("content", turn.get("value"))
    if isinstance(text, list) and all(isinstance(part, dict) and "text" in part for part in text):
        text = "\n".join(str(part["text"]) for part in text)
    if role is None or not isinstance(text, str):
        raise DataError(place, "A turn of the talk has no known role or no text.", _SHAPES)
    return {"role": role, "content": text}


@frozen
class ListedVerifier:
    """One verifier. `kind` is None where the file cannot serve: `trouble` says why."""

    name: str
    kind: str | None  # "built-in", or whose signature its function has
    function: str = ""
    about: str = ""
    where: str = "built-in"  # or "workspace", "shipped", "hidden" behind one of the workspace
    path: str = ""
    trouble: str = ""

    @property
    def listed_name(self) -> str:
        """The name as it is listed: a file's own, so that it is told from a built-in one."""
        return Path(self.path).name if self.path else self.name


def listed_verifiers(workspace: Workspace) -> tuple[ListedVerifier, ...]:
    """The built-in ones, the workspace's, then the shipped ones."""
    own = {file.stem for file in _verifier_files(workspace.verifiers)}
    return (
        *(ListedVerifier(name, "built-in", about=kind.about) for name, kind in KINDS.items()),
        *_list_verifiers(workspace.verifiers, "workspace", set()),
        *_list_verifiers(shipped_verifiers(), "shipped", own),
    )


def shipped_verifiers() -> Path:
    return bundled_folder() / "verifiers"


def verifier_folders(loaded: LoadedRun, workspace: Workspace) -> tuple[Path, ...]:
    """Where a verifier's file is looked up: beside the run file, in the workspace, shipped."""
    beside = () if loaded.preset else (loaded.path.parent,)
    return (*beside, workspace.verifiers, shipped_verifiers())


def _verifier_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))


def _list_verifiers(folder: Path, where: str, hidden_by: set[str]) -> Iterator[ListedVerifier]:
    for file in _verifier_files(folder):
        shown = "hidden" if file.stem in hidden_by else where
        try:
            found = list(_find_functions(file))
            trouble = "" if found else f"no function of a known form ({'; '.join(FORMS.values())})"
        except (SyntaxError, ValueError, RecursionError) as error:
            found, trouble = [], f"not Python: {error}"
        except OSError as error:
            found, trouble = [], f"it cannot be read: {error.strerror or error}"
        if trouble:
            yield ListedVerifier(
                file.stem, None, where=shown, path=str(file), trouble=f"{file}: {trouble}"
            )
        for function, kind, about in found:
            yield ListedVerifier(file.stem, kind, function, about, shown, str(file))


def _find_functions(file: Path) -> Iterator[tuple[str, str, str]]:
    """Name, kind and first line of the docstring of each function that can judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stray backslash in a user's file is not ours to report
        tree = ast.parse(file.read_bytes(), str(file))
    about = _first_line(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            arguments = node.args
            names = [
                a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            ]
            if kind := detect_signature(names):
                yield node.name, kind, _first_line(node) or about


def _first_line(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = (ast.get_docstring(node) or "").strip().splitlines()
    return lines[0] if lines else ""
