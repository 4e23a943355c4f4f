"""Awaiting many things at once without losing the reason when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Results in the order of `work`; the first failure cancels the rest and is raised as it is."""

    async def await_one(item: Awaitable[T]) -> T:
        return await item

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(await_one(item)) for item in work]
    except BaseExceptionGroup as failures:
        raise _first_failure(failures) from None
    return [task.result() for task in tasks]


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = failures
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
