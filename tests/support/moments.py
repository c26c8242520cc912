"""Moments of the machine's clock, for what *is* time: a stub engine's work, and arrivals that a scenario states.

A test that waits for something to happen uses tests.support.waiting instead.
"""

import asyncio
import time


async def moment(at_s: float) -> None:
    """Return at `at_s` of the machine's monotonic clock, or at once if that is over."""
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


async def elapsed(duration_s: float) -> None:
    """Return after `duration_s`."""
    await moment(time.monotonic() + duration_s)
