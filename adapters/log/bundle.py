"""A copy of history in one file, for an auditor without a bus: write it, read it back, verify it like the streams themselves.

The file is a zip archive: `manifest.json`, then the messages of LW_CONTROL, LW_EVENTS and LW_LEDGER in pieces, one JSON object a
line, states to begin at, and the signed checkpoints. The manifest has the digest of every member, and is signed where a key is
at hand. Every message has a checksum of its own, so that in a member which is not as its digest says the changed message is named
by stream and sequence. Digests are for finding accidents; what proves that nobody changed history are the chain of digests, the
MACs and the signed checkpoints, which the verification checks as on the live streams. The format is in docs/reference/log.md.
"""

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import Verifier
from adapters.log.bundle_format import (
    CHECKPOINTS,
    FORMAT,
    MANIFEST,
    MEMBER_BYTES_MAX,
    STREAMS,
    Header,
    Held,
    Line,
    Member,
    bytes_of,
    checksum,
    covered,
    digest_of,
)
from adapters.log.bundle_writer import Extra, export
from adapters.log.checkpoints import Kept, fingerprint
from adapters.log.copied import CopiedStream, Piece, PiecedStream
from adapters.log.history import Streams
from domain.errors import BadConfigError, BadIdError
from domain.events import Checkpoint, codec
from domain.ids import node_id
from domain.ports import Bounds, StoredMessage

__all__ = [
    "CHECKPOINTS",
    "FORMAT",
    "MANIFEST",
    "Bundle",
    "CopiedStream",
    "Extra",
    "Header",
    "Held",
    "Member",
    "checksum",
    "export",
    "file_digest",
    "load",
]
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, NotImplementedError, RuntimeError)
_UNTOLD: Final = Held(first=1, last=0, count=0)
"""What is taken of a stream of which the manifest says nothing."""


class Bundle:
    """A copy, opened. Messages are unpacked as they are asked for."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self._packed: zipfile.ZipFile | None = None
        """Opened once: its directory names every piece, and reading that for each of them would take longer than the pieces."""
        self.sound: set[str] = set()
        """Members that were read, and hold what the manifest says: their messages, in order, byte for byte."""
        control, events, ledger = (self._stream(name) for name in STREAMS)
        self.streams = Streams(events, control, ledger)

    def _stream(self, name: str) -> PiecedStream:
        members = [member for member in self.header.members if member.stream == name]
        held = self.header.streams.get(name, _UNTOLD)
        pieces = [Piece(member.first, _Loading(self, member)) for member in members]
        return PiecedStream(name, pieces, Bounds(held.first, held.last, 0))

    def content(self, member: Member) -> bytes:
        """Return a member's bytes, as much of them as can be read, and none if it is too large."""
        try:
            self._packed = self._packed or zipfile.ZipFile(self.path)
            return _unpacked(self._packed, member.name)
        except _BROKEN:
            return b""

    def messages(self, member: Member, damaged: "list[Damage] | None" = None) -> list[StoredMessage]:
        """Return the messages of a member that can be read; what is not as it was written is added to `damaged`."""
        content = self.content(member)
        if digest_of(content) == member.digest and (found := _in_order(content, member)) is not None:
            self.sound.add(member.name)
            return found
        return _readable(content, member, damaged if damaged is not None else [])

    @property
    def damaged(self) -> "list[Damage]":
        """Return (stream, sequence) of messages that are not as written, (member, line or 0) of what is no message.

        What was read already, and found `sound`, is not read again.
        """
        found: list[Damage] = [(f"{MANIFEST}: {name}", 0) for name in self._misfits()]
        for member in self.header.members:
            if member.name in self.sound:
                continue
            if member.stream in STREAMS:
                self.messages(member, found)
            elif digest_of(self.content(member)) != member.digest:
                found.append((member.name, 0))
        return found

    def _misfits(self) -> Iterator[str]:
        """Yield the names of what the manifest and the file, or the manifest's own numbers, do not agree about."""
        try:
            with zipfile.ZipFile(self.path) as packed:
                inside = packed.namelist()
        except _BROKEN:
            inside = []
        told = [member.name for member in self.header.members]
        yield from sorted(name for name, count in Counter(inside).items() if count > 1 or name not in {MANIFEST, *told})
        yield from sorted(name for name, count in Counter(told).items() if count > 1)
        yield from (each.name for each in self.header.members if each.stream not in {*STREAMS, "states", "checkpoints"})
        for name in STREAMS:
            held = self.header.streams.get(name, _UNTOLD)
            following, after_hole = held.first, {first: last + 1 for first, last in held.missing}
            gone = sum(last - first + 1 for first, last in held.missing)
            for member in sorted(
                (each for each in self.header.members if each.stream == name), key=lambda each: each.first
            ):
                following = after_hole.get(following, following)
                if member.first != following:
                    yield member.name
                following = member.first + member.count
            following = after_hole.get(following, following)
            if held is _UNTOLD or held.last != following - 1 or held.count != following - held.first - gone:
                yield name

    @property
    def states(self) -> list[tuple[int, Member]]:
        """Return the states to begin at, by version."""
        return sorted((each.first, each) for each in self.header.members if each.stream == "states")

    @property
    def checkpoints(self) -> list[Kept]:
        """Return the signed checkpoints in the copy; what is none is left out."""
        found: list[Kept] = []
        for member in self.header.members:
            for line in self.content(member).splitlines() if member.stream == "checkpoints" else ():
                try:
                    checkpoint = codec.decode_input(line)
                except msgspec.DecodeError:
                    continue
                if isinstance(checkpoint, Checkpoint):
                    found.append(Kept(checkpoint=checkpoint, source="the copy"))
        return found

    def signed_by(self) -> str:
        """Return the fingerprint of the key that signed the manifest; empty if nobody did.

        Raises:
            BadConfigError: it is signed, and the signature does not hold.
        """
        header = self.header
        if not header.public and not header.signature:
            return ""
        if not Verifier(header.public).verifies(covered(header), header.signature):
            raise BadConfigError(
                f"audit copy {self.path}: its manifest is not what {fingerprint(header.public)} signed"
            )
        return fingerprint(header.public)


