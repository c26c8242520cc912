"""Gathers what a stream yields into batches worth an insert: enough of it, or whatever came within a short time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec

from domain.ports import StoredMessage


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a batch is full. A single-row insert costs about as much as one of hundreds."""

    messages: int = 5000
    bytes: int = 8 * 1024 * 1024
    wait_s: float = 0.3
    """How long the first message of a batch waits for others."""


async def batches(
    source: AsyncIterator[Sequence[StoredMessage]], limits: BatchLimits
) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield the messages of `source` in order, and close it at the end; no message is held back when it ends or fails.

    While a batch is with the caller, at most one more piece of the source is taken.
    """
    loop = asyncio.get_running_loop()
    piece: asyncio.Future[Sequence[StoredMessage]] | None = None
    try:
        while True:
            batch: list[StoredMessage] = []
            size, due = 0, 0.0
            while len(batch) < limits.messages and size < limits.bytes:
                piece = piece or asyncio.ensure_future(anext(source))
                await asyncio.wait({piece}, timeout=max(0.0, due - loop.time()) if batch else None)
                if not piece.done():
                    break
                if batch and piece.exception() is not None:
                    break  # raised again when it is asked for the next time
                came, piece = _came(piece), None
                if came is None:
                    return
                due = due or loop.time() + limits.wait_s
                batch += came
                size += sum(len(message.body) + len(message.headers) for message in came)
            yield batch
    finally:
        if piece is not None:
            await _give_up(piece)
        if isinstance(source, AsyncGenerator):
            await source.aclose()


def _came(piece: "asyncio.Future[Sequence[StoredMessage]]") -> Sequence[StoredMessage] | None:
    try:
        return piece.result()
    except StopAsyncIteration:
        return None


async def _give_up(piece: "asyncio.Future[Sequence[StoredMessage]]") -> None:
    piece.cancel()
    await asyncio.wait({piece})
    if not piece.cancelled():
        piece.exception()  # it was asked for: nobody else will
