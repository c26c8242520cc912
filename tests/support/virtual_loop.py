"""An asyncio loop whose clock jumps to the next timer instead of waiting for it, and a Clock that reads it.

run_virtually(lambda clock: scenario(clock))      # hours of waiting take no time
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when every task waits; an hour of waiting takes no time."""

    def __init__(self) -> None:
        self._jump = _JumpSelector()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


class LoopClock:
    """The running loop's time as a domain.ports.Clock."""

    def __init__(self, wall_offset_us: int = 1_800_000_000_000_000) -> None:
        self.wall_offset_us = wall_offset_us

    def monotonic_us(self) -> int:
        return round(asyncio.get_running_loop().time() * 1_000_000)

    def wall_us(self) -> int:
        return self.wall_offset_us + self.monotonic_us()


def run_virtually(scenario: Callable[[LoopClock], Coroutine[Any, Any, T]]) -> T:
    """Return what `scenario` returns, run on a loop of its own whose time costs nothing."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario(LoopClock()))


async def pass_time(seconds: float) -> None:
    """Let `seconds` of virtual time pass; everybody else's timers run out meanwhile."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop), "real time is not to be waited for"
    await asyncio.sleep(seconds)
