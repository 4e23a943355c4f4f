"""The values of the house: frozen dataclasses with slots."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass with slots, which nothing can change once it is made."""
    return dataclass(frozen=True, slots=True)(kind)
