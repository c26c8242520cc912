"""Engines with a journal of their own: what they were given, when it began and ended, and how. The judges read only that."""

from collections.abc import Callable

import msgspec

from domain.ids import ModelId, RequestId
from tests.simulation.campaign.loop import SimLoop

CANCEL_US = 40_000
LOAD_FAILURE_US = 300_000
FAILED_LOAD_US, DEAD_US = 34_000_000, 3_000_000


class Entry(msgspec.Struct, kw_only=True):
    """One execution of one request by one engine."""

    request: RequestId
    node: str
    model: ModelId
    borrowed: bool
    given_us: int
    begun_us: int = -1
    """-1: its service never began."""
    ended_us: int = -1
    """-1: it is still inside."""
    how: str = ""
    """done, cancelled or died."""
    connection: int = 0
    """The lend's connection over which it came; 0 for an own request."""


class Journal:
    """What every engine of the cluster did."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.by_request: dict[RequestId, list[Entry]] = {}
        self.loads: list[tuple[int, int, str, ModelId, str]] = []
        """(begun, ended, node, model, cause) of each load that succeeded."""

    def add(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self.by_request.setdefault(entry.request, []).append(entry)
        return entry


class Engine:
    """One engine process: serves `slots` requests at a time in the order in which they were given, of one loaded model."""

    def __init__(self, loop: SimLoop, node: str, journal: Journal, *, models: tuple[ModelId, ...], slots: int) -> None:
        self._loop, self.node, self._journal = loop, node, journal
        self.models, self.slots = models, slots
        self.up = True
        self.resident: ModelId | None = models[0]
        self.loading: ModelId | None = None
        self.life = 0
        self.inside: dict[RequestId, Entry] = {}
        self._takes_us: dict[RequestId, int] = {}
        self.done: Callable[[Entry, bool], None] = lambda _entry, _whole: None
        """Called when a request has left; `whole`: with its answer."""
        self.began: Callable[[Entry], None] = lambda _entry: None
        self.fails_loads = 0
        self.waits_until_us = 0
        """A model that failed is not loaded again before; the longest wait of the product, on a slow clock."""
        self.violated: Callable[[str], None] = lambda _what: None

    def take(self, entry: Entry, takes_us: int) -> bool:
        """Take a request; False if nobody listens."""
        if not self.up:
            return False
        if entry.model != self.resident or self.loading is not None:
            self.violated(
                f"ROOM {self.node}: {entry.request} of {entry.model} given while {self.resident} is in, "
                f"{self.loading} loading"
            )
        if any(other.model != entry.model for other in self.inside.values()):
            self.violated(f"ROOM {self.node}: two models inside one engine, {entry.model} came second")
        self._journal.add(entry)
        self.inside[entry.request] = entry
        self._takes_us[entry.request] = takes_us
        self._begin()
        return True

    def _begin(self) -> None:
        serving = sum(entry.begun_us >= 0 for entry in self.inside.values())
        for entry in self.inside.values():
            if serving >= self.slots:
                return
            if entry.begun_us < 0:
                entry.begun_us = self._loop.now_us
                serving += 1
                self._loop.after(self._takes_us[entry.request], self._finish, entry, self.life)
                self.began(entry)

    def _finish(self, entry: Entry, life: int) -> None:
        if self.life == life and self.inside.get(entry.request) is entry:
            self._leave(entry, "done")

    def _leave(self, entry: Entry, how: str) -> None:
        del self.inside[entry.request]
        entry.ended_us, entry.how = self._loop.now_us, how
        self._begin()
        self.done(entry, how == "done")

    def cancel(self, request: RequestId) -> None:
        """The connection of a request is closed: the engine notices a little later."""
        entry = self.inside.get(request)
        if entry is not None:
            self._loop.after(CANCEL_US, self._cancelled, entry, self.life)

    def _cancelled(self, entry: Entry, life: int) -> None:
        if self.life == life and self.inside.get(entry.request) is entry:
            self._leave(entry, "cancelled")

    def crash(self) -> None:
        """The process dies with all that is inside."""
        self.up, self.life = False, self.life + 1
        self.waits_until_us = max(self.waits_until_us, self._loop.now_us + DEAD_US)
        self.resident, self.loading = None, None
        inside, self.inside = self.inside, {}
        for entry in inside.values():
            entry.ended_us, entry.how = self._loop.now_us, "died"
        for entry in inside.values():
            self.done(entry, False)

    def start(self, model: ModelId | None = None) -> None:
        """Begin a new life, with a model inside."""
        self.loading = None
        self.up, self.resident = True, model or self.models[0]

    def load(self, model: ModelId, takes_us: int, cause: str, ended: Callable[[str], None]) -> None:
        """Load a model in place of what is in; `ended` hears why not, or nothing."""
        if self.inside:
            self.violated(f"ROOM {self.node}: {model} loads while {sorted(self.inside)} are inside")
        self.loading, self.resident, self.up = model, None, True
        fails = self.fails_loads > 0
        self.fails_loads -= fails
        begun_us, life = self._loop.now_us, self.life

        def end() -> None:
            if self.life != life:
                ended("engine_died")
                return
            self.loading = None
            if fails:
                self.waits_until_us = self._loop.now_us + FAILED_LOAD_US
                ended("no_memory")
                return
            self.resident = model
            self._journal.loads.append((begun_us, self._loop.now_us, self.node, model, cause))
            ended("")

        self._loop.after(LOAD_FAILURE_US if fails else takes_us, end)
