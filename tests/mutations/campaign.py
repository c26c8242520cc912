"""One change after another on a real nats-server's store, each followed by a real start of a master, and an audit."""

import asyncio
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer
from nats.errors import Error as NatsError

from adapters.decisions import DecisionReader
from adapters.log.begun import check_generations
from adapters.log.checkpoints import CheckpointBook, Kept
from adapters.log.fed import compare_feed
from adapters.log.generations import Beginners
from adapters.log.reader import Reader
from adapters.log.report import Report
from adapters.log.verify import Part, verify
from domain.errors import BusError, ChildFailedError, LeasewayError
from domain.events import Registered, Witness
from domain.events.commit import decode_commit
from domain.subjects import DECISIONS, LEDGER
from tests.mutations.attackers import ATTACKS, Attack
from tests.mutations.living import ANSWER_S, BOOK, Served, Store, last_version, served, server_on
from tests.mutations.outcomes import Outcome, line
from tests.mutations.process import SETTLE, start_as_a_process
from tests.mutations.store import FEED_CHANGES, FORGED_CHANGES, ROLLED_BACK, STORE_CHANGES, StoreChange
from tests.support.cluster import ClusterUnderTest
from tests.support.nats import CLUSTER
from tests.support.waiting import until

TRIES = 3
DRAWS = 20
"""A kind of which so many draws in a row give what was there before has no more to give."""
FEED_SHARE = 10
"""One change of the feed on so many of history."""
_OURS = (BusError, AssertionError, NatsError, TimeoutError, OSError)
"""What a machine that is too busy does to a test; a change of history does not."""


class Kind(msgspec.Struct, frozen=True):
    """One way to change history: with the server stopped, or through its API."""

    family: str
    name: str
    change: StoreChange | None = None
    attack: Attack | None = None
    archived: bool = False
    """ClickHouse has the newest checkpoint and has seen the newest commit."""
    shown: bool = False
    """A node registers anew and shows what it has seen."""

    @property
    def key(self) -> tuple[str, str]:
        """Return by what it is told from the others."""
        return self.family, self.name


KINDS: tuple[Kind, ...] = (
    *(Kind("disk", change.__name__, change) for change in STORE_CHANGES),
    *(Kind("forger", change.__name__.removeprefix("forged_"), change) for change in FORGED_CHANGES),
    *(Kind("API", attack.__name__, attack=attack) for attack in ATTACKS),
    *(Kind("rollback", change.__name__, change, archived=True) for change in ROLLED_BACK),
    *(Kind("rollback", f"{change.__name__}_seen_by_a_node", change, shown=True) for change in ROLLED_BACK),
)
FEED_KINDS: tuple[Kind, ...] = tuple(
    Kind("feed", change.__name__.removeprefix("feed_"), change) for change in FEED_CHANGES
)


class SeenBeforeError(Exception):
    """The dice gave what was tried before."""


