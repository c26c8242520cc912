"""A real nats-server's store of a history that a real master decided, and the ways in which its files can change.

A record in a block file is: length (4 bytes, highest bit: it has headers), sequence (8), stamp (8), length of the subject (2),
subject, length of the headers (4, where there are any), headers, body, checksum (8).
"""

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.history import finished, held, link, registered, started
from tests.support.nats import CLUSTER, NODES, provisioned_server
from tests.support.waiting import until

HISTORY = ("LW_EVENTS", "LW_CONTROL", "LW_LEDGER")
FIXED = 22
CHECKSUM = 8
BURSTS = 4


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


BYTE_CLASSES = (
    "length", "sequence", "stamp", "subject_length", "subject", "headers_length", "headers", "body", "checksum",
)  # fmt: skip


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
    found = [path for path in (data / "nats").rglob(stream) if path.is_dir() and path.parent.name == "streams"]
    assert len(found) == 1, found
    return found[0]


def blocks_of(data: Path, stream: str) -> list[Path]:
    """Return a stream's block files, oldest first."""
    return sorted(folder_of(data, stream).rglob("*.blk"), key=lambda path: int(path.stem))


# ---- one life, and older copies of it --------------------------------------------------------------------------------


async def live(data: Path, older: Path) -> None:
    """Let a real master decide on a real server in `data`; leave copies of earlier moments in `older`, all of it stopped."""
    async with provisioned_server(data) as server:
        for burst in range(BURSTS):
            async with cluster_on(server) as cluster:
                await _burst(cluster, burst)
            await server.stop()
            if burst + 1 < BURSTS:
                shutil.copytree(data, older / str(burst))
                await server.restart()


async def _burst(cluster: ClusterUnderTest, number: int) -> None:
    loop, _ = await cluster.master()
    if not number:
        await cluster.state("n1", registered(), finished("req_fit"))
        await cluster.state("n2", registered())
        await cluster.decree(link("n1", "n2"))
    else:
        await cluster.state("n1", registered())
        await cluster.state("n2", registered())
    name = f"{number:02d}"
    await cluster.state("n1", started(f"req_{name}s"), *(held(f"req_{name}_{i}", i + 1) for i in range(8)))
    await until("it leases", lambda: loop.state.leases, timeout_s=60)
    for i in range(4):
        await cluster.state("n1", started(f"req_{name}_{i}"), finished(f"req_{name}_{i}", service_us=400_000))
    last = (await (await cluster.streams()).events.bounds()).last
    await until("all is folded", lambda: loop.state.hi >= last, timeout_s=60)
    await cluster.end("master")
    await loop.sign_off()


# ---- what can become of the files ------------------------------------------------------------------------------------

StoreChange = Callable[[random.Random, Path, Path], str]
"""(dice, data directory, older copies) -> what was done."""


def _a_block(dice: random.Random, data: Path) -> tuple[str, Path]:
    stream = dice.choice(HISTORY)
    return stream, dice.choice(blocks_of(data, stream))


def flip_in(part: str) -> StoreChange:
    """Return the change of one bit in a class of bytes of a record."""

    def change(dice: random.Random, data: Path, _: Path) -> str:
        stream, block = _a_block(dice, data)
        content = bytearray(block.read_bytes())
        records = [each for each in records_of(bytes(content)) if part in each.parts()]
        if not records:
            return flip_in("body")(dice, data, _)
        begin, end = dice.choice(records).parts()[part]
        at = dice.randrange(begin, end)
        content[at] ^= 1 << dice.randrange(8)
        block.write_bytes(content)
        return f"{stream} {block.name} byte {at}"

    change.__name__ = f"flip_{part}"
    return change


def flip_anywhere(dice: random.Random, data: Path, _: Path) -> str:
    """One bit of any file of a stream: index and state of the server's own as well."""
    stream = dice.choice(HISTORY)
    files = sorted(path for path in folder_of(data, stream).rglob("*") if path.is_file() and path.stat().st_size)
    path = dice.choice(files)
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    content[at] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    return f"{stream} {path.name} byte {at}"


def zero_a_page(dice: random.Random, data: Path, _: Path) -> str:
    """A page of zeros where there were records: what a lost write leaves."""
    stream, block = _a_block(dice, data)
    content = bytearray(block.read_bytes())
    at = dice.randrange(0, max(1, len(content) - 512))
    content[at : at + 512] = bytes(min(512, len(content) - at))
    block.write_bytes(content)
    return f"{stream} {block.name} from {at}"


