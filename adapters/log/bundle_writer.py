"""Writes a copy of history: whole or not at all, and the same bytes for the same history."""

import os
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import Signer
from adapters.log.bundle_format import (
    CHECKPOINTS,
    FORMAT,
    MANIFEST,
    STREAMS,
    Header,
    Held,
    Member,
    covered,
    digest_of,
    line_of,
)
from adapters.log.checkpoints import Kept
from adapters.log.history import Streams
from adapters.log.renewal import end_of_hole
from domain.errors import HistoryGapError
from domain.events import codec
from domain.ports import StoredMessage, Stream

_PIECE: Final = 5000
"""Messages of one member, at most ..."""
_PIECE_BYTES: Final = 8 * 1024 * 1024
"""... and their bytes."""
_STAMP: Final = (1980, 1, 1, 0, 0, 0)
"""Of every member: the same history gives the same file."""


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a copy besides the streams."""

    software: str = ""
    states: Sequence[tuple[int, bytes]] = ()
    """(version, state bytes) for which commits vouch: where an audit can begin."""
    checkpoints: Sequence[Kept] = ()
    signer: Signer | None = None
    operator: str = ""
    """nkey public key of the operator; empty: it is not known."""


NOTHING: Final = Extra()


async def export(
    streams: Streams,
    cluster: str,
    path: Path,
    *,
    extra: Extra = NOTHING,
    progress: Callable[[int, int], None] | None = None,
) -> Header:
    """Write what the three streams hold now to `path`, whole or not at all; return the manifest."""
    draft = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
            header = await _pack(packed, streams, cluster, extra, progress)
        sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return header


def sync(path: Path) -> None:
    """Have a file's content on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


async def _pack(
    packed: zipfile.ZipFile,
    streams: Streams,
    cluster: str,
    extra: Extra,
    progress: Callable[[int, int], None] | None,
) -> Header:
    """Write everything, the manifest last."""
    held = await _ends(streams)
    total, done, members = sum(each.count for each in held.values()), 0, list[Member]()
    for stream in (streams.control, streams.events, streams.ledger):
        missing: list[tuple[int, int]] = []
        async for piece in _pieces(stream, held[stream.name], missing):
            members.append(_write_piece(packed, stream.name, piece))
            done += len(piece)
            if progress is not None:
                progress(done, total)
        held[stream.name] = _without(held[stream.name], missing)
    members += _write_extra(packed, extra)
    header = Header(
        format=FORMAT,
        cluster=cluster,
        software=extra.software,
        streams=held,
        members=tuple(members),
        operator=extra.operator or msgspec.UNSET,
    )
    if extra.signer is not None:
        header = msgspec.structs.replace(header, public=extra.signer.public)
        header = msgspec.structs.replace(header, signature=extra.signer.sign(covered(header)))
    _write(packed, MANIFEST, msgspec.json.format(msgspec.json.encode(header), indent=1))
    return header


async def _ends(streams: Streams) -> dict[str, Held]:
    """Return what is copied; the ledger's end is read first: what a live master folds later is beyond all of it."""
    held: dict[str, Held] = {}
    for stream in (streams.ledger, streams.events, streams.control):
        end = await stream.bounds()
        first = max(1, end.first)
        held[stream.name] = Held(first=first, last=end.last, count=max(0, end.last - first + 1))
    return {name: held[name] for name in STREAMS}


def _without(held: Held, missing: Sequence[tuple[int, int]]) -> Held:
    gone = sum(last - first + 1 for first, last in missing)
    return msgspec.structs.replace(held, count=held.count - gone, missing=tuple(missing))


async def _pieces(
    stream: Stream, held: Held, missing: list[tuple[int, int]]
) -> AsyncGenerator[list[StoredMessage], None]:
    """Yield what is there, a new piece after each hole; holes are added to `missing`."""
    after = held.first - 1
    while after < held.last:
        piece: list[StoredMessage] = []
        size_bytes = 0
        try:
            async for batch in stream.read(after=after, until=held.last):
                for message in batch:
                    piece.append(message)
                    after = message.seq
                    size_bytes += len(message.subject) + len(message.headers) + len(message.body)
                    if len(piece) == _PIECE or size_bytes >= _PIECE_BYTES:
                        yield piece
                        piece, size_bytes = [], 0
        except HistoryGapError:
            following = await end_of_hole(stream, after + 1, held.last)
            missing.append((after + 1, following - 1))
            hole = following - 1
        else:
            hole = held.last
        if piece:
            yield piece
        after = hole


def _write_piece(packed: zipfile.ZipFile, stream: str, piece: Sequence[StoredMessage]) -> Member:
    content = b"".join(msgspec.json.encode(line_of(stream, message)) + b"\n" for message in piece)
    name = f"{stream}/{piece[0].seq:012d}.jsonl"
    member = _write(packed, name, content)
    return msgspec.structs.replace(member, stream=stream, first=piece[0].seq, count=len(piece))


def _write_extra(packed: zipfile.ZipFile, extra: Extra) -> Iterator[Member]:
    for version, content in extra.states:
        member = _write(packed, f"states/{version:012d}.msgpack", content)
        yield msgspec.structs.replace(member, stream="states", first=version, count=1)
    if extra.checkpoints:
        lines = b"".join(codec.encode(kept.checkpoint) + b"\n" for kept in extra.checkpoints)
        member = _write(packed, CHECKPOINTS, lines)
        yield msgspec.structs.replace(member, stream="checkpoints", count=len(extra.checkpoints))


def _write(packed: zipfile.ZipFile, name: str, content: bytes) -> Member:
    info = zipfile.ZipInfo(name, _STAMP)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    packed.writestr(info, content)
    return Member(name=name, digest=digest_of(content), size=len(content))
