"""The verifiers one can name: the built-in ones, and the functions of files.

A file is parsed and never run: listing verifiers must not have side effects.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.record.run_dir import Workspace
from engines.verifiers.foreign.calls import FORMS, detect_signature
from engines.verifiers.open import KINDS
from studio.config.loading import LoadedRun
from studio.data.catalogue import bundled_folder


@dataclass(frozen=True, slots=True)
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
        *_list_folder(workspace.verifiers, "workspace", set()),
        *_list_folder(shipped_verifiers(), "shipped", own),
    )


def shipped_verifiers() -> Path:
    return bundled_folder() / "verifiers"


def verifier_folders(loaded: LoadedRun, workspace: Workspace) -> tuple[Path, ...]:
    """Where a verifier's file is looked up: beside the run file, in the workspace, shipped."""
    beside = () if loaded.preset else (loaded.path.parent,)
    return (*beside, workspace.verifiers, shipped_verifiers())


def _verifier_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))


def _list_folder(folder: Path, where: str, hidden_by: set[str]) -> Iterator[ListedVerifier]:
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
            text = f"{file}: {trouble}"
            yield ListedVerifier(file.stem, None, where=shown, path=str(file), trouble=text)
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
