"""A virtual event loop on which several simulated processes live.

Time jumps to the next timer. Whatever runs belongs to the process whose context it was scheduled from: a frozen process does
nothing until it is thawed, and then everything at once, as after SIGSTOP and SIGCONT; of a killed one nothing runs any more,
not even a `finally`, as after kill -9.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast


class Process:
    """One process of the simulated cluster, for one life."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.parked: list[_Handle] = []
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Handle:
    __slots__ = ("arguments", "callback", "context", "process", "when_us")

    def __init__(
        self, callback: Callable[..., object] | None, arguments: tuple[Any, ...], context: Context, when_us: int
    ) -> None:
        self.callback, self.arguments, self.context, self.when_us = callback, arguments, context, when_us
        self.process = context.get(_PROCESS)

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_us / 1_000_000


class SimLoop:
    """The loop, for asyncio: tasks, futures and timers are all that a simulated process needs of one."""

    def __init__(self) -> None:
        self.now_us = 0
        self._loop = cast("asyncio.AbstractEventLoop", self)
        self._world = Context()
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[int, int, _Handle]] = []
        self._turn = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._processes: list[Process] = []
        self.failed: list[str] = []
        """What went wrong where nobody was there to catch it."""

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_us / 1_000_000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self._loop)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self._loop, name=name, context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failed.append(f"{context.get('message')}: {context.get('exception')!r}")

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        handle = _Handle(callback, args, context if context is not None else copy_context(), self.now_us)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self._at(
            self.now_us + round(delay * 1_000_000), callback, args, context if context is not None else copy_context()
        )

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self._at(round(when * 1_000_000), callback, args, context if context is not None else copy_context())

    # -- what the simulated world asks of it

    def process(self, name: str) -> Process:
        """Begin the life of a process."""
        process = Process(name)
        self._processes.append(process)
        return process

    def spawn(self, process: Process, coro: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task as `process`."""
        task = process.context.copy().run(self.create_task, coro)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(f"a process ended by {error!r}")

    def after(
        self, delay_us: int, callback: Callable[..., object], *arguments: Any, process: Process | None = None
    ) -> Any:
        """Call `callback` later: as `process`, or as the world, which nothing freezes."""
        context = self._world if process is None else process.context
        return self._at(self.now_us + delay_us, callback, arguments, context)

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on: all that waited for it happens now, in the order in which it came."""
        process.frozen = False
        parked, process.parked = process.parked, []
        self._ready.extend(parked)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop of this thread for a while."""
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def run(self, until_us: int) -> None:
        """Let time pass."""
        self._run(until_us)

    def call_now(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of the world to its end, in no time; raise what it raises."""
        task = self._world.copy().run(self.create_task, coro)
        self._drain()
        task.result()

    def close(self) -> None:
        """End every task, those of the dead as well, so that none is left for the garbage collector to wonder about."""
        for process in self._processes:
            process.dead = False
            self.thaw(process)
        self._timers.clear()
        for _ in range(20):
            for task in self._tasks:
                task.cancel()
            self._drain()

    # -- inside

    def _at(self, when_us: int, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> Any:
        self._turn += 1
        handle = _Handle(callback, arguments, context, max(when_us, self.now_us))
        heapq.heappush(self._timers, (handle.when_us, self._turn, handle))
        return handle

    def _run(self, until_us: int) -> None:
        timers, ready = self._timers, self._ready
        while True:
            self._drain()
            if not timers or timers[0][0] > until_us:
                self.now_us = until_us
                return
            self.now_us = timers[0][0]
            while timers and timers[0][0] <= self.now_us:
                ready.append(heapq.heappop(timers)[2])

    def _drain(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            process = handle.process
            if process is not None and (process.frozen or process.dead):
                process.parked.append(handle)
            elif handle.callback is not None:
                # a context can be entered once at a time, and each callback ends before the next begins
                handle.context.run(handle.callback, *handle.arguments)


async def pass_time(seconds: float) -> None:
    """Let virtual time pass for the process that calls."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, lambda: None if over.done() else over.set_result(None))
    try:
        await over
    finally:
        timer.cancel()


class SkewedClock:
    """A domain.ports.Clock of one machine: off by hours, and as fast as its crystal happens to be."""

    def __init__(self, loop: SimLoop, offset_us: int, rate_ppm: int, wall_us: int) -> None:
        self._loop, self.offset_us, self.rate_ppm, self._wall_us = loop, offset_us, rate_ppm, wall_us

    def monotonic_us(self) -> int:
        return self.offset_us + self._loop.now_us * self.rate_ppm // 1_000_000

    def wall_us(self) -> int:
        return self._wall_us + self._loop.now_us * self.rate_ppm // 1_000_000

    def until(self, due_us: int) -> int:
        """Return how long the true time until `due_us` of this clock is."""
        true_us = -(-(due_us - self.offset_us) * 1_000_000 // self.rate_ppm)
        return max(0, true_us - self._loop.now_us)
