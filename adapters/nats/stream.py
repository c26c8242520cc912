"""A JetStream stream as a domain.ports.Stream."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from adapters.headers import encode_headers
from adapters.nats.api import read_ack, read_bounds, read_message
from adapters.nats.connection import ANSWER_S, Bus
from adapters.nats.reader import Reader
from domain.ports import Bounds, Stored, StoredMessage


class NatsStream:
    """One stream of the bus. Nodes and gateways may publish; reading is for the roles of account CORE."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.name = name
        self._bus = bus

    def publish_soon(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Stored]:
        """Send a publish now, in the order of the calls, and return its answer to come; errors are as of `publish`."""
        block = encode_headers(headers, message_id=message_id, expected_last=expected_last)
        return cast("asyncio.Future[Stored]", self._bus.call(subject, body, block, read_ack, publish=True))

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Store `body` at the end (domain.ports.Stream.publish); waits a little for a connection if there is none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._bus.wait_connected()
        return await self.publish_soon(
            subject, body, message_id=message_id, expected_last=expected_last, headers=headers
        )

    async def last(self) -> StoredMessage | None:
        """Return the newest message, from the leader; None if the stream is empty."""
        return await self._get({"last_by_subj": ">"})

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, from the leader; None if it is not there."""
        return await self._get({"seq": seq}) if seq > 0 else None

    async def bounds(self) -> Bounds:
        """Return what the stream holds now."""
        answer = await self._bus.ask(f"$JS.API.STREAM.INFO.{self.name}", b"", read_bounds)
        assert isinstance(answer, Bounds)
        return answer

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches in order, without gaps (domain.ports.Stream.read)."""
        reader = Reader(self._bus, self, after, until)
        try:
            while until is None or reader.given < until:
                yield await reader.batch()
        finally:
            reader.close()

    async def _get(self, which: dict[str, object]) -> StoredMessage | None:
        # never a direct get: any replica answers that, and it may lag behind what is acknowledged
        answer = await self._bus.ask(f"$JS.API.STREAM.MSG.GET.{self.name}", msgspec.json.encode(which), read_message)
        assert answer is None or isinstance(answer, StoredMessage)
        return answer
