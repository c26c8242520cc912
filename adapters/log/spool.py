"""A queue of facts on disk: what was stated and is not acknowledged yet survives kill -9 (not a power cut: it is unsynced).

Append-only segments, named by the index of their first fact; a segment goes when all its facts are acknowledged. A mark of
what is acknowledged stands among the facts, so that the next process does not send again what was stored already.
"""

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from domain.ids import Incarnation

BYTES_MAX: Final = 256 * 1024 * 1024
URGENT_BYTES: Final = 1024 * 1024
"""Room beyond the bound for facts without which the others mean nothing (registered, summarised, snapshot)."""
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_SUFFIX: Final = ".spool"
_FACT: Final = struct.Struct("<cII")
"""Kind F, length and CRC-32 of the payload that follows."""
_MARK: Final = struct.Struct("<cQQI")
"""Kind A, facts acknowledged (index of the first that is not), stream sequence of the last of them, CRC-32 of both."""

Outcome = Literal["kept", "full", "broken"]


class SpooledFact(msgspec.Struct, frozen=True, array_like=True):
    """A fact as it is sent: encoded and authenticated."""

    incarnation: Incarnation
    pseq: int
    subject: str
    body: bytes


class _Segment:
    __slots__ = ("end", "first", "path", "size")

    def __init__(self, path: Path, first: int) -> None:
        self.path, self.first, self.end, self.size = path, first, first, 0


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SpooledFact)


