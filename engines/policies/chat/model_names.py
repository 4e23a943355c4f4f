"""Whether the model that answered is the one that was asked, going by their names alone."""

from __future__ import annotations

import re

# 2024-07-18, 20241022, 09-2025, 05-20, 0613, 001: of a release, which an alias leaves open.
_RELEASE = re.compile(r"(?<![\w.])(\d{4}-?\d{2}-?\d{2}|\d{2}-\d{4}|\d{2}-\d{2}|\d{3,4})(?![\w.])")
_FORM = re.compile(r"\.gguf$|[-_.](q\d\w*|f16|bf16|fp16|fp8|int8|int4|awq|gptq|gguf)(?=$|[-_.])")
_ANY_RELEASE = {"latest", "preview", "exp", "beta"}
_ROUTES = {"free", "online", "nitro", "floor", "extended"}  # tags of OpenRouter


def is_other_model(asked: str, answered: str) -> bool:
    """True where the names cannot mean one model.

    A dated release of the name, `org/Name` for `Name`, a route (`:free`), a form of the weights
    (`-FP8`, `.gguf`) and another case are the same model. A name without letters says nothing.
    """
    wanted, found = _words(asked), _words(answered)
    if not wanted or not found:
        return False
    if wanted & _ANY_RELEASE:  # gemini-flash-latest may be gemini-2.5-flash
        found = {word for word in found if word in wanted or not word[0].isdigit()}
    return wanted - _ANY_RELEASE != found - _ANY_RELEASE


def _words(name: str) -> set[str]:
    """What a model's name is made of, without owner, tag, date and form of the weights."""
    bare = name.strip().lower().rstrip("/").rpartition("/")[2]
    bare = re.sub("[:@ ]", "-", _FORM.sub("", _FORM.sub("", bare)))
    words = set(re.split("[-_]+", _RELEASE.sub("", bare))) - _ROUTES - {""}
    return words if re.search("[a-z]", bare) else set()
