"""How long a loop does nothing else, and clients that are no work of that loop."""

import asyncio
from collections.abc import Coroutine, Iterable
from time import thread_time
from typing import Any

_LOOK_S = 0.005


class Watch:
    """The most that the running loop works on others before it comes back to one who waits for its turn.

    In seconds of this thread's processor time: what else runs on the machine is no stall.
    """

    def __init__(self) -> None:
        """Begin to look."""
        self._longest_s, self._looked_s = 0.0, thread_time()
        self._look()

    def _look(self) -> None:
        now_s = thread_time()
        self._longest_s, self._looked_s = max(self._longest_s, now_s - self._looked_s), now_s
        self._next = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def end(self) -> float:
        """Stop looking, and return the longest stall."""
        self._next.cancel()
        return self._longest_s


async def elsewhere(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Have all of `work` done at once, in a loop of another thread."""

    async def all_of_it() -> None:
        await asyncio.gather(*work)

    await asyncio.to_thread(asyncio.run, all_of_it())
