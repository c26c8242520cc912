"""What a model's machines tell the handler of one request, own or borrowed, and how they interrupt it."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from domain.actions import Action, Dispatch, Refuse
from domain.ids import LinkId, RequestId


class Ticket:
    """One request's mailbox. Its handler takes actions one by one; whatever comes while it works interrupts the work."""

    def __init__(self, request: RequestId, *, arrived_us: int = 0) -> None:
        """Begin without an action. `arrived_us`: when an own request came, on the node's clock."""
        self.request, self.arrived_us = request, arrived_us
        self.kept_for: LinkId | None = None
        """Of an own request: the link for whose helper it is kept out of the engine."""
        self.was_kept = False
        """Of an own request: it has been kept for a helper at some time."""
        self.service_us = 0
        """Of a borrowed request: how long it was in service, once it has left the engine."""
        self.load_us = 0
        """Of a borrowed request: what loading the model for it took, once it has begun."""
        self._actions: deque[Action] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._work: asyncio.Timeout | None = None

    def push(self, action: Action) -> None:
        """Give `action` to the handler."""
        self._actions.append(action)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if self._work is not None:
            self._interrupt(self._work)

    async def next(self) -> Action:
        """Return the next action, in order."""
        while not self._actions:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        return self._actions.popleft()

    @property
    def is_told(self) -> bool:
        """Tell whether an action is there already."""
        return bool(self._actions)

    def take(self) -> Action:
        """Return the action that is there already."""
        return self._actions.popleft()

    @property
    def is_dispatched(self) -> bool:
        """Tell whether the request is to be given to the engine, and its handler has not taken that word yet."""
        return any(isinstance(action, Dispatch) for action in self._actions)

    @property
    def is_refused(self) -> bool:
        """Tell whether a refusal waits to be taken: of a borrowed request, that the node ends under it."""
        return any(isinstance(action, Refuse) for action in self._actions)

    def working(self) -> "Work":
        """Return a context for work that the next action interrupts; it says afterwards whether one did."""
        return Work(self)

    def _interrupt(self, work: asyncio.Timeout) -> None:
        if not work.expired():
            work.reschedule(asyncio.get_running_loop().time())


class Work:
    """`async with ticket.working() as work: ...`; then `work.interrupted` tells whether the work was broken off."""

    def __init__(self, ticket: Ticket) -> None:
        """Prepare; nothing runs yet."""
        self._ticket, self._timeout = ticket, asyncio.timeout(None)
        self.interrupted = False

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        ticket = self._ticket
        ticket._work = self._timeout  # noqa: SLF001  # the two are one thing
        if ticket._actions:  # noqa: SLF001
            ticket._interrupt(self._timeout)  # noqa: SLF001
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._ticket._work = None  # noqa: SLF001
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            self.interrupted = True
            return True
        return False
