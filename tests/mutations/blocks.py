"""nats-server's block files: read record by record, and written as whoever has its disk can write them, checksums and all.

A record is: length (4 bytes, highest bit: it has headers), sequence (8), stamp (8), length of the subject (2), subject, length of
the headers (4, where there are any), headers, body, checksum (8).
"""

import hashlib
import shutil
import struct
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from domain.ports import StoredMessage
from tests.mutations.highway import highway_64

FIXED = 22
CHECKSUM = 8
BYTE_CLASSES = (
    "length", "sequence", "stamp", "subject_length", "subject", "headers_length", "headers", "body", "checksum",
)  # fmt: skip


class Record(msgspec.Struct, frozen=True):
    """Where one message stands in a block file."""

    at: int
    size: int
    subject: int
    """Bytes of the subject."""
    headers: int
    """Bytes of the headers; -1 if it has none."""

    def parts(self) -> dict[str, tuple[int, int]]:
        """Return (begin, end) of each class of bytes in it."""
        at, end = self.at, self.at + self.size
        subject_end = at + FIXED + self.subject
        found = {
            "length": (at, at + 4),
            "sequence": (at + 4, at + 12),
            "stamp": (at + 12, at + 20),
            "subject_length": (at + 20, at + FIXED),
            "subject": (at + FIXED, subject_end),
            "checksum": (end - CHECKSUM, end),
        }
        body = subject_end
        if self.headers >= 0:
            found |= {
                "headers_length": (subject_end, subject_end + 4),
                "headers": (subject_end + 4, subject_end + 4 + self.headers),
            }
            body = subject_end + 4 + self.headers
        return found | {"body": (body, end - CHECKSUM)}


def records_of(content: bytes) -> list[Record]:
    """Return the records of a block file."""
    found, at = [], 0
    while at + FIXED <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        size, has_headers = length & 0x7FFFFFFF, bool(length >> 31)
        (subject,) = struct.unpack_from("<H", content, at + 20)
        if size < FIXED + CHECKSUM or at + size > len(content):
            break
        headers = struct.unpack_from("<I", content, at + FIXED + subject)[0] if has_headers else -1
        found.append(Record(at, size, subject, headers))
        at += size
    return found


def folder_of(data: Path, stream: str) -> Path:
    """Return the directory in which the server keeps a stream."""
    found = [path for path in (data / "nats").rglob(f"CORE/streams/{stream}") if path.is_dir()]
    assert len(found) == 1, found
    return found[0]


def blocks_of(data: Path, stream: str) -> list[Path]:
    """Return a stream's block files, oldest first."""
    return sorted(folder_of(data, stream).rglob("*.blk"), key=lambda path: int(path.stem))


def forget(data: Path, stream: str) -> None:
    """Let the server read its blocks again, instead of what it noted of them."""
    for path in folder_of(data, stream).rglob("index.db"):
        path.unlink()


def write_stream(data: Path, stream: str, messages: Sequence[StoredMessage]) -> None:
    """Let the stopped server hold just these messages of a stream, as if it had stored them itself."""
    folder = folder_of(data, stream) / "msgs"
    shutil.rmtree(folder)
    folder.mkdir()
    if messages:
        (folder / "1.blk").write_bytes(b"".join(_record(f"{stream}-1", message) for message in messages))


@lru_cache(8192)  # most of what is written is as it was
def _record(block: str, message: StoredMessage) -> bytes:
    subject, headers = message.subject.encode("utf-8", "surrogateescape"), message.headers
    size = FIXED + len(subject) + len(message.body) + CHECKSUM + (4 + len(headers) if headers else 0)
    place = struct.pack("<Qq", message.seq, message.stamp_ns)
    fixed = struct.pack("<I", size | (1 << 31 if headers else 0)) + place + struct.pack("<H", len(subject))
    key = hashlib.sha256(block.encode()).digest()
    # the checksum covers sequence, stamp and subject, then headers without their length, then the body
    checksum = highway_64(key, place + subject + headers + message.body)
    counted = struct.pack("<I", len(headers)) + headers if headers else b""
    return fixed + subject + counted + message.body + checksum
