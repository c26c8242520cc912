"""Decides a kept history again under this very interpreter: the part of `tests.replay.everywhere` that runs in each of them.

It needs what `adapters.log` needs and nothing else. One JSON line a reading goes to standard output.
"""

import asyncio
import hashlib
import locale
import platform
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from adapters.keys import load_credentials
from adapters.log.bundle import Bundle, Member, load
from adapters.log.copied import CopiedStream
from adapters.log.history import Cursors, History, Streams, stored_commit
from adapters.log.reader import Reader
from domain.errors import HistoryError, HistoryGapError
from domain.events.commit import Commit
from domain.master.step import after, check_chain
from domain.ports import StoredMessage, Stream

Begin = tuple[int, Member]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and in which ways."""

    history: str
    key: str
    snapshots: int = 0
    """From how many of the stored snapshots; chosen evenly, the first and the last among them."""
    batches: tuple[int, ...] = ()
    """Most facts folded at once; 0 for all of a commit's range."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading gave."""

    python: str
    way: str
    language: str = ""
    """The locale that held: the C one where the one asked for is not installed."""
    commits: int
    events: int
    digest: str
    """blake2b over the digests of all commits after version `since`, as they were made again."""
    whole: str
    """The same over all commits that were made."""
    state: str
    """blake2b of the state at the end."""
    cpu_s: float
    """Processor time of deciding; unpacking the copy comes before it."""
    wrong: str = ""
    """The first difference."""


class Remade:
    """Collects what was made again."""

    def __init__(self, since: int = 0) -> None:
        self.commits = self.events = 0
        self._since = since
        self._whole, self._after = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    async def along(self, history: History, upto: int) -> None:
        """Decide every commit again from where `history` is up to a version."""
        cursors = Cursors(history.streams, history.position)
        async for batch in history.streams.ledger.read(after=history.position.version, until=upto):
            for message in batch:
                stored = stored_commit(message)
                if not await history.began_anew(stored, message.body, cursors):
                    check_chain(history.position, stored)
                    span = await history.fold(stored, cursors)
                    again = history.rules.replay(history.state, history.position, stored, span)
                    self._note(again)
                    history.position = after(stored)
                self.commits += 1
                self.events += stored.hi - stored.lo
        await cursors.close()

    def _note(self, again: Commit) -> None:
        said = f"{again.version} {again.digest};".encode()
        self._whole.update(said)
        if again.version > self._since:
            self._after.update(said)

    @property
    def digests(self) -> tuple[str, str]:
        """Return the digest over what was made after `since`, and over all that was made."""
        return self._after.hexdigest(), self._whole.hexdigest()


async def from_zero(streams: Streams, reader: Reader, batch: int, since: int) -> tuple[Remade, str]:
    """Decide the whole history again, folding so many facts at once."""
    history = History(streams, reader, fold_max=batch or 1 << 30)
    remade = Remade(since)
    await remade.along(history, (await streams.ledger.bounds()).last)
    return remade, digest_of(history)


async def from_snapshots(kept: Bundle, reader: Reader, count: int) -> tuple[Remade, str]:
    """Decide again from every snapshot up to the next one, whose digest stands in its commit; from the last to the end."""
    streams, begins = kept.streams, sampled(kept.states, count)
    ends = [version for version, _ in begins[1:]] + [(await streams.ledger.bounds()).last]
    remade, state = Remade(begins[0][0]), ""
    for (version, member), end in zip(begins, ends, strict=True):
        history = History(streams, reader)
        message = await streams.ledger.get(version)
        if message is None or not history.restore(kept.content(member), stored_commit(message)):
            raise HistoryError(f"snapshot of version {version}: no commit vouches for its bytes")
        await remade.along(history, end)
        state = digest_of(history)
    return remade, state


async def in_memory(streams: Streams) -> Streams:
    """Return the streams unpacked: they are read once and decided several times."""
    return Streams(
        *[CopiedStream(each.name, await _all(each)) for each in (streams.events, streams.control, streams.ledger)]
    )


async def _all(stream: Stream) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    async for batch in stream.read(after=(await stream.bounds()).first - 1):
        messages += batch
    return messages


def first_snapshot(kept: Bundle) -> int:
    """Return the version of the first snapshot: what is made after it can be compared between all ways of reading."""
    return kept.states[0][0] if kept.states else 0


def sampled(begins: Sequence[Begin], count: int) -> list[Begin]:
    """Return so many, evenly chosen, the first and the last among them."""
    if len(begins) <= count:
        return list(begins)
    return [begins[round(index * (len(begins) - 1) / max(1, count - 1))] for index in range(count)]


def digest_of(history: History) -> str:
    """Return the digest of the state."""
    return hashlib.blake2b(history.rules.encode_state(history.state), digest_size=16).hexdigest()


def main() -> None:
    """Read as asked on standard input."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    kept = load(Path(asked.history))
    kept.streams = asyncio.run(in_memory(kept.streams))
    reader = Reader(kept.header.cluster, load_credentials(Path(asked.key)).cluster_mac_secret)
    since = first_snapshot(kept)
    for batch in asked.batches:
        tell("all at once" if not batch else f"in batches of {batch}", from_zero(kept.streams, reader, batch, since))
    if asked.snapshots:
        begins = min(asked.snapshots, len(kept.states))
        tell(f"from {begins} snapshots", from_snapshots(kept, reader, asked.snapshots))


def tell(way: str, reading: Coroutine[Any, Any, tuple[Remade, str]]) -> None:
    """Read one way and print what came of it."""
    began_s = time.process_time()
    remade, state, wrong = Remade(), "", ""
    try:
        remade, state = asyncio.run(reading)
    except (HistoryError, HistoryGapError) as error:
        wrong = str(error)
    told = Told(
        python=platform.python_version(),
        way=way,
        language=locale.setlocale(locale.LC_CTYPE).partition(".")[0],
        commits=remade.commits,
        events=remade.events,
        digest=remade.digests[0],
        whole=remade.digests[1],
        state=state,
        cpu_s=time.process_time() - began_s,
        wrong=wrong,
    )
    print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()
