"""Awaiting many things at once without losing the reason when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar, cast

from engines.core.errors import AnswersPending

T = TypeVar("T")


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Results in the order of `work`; the first failure cancels the rest and is raised as it is.

    What waits for an answer is no failure: the rest goes on, then all that wait are raised as one.
    """
    waiting: list[AnswersPending] = []

    async def await_one(item: Awaitable[T]) -> T | None:
        try:
            return await item
        except AnswersPending as pending:
            waiting.append(pending)
            return None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(await_one(item)) for item in work]
    except BaseExceptionGroup as failures:
        raise _first_failure(failures) from None
    if waiting:
        raise AnswersPending.merge(waiting)
    return cast("list[T]", [task.result() for task in tasks])


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    leaf: BaseException = failures
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
