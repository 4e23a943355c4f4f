"""The studio for other code: six functions, and below it the forms of two other frameworks."""

from studio.api.practise import evaluate, evaluate_async, load_run, practice, practice_async
from studio.api.practise import find_library as library

__all__ = ["evaluate", "evaluate_async", "library", "load_run", "practice", "practice_async"]
