"""What can become of a real nats-server's files: what a disk does, what an accident does, what a forger at the disk does."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from domain.subjects import DECISIONS
from tests.mutations import changes, feed_changes
from tests.mutations.blocks import BYTE_CLASSES, blocks_of, folder_of, forget, records_of, write_stream
from tests.mutations.living import BOOK, BURSTS, HISTORY, WITNESS, Store

StoreChange = Callable[[random.Random, Path, Store], str]
"""(dice, data directory of a stopped server, the life that it is a copy of) -> what was done."""


def _a_block(dice: random.Random, data: Path) -> tuple[str, Path]:
    stream = dice.choice(HISTORY)
    return stream, dice.choice(blocks_of(data, stream))


def flip_in(part: str) -> StoreChange:
    """Return the change of one bit in a class of bytes of a record."""

    def change(dice: random.Random, data: Path, _: Store) -> str:
        stream, block = _a_block(dice, data)
        content = bytearray(block.read_bytes())
        records = [each for each in records_of(bytes(content)) if part in each.parts()]
        if not records:
            return flip_in("body")(dice, data, _)
        begin, end = dice.choice(records).parts()[part]
        at = dice.randrange(begin, end)
        bit = dice.randrange(8)
        content[at] ^= 1 << bit
        block.write_bytes(content)
        return f"{stream} {block.name} byte {at} bit {bit}"

    change.__name__ = f"flip_{part}"
    return change


def flip_anywhere(dice: random.Random, data: Path, _: Store) -> str:
    """One bit of any file of a stream: index and state of the server's own as well."""
    stream = dice.choice(HISTORY)
    files = sorted(path for path in folder_of(data, stream).rglob("*") if path.is_file() and path.stat().st_size)
    path = dice.choice(files)
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    content[at] ^= 1 << dice.randrange(8)
    path.write_bytes(content)
    return f"{stream} {path.name} byte {at}"


def damage_a_follower(dice: random.Random, data: Path, _: Store) -> str:
    """A letter in the description of a stream's consumer: the server stops a stream of which it cannot read one."""
    stream = dice.choice([name for name in HISTORY if list((folder_of(data, name) / "obs").glob("*"))])
    path = dice.choice(sorted((folder_of(data, stream) / "obs").glob("*/meta.inf")))
    content = path.read_bytes()
    at = content.index(b"replay_policy") + dice.randrange(13)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return f"{stream} {path.parent.name} byte {at}"


def zero_a_page(dice: random.Random, data: Path, _: Store) -> str:
    """A page of zeros where there were records: what a lost write leaves."""
    stream, block = _a_block(dice, data)
    content = bytearray(block.read_bytes())
    at = dice.randrange(0, max(1, len(content) - 512))
    content[at : at + 512] = bytes(min(512, len(content) - at))
    block.write_bytes(content)
    return f"{stream} {block.name} from {at}"


def cut_a_block(dice: random.Random, data: Path, _: Store) -> str:
    """The end of a block file."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    kept = dice.randrange(len(content))
    block.write_bytes(content[:kept])
    return f"{stream} {block.name} after {kept}"


def cut_at_a_record(dice: random.Random, data: Path, _: Store) -> str:
    """The newest records of a block file, and what the server noted of them."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    record = dice.choice(records_of(content))
    block.write_bytes(content[: record.at])
    forget(data, stream)
    return f"{stream} {block.name} from {record.at}"


def remove_a_record(dice: random.Random, data: Path, _: Store) -> str:
    """One record out of the middle, and what the server noted of it."""
    stream, block = _a_block(dice, data)
    content = block.read_bytes()
    record = dice.choice(records_of(content))
    block.write_bytes(content[: record.at] + content[record.at + record.size :])
    forget(data, stream)
    return f"{stream} {block.name} at {record.at}"


def swap_records(dice: random.Random, data: Path, _: Store) -> str:
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
    forget(data, stream)
    return f"{stream} {block.name} at {one.at} and {two.at}"


def replace_a_body(dice: random.Random, data: Path, _: Store) -> str:
    """A record's body by that of another record of the same size, else by noise."""
    stream, block = _a_block(dice, data)
    content = bytearray(block.read_bytes())
    record = dice.choice(records_of(bytes(content)))
    begin, end = record.parts()["body"]
    content[begin:end] = dice.randbytes(end - begin)
    block.write_bytes(content)
    return f"{stream} {block.name} at {record.at}"


