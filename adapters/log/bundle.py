"""A copy of history in one file, for an auditor without a bus: write it, read it back, verify it like the streams themselves.

The file is a zip archive: `manifest.json`, then the messages of LW_CONTROL, LW_EVENTS and LW_LEDGER in pieces, one JSON object a
line, states to begin at, and the signed checkpoints. The manifest has the digest of every member, and is signed where a key is
at hand. Every message has a checksum of its own, so that a changed byte is named by stream and sequence before any rule is
run. Digests are for finding accidents; what proves that nobody changed history are the chain of digests, the MACs and the signed
checkpoints, which the verification checks as on the live streams. The format is in docs/reference/log.md.
"""

import base64
import hashlib
import zipfile
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import Signer, Verifier
from adapters.log.checkpoints import Kept, fingerprint
from adapters.log.copied import CopiedStream as CopiedStream  # noqa: PLC0414  # for whoever has messages and no file
from adapters.log.copied import Piece, PiecedStream
from adapters.log.history import Streams
from domain.errors import BadConfigError
from domain.events import Checkpoint, codec
from domain.ports import Bounds, StoredMessage, Stream
from domain.subjects import CONTROL, EVENTS, LEDGER

FORMAT: Final = "leaseway-audit/2"
MANIFEST: Final = "manifest.json"
CHECKPOINTS: Final = "checkpoints.jsonl"
_PURPOSE: Final = b"leaseway/audit/2|"
_PIECE: Final = 5000
"""Messages of one member."""
_STAMP: Final = (1980, 1, 1, 0, 0, 0)
"""Of every member: the same history gives the same file."""
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, NotImplementedError, RuntimeError)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the copy holds of one stream."""

    first: int
    last: int
    count: int


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One file inside."""

    name: str
    digest: str
    """blake2b-16 over its bytes, unpacked."""
    size: int
    stream: str = ""
    first: int = 0
    """Sequence of its first message, or version of the state."""
    count: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest."""

    format: str
    cluster: str
    software: str = ""
    """Version of Leaseway that wrote it."""
    streams: dict[str, Held]
    members: tuple[Member, ...]
    public: str = ""
    """nkey public key that signed this manifest; empty if nobody did."""
    signature: str = ""
    """ed25519 (hex) of `leaseway/audit/2|` and the manifest with an empty signature."""

    @property
    def counts(self) -> dict[str, int]:
        """Return the messages of each stream."""
        return {name: held.count for name, held in self.streams.items()}


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    stamp_ns: int
    subject: str
    headers: str = ""
    """As text where it is UTF-8 ..."""
    body: str = ""
    headers64: str = ""
    """... else in base64."""
    body64: str = ""
    sum: str = ""


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a copy besides the streams."""

    software: str = ""
    states: Sequence[tuple[int, bytes]] = ()
    """(version, state bytes) for which commits vouch: where an audit can begin."""
    checkpoints: Sequence[Kept] = ()
    signer: Signer | None = None


NOTHING: Final = Extra()


def checksum(stream: str, message: StoredMessage) -> str:
    """Return blake2b-8 over all that a message is, in hex."""
    hasher = hashlib.blake2b(f"{stream}|{message.seq}|{message.stamp_ns}|{message.subject}|".encode(), digest_size=8)
    hasher.update(b"%d|" % len(message.headers) + message.headers + message.body)
    return hasher.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


# ---- writing ---------------------------------------------------------------------------------------------------------


async def export(
    streams: Streams,
    cluster: str,
    path: Path,
    *,
    extra: Extra = NOTHING,
    progress: Callable[[int, int], None] | None = None,
) -> Header:
    """Write what the three streams hold now to `path`, whole or not at all; return the manifest."""
    ends = {stream.name: await stream.bounds() for stream in (streams.control, streams.events, streams.ledger)}
    held = {
        name: Held(first=end.first, last=end.last, count=max(0, end.last - end.first + 1)) for name, end in ends.items()
    }
    total, done = sum(each.count for each in held.values()), 0
    draft, members = path.with_name(path.name + ".part"), list[Member]()
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for stream in (streams.control, streams.events, streams.ledger):
            async for piece in _pieces(stream, held[stream.name]):
                members.append(_write_piece(packed, stream.name, piece))
                done += len(piece)
                if progress is not None:
                    progress(done, total)
        members += _write_extra(packed, extra)
        header = Header(format=FORMAT, cluster=cluster, software=extra.software, streams=held, members=tuple(members))
        if extra.signer is not None:
            header = msgspec.structs.replace(header, public=extra.signer.public)
            header = msgspec.structs.replace(header, signature=extra.signer.sign(_covered(header)))
        _write(packed, MANIFEST, msgspec.json.format(msgspec.json.encode(header), indent=1))
    draft.replace(path)
    return header


