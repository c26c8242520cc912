"""A copy of history in one file, for an auditor without a bus: write it, read it back, verify it like the streams themselves.

The file has one JSON object a line: a header, then every message of LW_CONTROL, LW_EVENTS and LW_LEDGER with a checksum of its
own, so that a changed byte is named by stream and sequence before any rule is run. Checksums are for finding accidents; what
proves that nobody changed history are the chain of digests and the MACs, which the verification checks as on the live streams.
"""

import base64
import gzip
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import msgspec

from adapters.log.history import Streams
from domain.errors import BadConfigError, HistoryGapError, PublishRefusedError
from domain.ports import Bounds, Stored, StoredMessage, Stream

FORMAT = "leaseway-audit/1"
_BATCH = 1000


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    format: str
    cluster: str
    counts: dict[str, int]


class _Line(msgspec.Struct, frozen=True):
    stream: str
    seq: int
    stamp_ns: int
    subject: str
    headers: str
    body: str
    sum: str


def checksum(stream: str, message: StoredMessage) -> str:
    """Return blake2b-8 over all that a message is, in hex."""
    hasher = hashlib.blake2b(f"{stream}|{message.seq}|{message.stamp_ns}|{message.subject}|".encode(), digest_size=8)
    hasher.update(b"%d|" % len(message.headers) + message.headers + message.body)
    return hasher.hexdigest()


async def export(
    streams: Streams, cluster: str, path: Path, *, progress: Callable[[int, int], None] | None = None
) -> Header:
    """Write what the three streams hold now to `path` (compressed if it ends in .gz), whole or not at all; return its header."""
    ends = {stream.name: await stream.bounds() for stream in (streams.control, streams.events, streams.ledger)}
    header = Header(
        format=FORMAT, cluster=cluster, counts={name: max(0, b.last - b.first + 1) for name, b in ends.items()}
    )
    total, done = sum(header.counts.values()), 0
    draft = path.with_name(path.name + ".part")
    with _open(draft, path, "wb") as file:
        file.write(msgspec.json.encode(header) + b"\n")
        for stream in (streams.control, streams.events, streams.ledger):
            bounds = ends[stream.name]
            if bounds.last < bounds.first:
                continue
            async for batch in stream.read(after=bounds.first - 1, until=bounds.last):
                for message in batch:
                    file.write(msgspec.json.encode(_line(stream.name, message)) + b"\n")
                done += len(batch)
                if progress is not None:
                    progress(done, total)
    draft.replace(path)
    return header


@contextmanager
def _open(path: Path, named: Path, mode: str) -> Iterator[IO[bytes]]:
    with path.open(mode) as file:
        if named.suffix != ".gz":
            yield file
            return
        # no name and no time in the header: the same history gives the same file
        with gzip.GzipFile("", mode, fileobj=file, mtime=0) as packed:
            yield cast("IO[bytes]", packed)


def _line(stream: str, message: StoredMessage) -> _Line:
    return _Line(
        stream,
        message.seq,
        message.stamp_ns,
        message.subject,
        base64.b64encode(message.headers).decode(),
        base64.b64encode(message.body).decode(),
        checksum(stream, message),
    )


class Bundle(msgspec.Struct):
    """A file read back."""

    header: Header
    streams: Streams
    damaged: list[tuple[str, int]]
    """(stream, sequence) of messages whose checksum does not match; (file, line) where a line is none."""


def load(path: Path) -> Bundle:
    """Return the history in `path`.

    Raises:
        BadConfigError: there is no such file, or it is no bundle.
    """
    try:
        with _open(path, path, "rb") as file:
            lines = file.read().split(b"\n")
        header = msgspec.json.decode(lines[0], type=Header)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise BadConfigError(f"audit bundle {path}: cannot be read: {error}") from None
    if header.format != FORMAT:
        raise BadConfigError(f"audit bundle {path}: format must be {FORMAT}, it is {header.format!r}")
    held: dict[str, list[StoredMessage]] = {"LW_CONTROL": [], "LW_EVENTS": [], "LW_LEDGER": []}
    damaged: list[tuple[str, int]] = []
    for number, line in enumerate(lines[1:], start=2):
        if line:
            _take(line, number, held, damaged)
    events, control, ledger = (CopiedStream(name, held[name]) for name in ("LW_EVENTS", "LW_CONTROL", "LW_LEDGER"))
    return Bundle(header, Streams(events, control, ledger), damaged)


def _take(line: bytes, number: int, held: dict[str, list[StoredMessage]], damaged: list[tuple[str, int]]) -> None:
    try:
        read = msgspec.json.decode(line, type=_Line)
        message = StoredMessage(
            read.seq, read.stamp_ns, read.subject, base64.b64decode(read.headers), base64.b64decode(read.body)
        )
        held[read.stream].append(message)
    except (msgspec.DecodeError, ValueError, KeyError):
        damaged.append(("file, line", number))
        return
    if checksum(read.stream, message) != read.sum:
        damaged.append((read.stream, read.seq))


class CopiedStream:
    """The messages of a bundle as a stream (domain.ports.Stream) that takes nothing."""

    def __init__(self, name: str, messages: list[StoredMessage]) -> None:
        self.name = name
        self._messages = {message.seq: message for message in messages}

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Refuse: a copy is read only."""
        del subject, body, message_id, expected_last, headers
        raise PublishRefusedError(f"{self.name}: this is a copy; it takes no messages")

    async def last(self) -> StoredMessage | None:
        """Return the newest message; None if there is none."""
        return self._messages[max(self._messages)] if self._messages else None

    async def get(self, seq: int) -> StoredMessage | None:
        """Return message `seq`, or None."""
        return self._messages.get(seq)

    async def bounds(self) -> Bounds:
        """Return what the copy holds."""
        return Bounds(min(self._messages, default=1), max(self._messages, default=0), 0)

    async def read(self, *, after: int, until: int | None = None) -> AsyncGenerator[Sequence[StoredMessage], None]:
        """Yield batches from `after` + 1 to `until` or the end.

        Raises:
            HistoryGapError: a message in between is not in the copy.
        """
        end = max(self._messages, default=0) if until is None else until
        for at in range(after + 1, end + 1, _BATCH):
            span = range(at, min(at + _BATCH, end + 1))
            missing = next((seq for seq in span if seq not in self._messages), None)
            if missing is not None:
                raise HistoryGapError(self.name, f"message {missing} is not there")
            yield [self._messages[seq] for seq in span]


def _is_stream(stream: CopiedStream) -> Stream:
    return stream  # the type checker's proof that a copy is a Stream