def remove_a_block(dice: random.Random, data: Path, _: Store) -> str:
    """A whole block file."""
    stream, block = _a_block(dice, data)
    block.unlink()
    return f"{stream} {block.name}"


def remove_the_messages(dice: random.Random, data: Path, _: Store) -> str:
    """Everything that a stream holds, but not the stream."""
    stream = dice.choice(HISTORY)
    shutil.rmtree(folder_of(data, stream) / "msgs")
    return stream


def remove_a_stream(dice: random.Random, data: Path, _: Store) -> str:
    """A stream with all that is in it."""
    stream = dice.choice(HISTORY)
    shutil.rmtree(folder_of(data, stream))
    return stream


def restore_a_stream(dice: random.Random, data: Path, store: Store) -> str:
    """One stream as an older copy has it."""
    stream, moment = dice.choice(HISTORY), dice.randrange(BURSTS - 1)
    _from_older(stream, moment, data, store)
    return f"{stream} of moment {moment}"


def restore_the_store(dice: random.Random, data: Path, store: Store) -> str:
    """The whole store directory as an older copy has it."""
    moment = dice.randrange(BURSTS - 1)
    shutil.rmtree(data / "nats")
    shutil.copytree(store.older / str(moment) / "nats", data / "nats")
    return f"moment {moment}"


def restore_two_streams(dice: random.Random, data: Path, store: Store) -> str:
    """Two streams as an older copy has them: the third is of now."""
    moment, kept = dice.randrange(BURSTS - 1), dice.choice(HISTORY)
    for stream in HISTORY:
        if stream != kept:
            _from_older(stream, moment, data, store)
    return f"all but {kept} of moment {moment}"


def restore_each_from_another_moment(dice: random.Random, data: Path, store: Store) -> str:
    """Every stream as some older copy has it, not all of the same moment."""
    moments = [dice.randrange(BURSTS - 1) for _ in HISTORY]
    for stream, moment in zip(HISTORY, moments, strict=True):
        _from_older(stream, moment, data, store)
    return f"moments {moments}"


def _from_older(stream: str, moment: int, data: Path, store: Store) -> None:
    folder = folder_of(data, stream)
    shutil.rmtree(folder)
    shutil.copytree(folder_of(store.older / str(moment), stream), folder)


# ---- a forger at the disk, who mends checksums, sequences and all digests that have no key ---------------------------


def forged(change: changes.Change) -> StoreChange:
    """Return a change of history as a change of block files whose checksums are right."""

    def write(dice: random.Random, data: Path, store: Store) -> str:
        what, after = change(dice, store.life)
        before = store.life.streams()
        for stream, messages in after.streams().items():
            if messages != before[stream]:
                write_stream(data, stream, messages)
        return what

    write.__name__ = f"forged_{change.__name__}"
    return write


def forged_feed(change: feed_changes.FeedChange) -> StoreChange:
    """Return the same of the feed of decisions."""

    def write(dice: random.Random, data: Path, store: Store) -> str:
        what, after = change(dice, store.served[DECISIONS])
        write_stream(data, DECISIONS, after)
        return what

    write.__name__ = f"feed_{change.__name__}"
    return write


# ---- everything as it was, the master's own memory too ---------------------------------------------------------------


def roll_back_the_cluster(dice: random.Random, data: Path, store: Store) -> str:
    """The bus and the master's data directory as they were: what was signed and kept elsewhere alone can tell."""
    moment = dice.randrange(BURSTS - 1)
    for name in ("nats", BOOK):
        shutil.rmtree(data / name)
        shutil.copytree(store.older / str(moment) / name, data / name)
    shutil.copyfile(store.older / str(moment) / WITNESS, data / WITNESS)
    return f"moment {moment}"


ROLLED_BACK: tuple[StoreChange, ...] = (roll_back_the_cluster,)
FEED_CHANGES: tuple[StoreChange, ...] = tuple(forged_feed(each) for each in feed_changes.CHANGES)
FORGED_CHANGES: tuple[StoreChange, ...] = tuple(forged(each) for each in changes.CHANGES)
STORE_CHANGES: tuple[StoreChange, ...] = (
    *(flip_in(part) for part in BYTE_CLASSES),
    flip_anywhere,
    damage_a_follower,
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
    restore_two_streams,
    restore_each_from_another_moment,
    restore_the_store,
)
