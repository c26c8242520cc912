"""Snapshots of the folded state on LW_SNAP: opaque bytes in parts, told apart by version and digest."""

import hashlib
from typing import Final

import msgspec

from adapters.headers import decode_headers, is_number
from domain.errors import PublishUnknownError
from domain.ports import StoredMessage, Stream
from domain.subjects import snapshot_subject

PART_BYTES_MAX: Final = 256 * 1024
_PART: Final = "Lw-Snapshot"
"""Header of every part: `<version> <digest> <part from 0> <parts>`."""
_TRIES: Final = 5


class _Part(msgspec.Struct, frozen=True):
    version: int
    digest: str
    number: int
    parts: int


def content_digest(content: bytes) -> str:
    """Return the digest that names a snapshot's content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Snapshots:
    """Saves snapshots, and finds the newest that is whole."""

    def __init__(self, stream: Stream, *, cluster: str) -> None:
        self._stream, self._cluster = stream, cluster

    async def save(self, version: int, content: bytes) -> str:
        """Store `content` as the state after commit `version`; return its digest. Saving it twice does no harm.

        Raises:
            PublishUnknownError: the bus did not answer several times; the snapshot may lack parts, and is then not found.
            PublishRefusedError: the stream does not take it.
        """
        digest = content_digest(content)
        parts = [content[at : at + PART_BYTES_MAX] for at in range(0, len(content), PART_BYTES_MAX)] or [b""]
        for number, part in enumerate(parts):
            await self._write_part(_Part(version, digest, number, len(parts)), part)
        return digest

    async def newest(self, *, not_after: int | None = None) -> tuple[int, bytes] | None:
        """Return (version, content) of the newest whole snapshot (of a version up to `not_after`); None if there is none.

        The content is what was written; whether it is the state that the ledger knows is for the caller to compare.
        """
        bounds = await self._stream.bounds()
        found: dict[tuple[int, str], dict[int, bytes]] = {}
        for seq in range(bounds.last, bounds.first - 1, -1):
            message = await self._stream.get(seq)
            part = _part_of(message) if message is not None else None
            if message is None or part is None or (not_after is not None and part.version > not_after):
                continue
            bodies = found.setdefault((part.version, part.digest), {})
            bodies[part.number] = message.body
            if len(bodies) == part.parts:
                content = b"".join(bodies[number] for number in sorted(bodies))
                if content_digest(content) == part.digest:
                    return part.version, content
        return None

    async def _write_part(self, part: _Part, body: bytes) -> None:
        name = f"{part.version} {part.digest} {part.number} {part.parts}"
        for attempt in range(_TRIES):
            try:
                await self._stream.publish(
                    snapshot_subject(self._cluster, part.version, part.number),
                    body,
                    message_id=name.replace(" ", "-"),
                    headers={_PART: name},
                )
            except PublishUnknownError:
                if attempt == _TRIES - 1:
                    raise
            else:
                return


def _part_of(message: StoredMessage) -> _Part | None:
    words = decode_headers(message.headers).get(_PART, "").split(" ")
    if len(words) != 4 or not all(is_number(word) for word in (words[0], words[2], words[3])):
        return None
    return _Part(int(words[0]), words[1], int(words[2]), int(words[3]))
