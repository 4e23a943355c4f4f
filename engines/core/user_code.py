"""Functions of the user's own, which run in this process, and what foreign errors say."""

import importlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from engines.core.codec import digest
from engines.core.errors import ConfigError, did_you_mean, suggest_name
from engines.core.text.sanitize import one_line

VERIFIER_MODULE = "practice_verifier"
"""What a file of a verifier is called while it is loaded, in a process of its own."""
_OWN = "practice_user_"


def is_loaded_by_us(module: str) -> bool:
    """Whether a module is a file of the user's that is loaded for a function in it."""
    return module == VERIFIER_MODULE or module.startswith(_OWN)


def load_function(place: str, named: str) -> Callable[..., Any]:
    """What FILE.py:NAME or MODULE:NAME names."""
    source, _, name = named.rpartition(":")
    try:
        if source.endswith(".py"):
            module = _load_file(_find_file(place, Path(source).expanduser()))
        else:
            module = importlib.import_module(source)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # it runs the user's code
        raise ConfigError(place, f"{source} cannot be loaded ({error_text(error)}).", "") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        own = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise ConfigError(
            place, f'there is no function "{name}" in {source}.', suggest_name(name, own)
        )
    return function


def error_text(error: BaseException) -> str:
    """The kind of a foreign error and its text in one line; of a group the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    try:
        said = one_line(str(error)[:2_000])
    except BaseException:  # its __str__ may do anything
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _find_file(place: str, path: Path) -> Path:
    if not path.is_file():
        names = [beside.name for beside in path.parent.glob("*.py")]
        move = f"{did_you_mean(path.name, names)}Searched: {path.parent.absolute()}."
        raise ConfigError(place, f"there is no file {path}.", move)
    return path.resolve()


def _load_file(path: Path) -> ModuleType:
    changed = path.stat().st_mtime_ns
    name = f"{_OWN}{digest(f'{path} {changed}')[:12]}"
    if name in sys.modules:  # functions of one file share what is in it
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: it may have a math.py
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