class Run:
    """What all changes of a campaign share."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.archive = ""
        self.seen: dict[tuple[str, ...], int] = {}
        """Number of each mutation by what it made of the store."""
        self.doing: dict[int, str] = {}
        """What was last done under a number."""
        self.started: set[tuple[str, str]] = set()
        """Kinds of which a mutation has met a master of its own process."""

    @asynccontextmanager
    async def with_archive(self) -> AsyncIterator["Run"]:
        """Let a projector answer as it does when ClickHouse holds all commits up to the newest."""
        newest = self.store.life.witnessed
        seen = {"generation": newest.generation, "version": newest.version, "digest": "", "seq": newest.version}

        async def health(_: web.BaseRequest) -> web.Response:
            return web.json_response({"status": "ok", "witness": seen})

        server = TestServer(web.Application())
        server.app.router.add_get("/health", health)
        await server.start_server()
        self.archive = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            await server.close()

    async def one(self, number: int, kind: Kind, dice: random.Random, folder: Path) -> Outcome:
        """Change the store in one way, start a server and a master on it, and audit it."""
        data, began = folder / "data", monotonic()
        shutil.copytree(self.store.data, data, ignore=shutil.ignore_patterns("logs"))
        what = kind.change(dice, data, self.store) if kind.change is not None else ""
        if kind.change is not None:
            self._new(number, kind, _digest_of(data))
        blank = Outcome(number=number, family=kind.family, kind=kind.name, what=what)
        self.doing[number] = what
        try:
            made = await self._started(kind, dice, data, blank)
        except ChildFailedError as error:
            if "address already in use" in str(error):  # another process was given that port first
                raise OSError(str(error)) from None
            # the server refuses its store: nobody can decide anything, and it says so
            made = msgspec.structs.replace(blank, refused=True, audit=str(error), doubt=str(error))
        return msgspec.structs.replace(made, took_ms=int((monotonic() - began) * 1000))

    def _new(self, number: int, kind: Kind, said: str) -> None:
        """Note a mutation; the same one may be tried again under its own number alone."""
        if self.seen.setdefault((*kind.key, said), number) != number:
            raise SeenBeforeError

    async def _started(self, kind: Kind, dice: random.Random, data: Path, blank: Outcome) -> Outcome:
        async with server_on(data) as cluster:
            if kind.attack is not None:
                blank = msgspec.structs.replace(blank, what=await kind.attack(dice, cluster, self.store))
                self._new(blank.number, kind, blank.what)
            found = await served(cluster)
            if found == self.store.served:
                return msgspec.structs.replace(blank, changed=False)
            if kind.family == "feed":
                return await self._fed(cluster, found, blank)
            if kind.shown:
                await self._show(cluster)
            audited = await self._audit(kind, cluster, data)
            made = msgspec.structs.replace(blank, audit=audited)
            return await self._start(kind, cluster, data, made)

    async def _start(self, kind: Kind, cluster: ClusterUnderTest, data: Path, made: Outcome) -> Outcome:
        """Start a master, the first of each kind as a process, and see whether it decides."""
        before, process = await last_version(cluster), kind.key not in self.started
        archive = self.archive if kind.archived else ""
        settled = {"safe_mode"} if kind.shown else {"safe_mode", "active"}
        if process:
            doubt = await start_as_a_process(data, cluster.server.url, archive, settled)
            self.started.add(kind.key)
        else:
            loop, _ = await cluster.master(archive=archive)
            await until(SETTLE, lambda: loop.mode in settled, timeout_s=ANSWER_S)
            doubt = loop.doubt if loop.mode == "safe_mode" else ""
        commits, decisions = await _stored_since(cluster, before)
        return msgspec.structs.replace(made, doubt=doubt, process=process, commits=commits, decisions=decisions)

    async def _show(self, cluster: ClusterUnderTest) -> None:
        """Let a node that has seen the newest decision register anew, as it does when the bus is back."""
        newest = self.store.served[DECISIONS][-1]
        reader = DecisionReader(CLUSTER, cluster.server.credentials("n1").master_public)
        signed = reader.read(newest.body)
        assert signed is not None
        seen = Witness(generation=signed.generation, version=signed.order[1], signed=newest.body.decode())
        await cluster.state("n1", Registered(url="http://h", models=(), version="1", depth=2, witness=seen))

    async def _audit(self, kind: Kind, cluster: ClusterUnderTest, data: Path) -> str:
        """Return what an audit names first, with the checkpoints that are kept; empty: nothing."""
        kept = await CheckpointBook(data / BOOK).read()
        if kind.archived or kind.shown:  # an auditor has a checkpoint of before, from ClickHouse or a copy
            newest = self.store.kept[-1].checkpoint
            kept = [*kept, Kept(checkpoint=newest, source="ClickHouse")]
        secret, streams = cluster.server.credentials("master").cluster_mac_secret, await cluster.streams()
        try:
            report = await verify(streams, Reader(CLUSTER, secret), part=Part(checkpoints=kept))
            who = Beginners(cluster=CLUSTER, operator=self.store.life.operator)
            await check_generations(streams.ledger, who, report, kept)
        except LeasewayError as error:
            return f"a stream is not there: {error}"
        return _first(report)

    async def _fed(self, cluster: ClusterUnderTest, found: Served, made: Outcome) -> Outcome:
        """Compare a changed feed, and count what a node would believe of what is not the master's."""
        reader = DecisionReader(CLUSTER, cluster.server.credentials("n1").master_public)
        bus = await cluster.bus("projector")
        compared = await compare_feed(bus.stream(DECISIONS), bus.stream(LEDGER), reader, CLUSTER, dropped_before_ns=1)
        published = {message.body for message in self.store.served[DECISIONS]}
        strange = [message for message in found[DECISIONS] if message.body not in published]
        return msgspec.structs.replace(
            made,
            audit=compared.differences[0].detail if compared.differences else "",
            believed=sum(reader.read(message.body) is not None for message in strange),
        )


