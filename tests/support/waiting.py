"""Waiting for a condition, with a bound and a name: what tests do instead of sleeping."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

_LOOK_S = 0.01


async def until(what: str, check: Callable[[], Any], *, timeout_s: float = 10, every_s: float = _LOOK_S) -> Any:
    """Return the first true answer of `check` (plain or async); it is asked again and again: other processes give no signal.

    Raises:
        AssertionError: no true answer within `timeout_s`; it says what was waited for, and the last answer.
    """
    answer: object = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                asked = check()
                answer = value = await asked if inspect.isawaitable(asked) else asked
                if value:
                    return value
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s} s for {what}; last answer: {answer!r}") from None