def cut_a_block(dice: random.Random, data: Path, _: Path) -> str:
    """The end of a block file."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    kept = dice.randrange(len(content))
    block.write_bytes(content[:kept])
    return f"{stream} {block.name} after {kept}"


def cut_at_a_record(dice: random.Random, data: Path, _: Path) -> str:
    """The newest records of a block file, and what the server noted of them."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    record = dice.choice(records_of(content))
    block.write_bytes(content[: record.at])
    _forget(data, stream)
    return f"{stream} {block.name} from {record.at}"


def remove_a_record(dice: random.Random, data: Path, _: Path) -> str:
    """One record out of the middle, and what the server noted of it."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    record = dice.choice(records_of(content))
    block.write_bytes(content[: record.at] + content[record.at + record.size :])
    _forget(data, stream)
    return f"{stream} {block.name} at {record.at}"


def swap_records(dice: random.Random, data: Path, _: Path) -> str:
    """Two records change places; each is whole in itself."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    records = records_of(content)
    if len(records) < 2:
        return remove_a_record(dice, data, _)
    one, two = sorted(dice.sample(records, 2), key=lambda each: each.at)
    first, second = content[one.at : one.at + one.size], content[two.at : two.at + two.size]
    between = content[one.at + one.size : two.at]
    block.write_bytes(content[: one.at] + second + between + first + content[two.at + two.size :])
    _forget(data, stream)
    return f"{stream} {block.name} at {one.at} and {two.at}"


def replace_a_body(dice: random.Random, data: Path, _: Path) -> str:
    """A record's body by that of another record of the same size, else by noise."""
    stream, block = _a_block(dice, data)
    content = bytearray(block.read_bytes())
    record = dice.choice(records_of(bytes(content)))
    begin, end = record.parts()["body"]
    content[begin:end] = dice.randbytes(end - begin)
    block.write_bytes(content)
    return f"{stream} {block.name} at {record.at}"


def remove_a_block(dice: random.Random, data: Path, _: Path) -> str:
    """A whole block file."""
    stream, block = _a_block(dice, data)
    block.unlink()
    return f"{stream} {block.name}"


def remove_the_messages(dice: random.Random, data: Path, _: Path) -> str:
    """Everything that a stream holds, but not the stream."""
    stream = dice.choice(HISTORY)
    shutil.rmtree(folder_of(data, stream) / "msgs")
    return stream


def remove_a_stream(dice: random.Random, data: Path, _: Path) -> str:
    """A stream with all that is in it."""
    stream = dice.choice(HISTORY)
    shutil.rmtree(folder_of(data, stream))
    return stream


def restore_a_stream(dice: random.Random, data: Path, older: Path) -> str:
    """One stream as an older copy has it."""
    stream, moment = dice.choice(HISTORY), dice.randrange(BURSTS - 1)
    folder = folder_of(data, stream)
    shutil.rmtree(folder)
    shutil.copytree(folder_of(older / str(moment), stream), folder)
    return f"{stream} of moment {moment}"


def restore_the_store(dice: random.Random, data: Path, older: Path) -> str:
    """The whole store directory as an older copy has it."""
    moment = dice.randrange(BURSTS - 1)
    shutil.rmtree(data / "nats")
    shutil.copytree(older / str(moment) / "nats", data / "nats")
    return f"moment {moment}"


def _forget(data: Path, stream: str) -> None:
    """Let the server read its blocks again, instead of what it noted of them."""
    for path in folder_of(data, stream).rglob("index.db"):
        path.unlink()


STORE_CHANGES: tuple[StoreChange, ...] = (
    *(flip_in(part) for part in BYTE_CLASSES),
    flip_anywhere,
    zero_a_page,
    cut_a_block,
    cut_at_a_record,
    remove_a_record,
    swap_records,
    replace_a_body,
    remove_a_block,
    remove_the_messages,
    remove_a_stream,
    restore_a_stream,
    restore_the_store,
)


__all__ = ["CLUSTER", "NODES", "STORE_CHANGES", "StoreChange", "blocks_of", "folder_of", "live", "records_of"]