async def _pieces(stream: Stream, held: Held) -> AsyncGenerator[list[StoredMessage], None]:
    piece: list[StoredMessage] = []
    if held.count:
        async for batch in stream.read(after=held.first - 1, until=held.last):
            for message in batch:
                piece.append(message)
                if len(piece) == _PIECE:
                    yield piece
                    piece = []
    if piece:
        yield piece


def _write_piece(packed: zipfile.ZipFile, stream: str, piece: Sequence[StoredMessage]) -> Member:
    content = b"".join(msgspec.json.encode(_line(stream, message)) + b"\n" for message in piece)
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
    return Member(name=name, digest=_digest(content), size=len(content))


def _line(stream: str, message: StoredMessage) -> _Line:
    headers, headers64 = _text(message.headers)
    body, body64 = _text(message.body)
    return _Line(
        message.seq, message.stamp_ns, message.subject, headers, body, headers64, body64, checksum(stream, message)
    )


def _text(content: bytes) -> tuple[str, str]:
    try:
        return content.decode(), ""
    except UnicodeDecodeError:
        return "", base64.b64encode(content).decode()


def _covered(header: Header) -> bytes:
    return _PURPOSE + msgspec.json.encode(msgspec.structs.replace(header, signature=""))


# ---- reading ---------------------------------------------------------------------------------------------------------


class Bundle:
    """A copy, opened. Messages are unpacked as they are asked for."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        control, events, ledger = (self._stream(name) for name in (CONTROL, EVENTS, LEDGER))
        self.streams = Streams(events, control, ledger)

    def _stream(self, name: str) -> PiecedStream:
        members = [member for member in self.header.members if member.stream == name]
        held = self.header.streams.get(name, Held(first=1, last=0, count=0))
        pieces = [Piece(member.first, _Loading(self, member)) for member in members]
        return PiecedStream(name, pieces, Bounds(held.first, held.last, 0))

    def content(self, member: Member) -> bytes:
        """Return a member's bytes, as much of them as can be read."""
        try:
            with zipfile.ZipFile(self.path) as packed:
                return packed.read(member.name)
        except _BROKEN:
            return b""

    def messages(self, member: Member, damaged: "list[Damage] | None" = None) -> list[StoredMessage]:
        """Return the messages of a member that can be read; what is not as it was written is added to `damaged`."""
        content = self.content(member)
        found, named = list[StoredMessage](), len(damaged or ())
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                read = msgspec.json.decode(line, type=_Line)
                message = StoredMessage(
                    read.seq,
                    read.stamp_ns,
                    read.subject,
                    _bytes(read.headers, read.headers64),
                    _bytes(read.body, read.body64),
                )
            except (msgspec.DecodeError, ValueError):
                if damaged is not None:
                    damaged.append((f"{member.name} line", number))
                continue
            found.append(message)
            if damaged is not None and checksum(member.stream, message) != read.sum:
                damaged.append((member.stream, read.seq))
        if damaged is not None and len(damaged) == named and _digest(content) != member.digest:
            damaged.append((member.name, 0))
        return found

    @property
    def damaged(self) -> "list[Damage]":
        """Return (stream, sequence) of messages whose checksum does not match, (member, line or 0) of what is no message."""
        found: list[Damage] = []
        for member in self.header.members:
            if member.stream in {CONTROL, EVENTS, LEDGER}:
                self.messages(member, found)
            elif _digest(self.content(member)) != member.digest:
                found.append((member.name, 0))
        return found

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
        if not Verifier(header.public).verifies(_covered(header), header.signature):
            raise BadConfigError(
                f"audit copy {self.path}: its manifest is not what {fingerprint(header.public)} signed"
            )
        return fingerprint(header.public)


Damage = tuple[str, int]


class _Loading(msgspec.Struct, frozen=True):
    """Loads a member when it is called; unlike a lambda it is the same in each process."""

    bundle: Bundle
    member: Member

    def __call__(self) -> list[StoredMessage]:
        return self.bundle.messages(self.member)


def _bytes(text: str, encoded: str) -> bytes:
    return base64.b64decode(encoded, validate=True) if encoded else text.encode()


def load(path: Path) -> Bundle:
    """Open the copy in `path`.

    Raises:
        BadConfigError: there is no such file, or it is no copy.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            header = msgspec.json.decode(packed.read(MANIFEST), type=Header)
    except (*_BROKEN, msgspec.DecodeError, ValueError) as error:
        raise BadConfigError(f"audit copy {path}: cannot be read: {error}") from None
    if header.format != FORMAT:
        raise BadConfigError(f"audit copy {path}: format must be {FORMAT}, it is {header.format!r}")
    return Bundle(path, header)


def file_digest(path: Path) -> str:
    """Return SHA-256 of the file, in hex: what its sender can say of it by another way."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
