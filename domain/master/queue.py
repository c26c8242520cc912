"""An owner queue as its node's facts tell it: what is held, inside the engine, lent."""

import msgspec

from domain.ids import RequestId


class EngineJob(msgspec.Struct, gc=False):
    """A request inside the owner's own engine."""

    work: int
    since_us: int


class HeldJob(msgspec.Struct, gc=False):
    """A request held at its owner."""

    work: int
    lendable: bool
    tokens: int
    """0: nobody knows."""
    vision: bool = False
    """It holds an image."""


class Queue(msgspec.Struct):
    """One owner queue, as its node's facts tell it."""

    held: dict[RequestId, HeldJob] = {}
    held_work: int = 0
    held_tokens: int = 0
    lendable: int = 0
    seeing: int = 0
    """How many of the lendable hold an image."""
    sized: int = 0
    """How many of the held have a known size; `held_tokens` is theirs."""
    unsized: int = 0
    """How many of the lendable have none."""
    unsized_seeing: int = 0
    """How many of these hold an image."""
    lendable_us: int = 0
    """Domain time since which something was lendable without a break; 0 while nothing is."""
    engine: dict[RequestId, EngineJob] = {}
    lent: dict[RequestId, str] = {}
    """By request what it is out over (domain.master.slots.use_key); empty where that is not known."""
    freed_us: int = 0
    """Domain time of the last departure from the engine: the running job began then or at its own start."""
    arrival_us: int = 0
    """Domain time of the newest arrival of the node's own work; 0 if there was none."""
    gaps_us: list[int] = []
    """The last 16 gaps between arrivals."""

    def hold(self, request: RequestId, job: HeldJob, now_us: int) -> None:
        """Put a request, which is not there, to what is held."""
        if job.lendable and not self.lendable:
            self.lendable_us = max(1, now_us)
        self.held[request] = job
        self.held_work += job.work
        self.held_tokens += job.tokens
        self.lendable += job.lendable
        self.seeing += job.lendable and job.vision
        self.sized += job.tokens > 0
        self.unsized += job.lendable and not job.tokens
        self.unsized_seeing += job.lendable and job.vision and not job.tokens

    def restate(self, request: RequestId, job: HeldJob, now_us: int) -> bool:
        """Take other figures of a request that is held; tell whether any of them is another one."""
        if self.held[request] == job:
            return False
        since_us = self.lendable_us
        self.release(request)
        self.hold(request, job, now_us)
        if since_us and self.lendable:  # it was not gone in between
            self.lendable_us = since_us
        return True

    def release(self, request: RequestId) -> HeldJob | None:
        """Take a request out of what is held; None if it was not there."""
        job = self.held.pop(request, None)
        if job is not None:
            self.held_work -= job.work
            self.held_tokens -= job.tokens
            self.lendable -= job.lendable
            self.seeing -= job.lendable and job.vision
            self.sized -= job.tokens > 0
            self.unsized -= job.lendable and not job.tokens
            self.unsized_seeing -= job.lendable and job.vision and not job.tokens
            if not self.lendable:
                self.lendable_us = 0
        return job
