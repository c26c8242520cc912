"""A stream's messages in order, each once, through an ephemeral pull consumer, over lost connections and lost consumers."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from eventsourcing.persistence import OperationalError, ProgrammingError

from adapters.nats.eventsourcing.link import Incoming, NatsLink

_PULL: Final = 200
"""Messages asked for at once: 200 of the largest commits are 50 MB."""
_PULL_S, _HEARTBEAT_S, _SILENCE_S = 10, 1, 3
_IDLE_S: Final = 30
"""The server forgets a consumer that nobody asks for so long."""
_RETRY_S: Final = 0.1
_SECOND_NS: Final = 1_000_000_000
_STREAM_NOT_FOUND: Final = 10059


class Entry(msgspec.Struct, frozen=True):
    """One message as the stream holds it."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    body: bytes


class _Refusal(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class _Made(msgspec.Struct, frozen=True):
    error: _Refusal | None = None


class _InterruptedError(Exception):
    """The consumer gives no more, or left something out: begin again with another one, where this one ended."""


class Feed:
    """The messages of one subject (wildcards allowed) of one stream, from one sequence on."""

    def __init__(self, link: NatsLink, stream: str, subject: str, start: int) -> None:
        self._link, self._stream, self._subject, self._next = link, stream, subject, start
        self._consumer = ""
        self._delivered = 0
        self._credit = 0
        """Messages that the consumer may still send for the last pull."""
        self._incoming: asyncio.Queue[Incoming] = asyncio.Queue()
        self.inbox = ""

    def take(self, message: Incoming) -> None:
        """Keep what came to the feed's inbox."""
        self._incoming.put_nowait(message)

    async def pull(self) -> Sequence[Entry]:
        """Return what comes next, at least one message; wait for it as long as it takes.

        Raises:
            ProgrammingError: there is no such stream.
        """
        while True:
            try:
                if entries := await self._some():
                    return entries
            except (_InterruptedError, OperationalError):
                # The server is away, or a new consumer's leader does not listen yet.
                self._consumer = ""
                await asyncio.sleep(_RETRY_S)

    async def _some(self) -> Sequence[Entry]:
        if not self._consumer:
            self._consumer, self._delivered, self._credit = await self._make_consumer(), 0, 0
        if self._credit == 0:
            await self._ask_for_more()
        try:
            async with asyncio.timeout(_SILENCE_S):
                messages = [await self._incoming.get()]
        except TimeoutError:
            raise _InterruptedError from None
        while not self._incoming.empty():
            messages.append(self._incoming.get_nowait())
        entries: list[Entry] = []
        for message in messages:
            try:
                entries += self._admitted(message)
            except _InterruptedError:
                self._consumer = ""
                break
        return entries

    def _admitted(self, message: Incoming) -> Sequence[Entry]:
        """Return the message as an entry, if it is one of the present consumer's."""
        status = message.headers.get("Status")
        if status is not None:
            if message.subject == self._reply:
                self._heed(status, message.headers)
            return ()
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<stamp>.<pending>
        consumer, _, seq, delivered, _, _ = message.reply.split(".")[-6:]
        if consumer != self._consumer:
            return ()
        if int(delivered) != self._delivered + 1:
            raise _InterruptedError
        self._delivered += 1
        self._credit -= 1
        self._next = int(seq) + 1
        return (Entry(int(seq), message.subject, message.headers, message.body),)

    def _heed(self, status: str, headers: Mapping[str, str]) -> None:
        match status:
            case "100":  # a heartbeat; it says how many messages were sent, so a lost last one is noticed too
                if int(headers.get("Nats-Last-Consumer", "0")) > self._delivered:
                    raise _InterruptedError
            case "404" | "408":  # the pull is over, the consumer stays
                self._credit = 0
            case _:  # the consumer or its leader is gone
                raise _InterruptedError

    @property
    def _reply(self) -> str:
        return f"{self.inbox}.{self._consumer}"

    async def _ask_for_more(self) -> None:
        wanted = {"batch": _PULL, "expires": _PULL_S * _SECOND_NS, "idle_heartbeat": _HEARTBEAT_S * _SECOND_NS}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await self._link.publish(subject, msgspec.json.encode(wanted), reply=self._reply)
        self._credit = _PULL

    async def _make_consumer(self) -> str:
        name = self._link.unique()
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._next,
            "filter_subject": self._subject,
            "inactive_threshold": _IDLE_S * _SECOND_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        answer = await self._link.request(
            f"$JS.API.CONSUMER.CREATE.{self._stream}.{name}.{self._subject}",
            msgspec.json.encode({"stream_name": self._stream, "config": config}),
        )
        error = msgspec.json.decode(answer.body, type=_Made).error
        if error is None:
            return name
        if error.err_code == _STREAM_NOT_FOUND:
            raise ProgrammingError(f"stream {self._stream}: {error.description}; is it made?")
        raise OperationalError(f"{error.err_code}: {error.description}")

    async def drop_consumer(self) -> None:
        """Tell the server that the consumer is not needed any more; if it does not hear, it finds out by itself."""
        if self._consumer:
            with contextlib.suppress(OperationalError):
                await self._link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")
