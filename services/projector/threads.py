"""Runs what blocks in a thread, and waits for its end even when nobody waits for its result any more.

Rows are made and stored in threads of their own: whatever else blocks in this process (a question, a name that is looked up)
holds up no insert.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_ROWS: Final = ThreadPoolExecutor(16, thread_name_prefix="rows")
"""More than there are tasks that carry, count, keep or rebuild: each of them waits for one thing at a time."""
_QUESTIONS: Final = ThreadPoolExecutor(4, thread_name_prefix="question")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `function`, which makes or stores rows, returns.

    When cancelled, it is still waited for: an insert that was begun ends before its client is closed.
    """
    return await _run(_ROWS, partial(function, *args, **kwargs))


async def asking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what `function`, which answers somebody, returns; else as `in_thread`."""
    return await _run(_QUESTIONS, partial(function, *args, **kwargs))


async def _run(threads: Executor, work: Callable[[], R]) -> R:
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()
        raise