class Spool:
    """First in, first out: `append` at the end, `take` from where was taken last, `acknowledge` from the beginning.

    Facts of earlier processes that were not acknowledged are the first to be taken.

    Args:
        directory: of this producer alone; made if it is missing.
        bytes_max: room for facts; beyond it `append` answers "full".
    """

    def __init__(self, directory: Path, *, bytes_max: int = BYTES_MAX) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.bytes_max = bytes_max
        self.acknowledged_seq = 0
        """Stream sequence of the newest fact acknowledged; 0 if unknown."""
        self._directory = directory
        self._segment_bytes = min(_SEGMENT_BYTES, bytes_max // 8)
        self._acked = 0
        self._segments = deque(self._scan())
        self._used = sum(segment.size for segment in self._segments)
        if self._segments:
            self._acked = max(self._acked, self._segments[0].first)
        self._taken = self._acked
        self._end = self._segments[-1].end if self._segments else self._acked
        self._cursor = (0, 0)
        self._file = -1
        self._open_segment()
        self._forget()
        self._find_cursor()

    @property
    def waiting(self) -> int:
        """Facts that were not taken yet."""
        return self._end - self._taken

    @property
    def used_bytes(self) -> int:
        """Bytes on disk."""
        return self._used

    def append(self, fact: SpooledFact, *, urgent: bool = False) -> Outcome:
        """Keep `fact` and say how that went: kept, full (the bound is reached), or broken (the disk refuses)."""
        payload = _ENCODER.encode(fact)
        record = _FACT.pack(b"F", len(payload), zlib.crc32(payload)) + payload
        if self._used + len(record) > self.bytes_max + (URGENT_BYTES if urgent else 0):
            return "full"
        if self._segments[-1].size > self._segment_bytes:
            try:
                self._open_segment()
            except OSError:
                return "broken"
        if not self._write(record):
            return "broken"
        self._end += 1
        self._segments[-1].end = self._end
        return "kept"

    def take(self, limit: int) -> list[SpooledFact]:
        """Return the next facts that were not taken yet, at most `limit`."""
        taken: list[SpooledFact] = []
        while len(taken) < limit and self._taken < self._end:
            first, offset = self._cursor
            segment = next(each for each in self._segments if each.first == first)
            before = self._cursor
            for fact, end in _facts(segment.path, offset):
                taken.append(fact)
                self._taken += 1
                self._cursor = (first, end)
                if len(taken) == limit:
                    break
            if self._taken >= segment.end and segment is not self._segments[-1]:
                self._cursor = (self._segments[self._segments.index(segment) + 1].first, 0)
            if self._cursor == before:
                raise OSError(f"spool {segment.path}: a fact must be at byte {offset}, it is not")
        return taken

    def take_last(self) -> None:
        """Count the fact appended last as taken: its appender sends it from memory. All before it must be taken already."""
        assert self._taken == self._end - 1, "facts are taken in order"
        self._taken = self._end
        self._cursor = (self._segments[-1].first, self._segments[-1].size)

    def acknowledge(self, count: int, seq: int) -> None:
        """Forget the first `count` facts that were taken and not acknowledged; the last of them is stored at `seq`."""
        self._acked += count
        assert self._acked <= self._taken, "only what was taken can be acknowledged"
        self.acknowledged_seq = seq
        if self._acked == self._end and self._segments[-1].size > self._segment_bytes // 4:
            try:
                self._open_segment()
            except OSError:
                return
        self._write(_mark(self._acked, seq))
        self._forget()

    def close(self) -> None:
        """Close the files; what is not acknowledged stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, record: bytes) -> bool:
        segment = self._segments[-1]
        try:
            written = os.write(self._file, record)
            if written < len(record):  # no space left: nothing is better than a part
                os.ftruncate(self._file, segment.size)
                return False
        except OSError:
            return False
        segment.size += written
        self._used += written
        return True

    def _open_segment(self) -> None:
        path = self._directory / f"{self._end:016d}{_SUFFIX}"
        if self._segments and self._segments[-1].path == path:  # the last process stated nothing in it
            self._used -= self._segments.pop().size
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        self.close()
        self._file = file
        at_end = self._taken == self._end
        self._segments.append(_Segment(path, self._end))
        if self._acked:
            self._write(_mark(self._acked, self.acknowledged_seq))
        if at_end:
            self._cursor = (self._end, self._segments[-1].size)

    def _forget(self) -> None:
        while len(self._segments) > 1 and self._segments[0].end <= self._acked:
            segment = self._segments.popleft()
            self._used -= segment.size
            segment.path.unlink(missing_ok=True)
            if self._cursor[0] == segment.first:
                self._cursor = (self._segments[0].first, 0)

    def _find_cursor(self) -> None:
        """Point at the first fact that is not acknowledged."""
        for segment in self._segments:
            if segment.end > self._taken or segment is self._segments[-1]:
                offset, index = 0, segment.first
                for _, end in _facts(segment.path, 0):
                    if index >= self._taken:
                        break
                    offset, index = end, index + 1
                self._cursor = (segment.first, offset)
                return

    def _scan(self) -> Iterator[_Segment]:
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            segment = _Segment(path, int(path.name.removesuffix(_SUFFIX)))
            for record, _ in _records(path, 0):
                if isinstance(record, bytes):
                    segment.end += 1
                else:
                    self._acked, self.acknowledged_seq = record
            segment.size = path.stat().st_size
            yield segment


def _mark(acked: int, seq: int) -> bytes:
    return _MARK.pack(b"A", acked, seq, zlib.crc32(struct.pack("<QQ", acked, seq)))


def _facts(path: Path, offset: int) -> Iterator[tuple[SpooledFact, int]]:
    """Yield each fact of a segment from `offset` on, with the offset after it."""
    for record, end in _records(path, offset):
        if isinstance(record, bytes):
            yield _DECODER.decode(record), end


def _records(path: Path, offset: int) -> Iterator[tuple[bytes | tuple[int, int], int]]:
    """Yield each payload, or mark (acknowledged, sequence), with the offset after it, up to the first that is not whole."""
    with path.open("rb") as file:
        file.seek(offset)
        while kind := file.read(1):
            if kind == b"F":
                head = kind + file.read(_FACT.size - 1)
                if len(head) < _FACT.size:
                    return
                _, length, crc = _FACT.unpack(head)
                payload = file.read(length)
                if len(payload) < length or zlib.crc32(payload) != crc:
                    return
                yield payload, file.tell()
            else:
                head = kind + file.read(_MARK.size - 1)
                if len(head) < _MARK.size or head != _mark(*_MARK.unpack(head)[1:3]):
                    return
                yield _MARK.unpack(head)[1:3], file.tell()