def _first(report: Report) -> str:
    return "" if report.clean else (report.stopped or report.differences[0].detail)


def _digest_of(data: Path) -> str:
    """Return what all files of the bus' store are, so that no mutation counts twice."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in sorted((data / "nats" / "store").rglob("*")):
        if path.is_file():
            hasher.update(f"{path.relative_to(data)}|".encode() + path.read_bytes())
    return hasher.hexdigest()


async def _stored_since(cluster: ClusterUnderTest, before: int) -> tuple[int, int]:
    """Return (commits, decisions in them) that are stored after version `before`."""
    stream = (await cluster.bus("projector")).stream(LEDGER)
    commits = decisions = 0
    for version in range(before + 1, await last_version(cluster) + 1):
        message = await stream.get(version)
        commits += 1
        decisions += len(decode_commit(message.body).decisions) if message is not None else 0
    return commits, decisions


# ---- many of them ----------------------------------------------------------------------------------------------------


class Campaign:
    """Changes in turn, a kind after the other, until so many of them have changed something."""

    def __init__(self, run: Run, *, seed: int, tell: Callable[[str], None], keep: Callable[[Outcome], None]) -> None:
        self._run, self._seed, self._tell, self._keep = run, seed, tell, keep
        self.outcomes: list[Outcome] = []
        self._numbers = 0
        self._lost: Counter[tuple[str, str]] = Counter()
        self._spent: set[tuple[str, str]] = set()

    async def until_counted(self, kinds: Sequence[Kind], count: int, *, jobs: int) -> None:
        """Go on until `count` of these kinds count, or no kind has any more to give."""
        names = {kind.key for kind in kinds}
        under_way = 0

        def have() -> int:
            return sum(each.counts and (each.family, each.kind) in names for each in self.outcomes)

        async def work() -> None:
            nonlocal under_way
            while have() + under_way < count:
                left = [kind for kind in kinds if kind.key not in self._spent]
                if not left:
                    return
                number, self._numbers = self._numbers, self._numbers + 1
                under_way += 1
                try:
                    made = await self._drawn(number, left[number % len(left)])
                finally:
                    under_way -= 1
                if made is not None:
                    self.take(made)

        await asyncio.gather(*(work() for _ in range(jobs)))

    def take(self, made: Outcome, *, kept_before: bool = False) -> None:
        """Note an outcome."""
        self.outcomes.append(made)
        self._numbers = max(self._numbers, made.number + 1)
        if made.process:
            self._run.started.add((made.family, made.kind))
        if kept_before:
            return
        self._keep(made)
        if made.counts and not made.found:
            self._tell(f"NOT FOUND: {made}")
        if len(self.outcomes) % 25 == 0:
            self._tell(line(self.outcomes))

    async def _drawn(self, number: int, kind: Kind) -> Outcome | None:
        """Return what came of one change that was not tried before; None if the kind has none."""
        for draw in range(DRAWS):
            try:
                return await self._tried(number, kind, draw)
            except SeenBeforeError:
                continue
        self._spent.add(kind.key)
        return None

    async def _tried(self, number: int, kind: Kind, draw: int) -> Outcome:
        """Try it again where a server or an answer was lost; say so, and go on without it after the last try."""
        why = ""
        for _ in range(TRIES):
            dice = random.Random(f"{self._seed}/{number}/{draw}")
            try:
                with TemporaryDirectory(dir=self._run.folder, ignore_cleanup_errors=True) as own:
                    return await self._run.one(number, kind, dice, Path(own))
            except _OURS as error:
                why = f"{type(error).__name__}: {error}"
                self._tell(f"once more: number {number} {kind.name} {self._run.doing.get(number, '')}: {why}")
        if SETTLE in why:  # not the machine: three times a master neither decided nor doubted
            what = self._run.doing.get(number, "")
            return Outcome(number=number, family=kind.family, kind=kind.name, what=what, audit=why)
        self._lost[kind.key] += 1
        if self._lost[kind.key] >= TRIES:  # it is the kind: the others go on
            self._spent.add(kind.key)
        return Outcome(number=number, family=kind.family, kind=kind.name, what="", lost=why)