Damage = tuple[str, int]
_LINES: Final = msgspec.json.Decoder(Line)


def _in_order(content: bytes, member: Member) -> list[StoredMessage] | None:
    """Return the messages of a member whose bytes are those that the manifest's digest is over; None if they are not in order."""
    try:
        lines = _LINES.decode_lines(content)
        found = [
            StoredMessage(
                line.seq,
                line.stamp_ns,
                line.subject,
                bytes_of(line.headers, line.headers64) if line.headers64 else line.headers.encode(),
                bytes_of(line.body, line.body64) if line.body64 else line.body.encode(),
            )
            for line in lines
        ]
    except (msgspec.DecodeError, ValueError):
        return None
    in_order = all(message.seq == seq for seq, message in enumerate(found, start=member.first))
    return found if in_order else None


def _readable(content: bytes, member: Member, damaged: list[Damage]) -> list[StoredMessage]:
    """Return what can be read of a member that is not as it was written, and name in `damaged` what is not."""
    found, named = list[StoredMessage](), len(damaged)
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            read = _LINES.decode(line)
            message = StoredMessage(
                read.seq,
                read.stamp_ns,
                read.subject,
                bytes_of(read.headers, read.headers64),
                bytes_of(read.body, read.body64),
            )
        except (msgspec.DecodeError, ValueError):
            damaged.append((f"{member.name} line", number))
            continue
        found.append(message)
        moved = read.seq != member.first + number - 1
        if moved or checksum(member.stream, message) != read.sum:
            damaged.append((member.stream, read.seq))
    if len(damaged) == named and digest_of(content) != member.digest:
        damaged.append((member.name, 0))
    return found


class _Loading(msgspec.Struct, frozen=True):
    """Loads a member when it is called; unlike a lambda it is the same in each process."""

    bundle: Bundle
    member: Member

    def __call__(self) -> list[StoredMessage]:
        return self.bundle.messages(self.member)


def load(path: Path) -> Bundle:
    """Open the copy in `path`.

    Raises:
        BadConfigError: there is no such file, or it is no copy.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            header = msgspec.json.decode(_unpacked(packed, MANIFEST), type=Header)
    except (*_BROKEN, msgspec.DecodeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        rule = "must be a file that `leaseway audit export` made"
        raise BadConfigError(f"audit copy {path}: cannot be read: {why}; {rule}") from None
    if header.format != FORMAT:
        with_what = "export it again, or read it with the release that made it"
        raise BadConfigError(f"audit copy {path}: format must be {FORMAT}, it is {header.format!r}; {with_what}")
    try:
        node_id(header.cluster)
    except BadIdError:  # it may become part of a file's name
        raise BadConfigError(f"audit copy {path}: its cluster {header.cluster[:80]!r} is no cluster's name") from None
    return Bundle(path, header)


def _unpacked(packed: zipfile.ZipFile, name: str) -> bytes:
    """Return a member's bytes, or none if it is larger, or packed in a way that we do not write: it may unpack to anything."""
    info = packed.getinfo(name)
    if info.compress_type not in {zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED} or info.file_size > MEMBER_BYTES_MAX:
        return b""
    with packed.open(info) as member:
        # not `packed.read`: that unpacks all there is before it looks at the stated size, and a false one bounds nothing
        return member.read(info.file_size)


def file_digest(path: Path) -> str:
    """Return SHA-256 of the file, in hex: what its sender can say of it by another way."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
