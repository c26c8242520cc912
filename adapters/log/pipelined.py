"""A stream that takes publishes in the order of the calls, without waiting for each answer."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from domain.ports import Stored, Stream


class PipelinedStream(Stream, Protocol):
    """A Stream (domain.ports) with `publish_soon`; it speaks of asyncio, so it cannot stand in the domain."""

    def publish_soon(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "asyncio.Future[Stored]":
        """Start a publish now and return its answer to come; errors are as of `publish`."""
        ...
