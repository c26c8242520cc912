"""One change after another: on a real server's store, and on histories in memory; what was found, and what was not."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from adapters.clock import SystemClock
from adapters.log.checkpoints import CheckpointBook
from adapters.log.history import Streams
from adapters.log.reader import Reader
from adapters.log.report import Report
from adapters.log.verify import Part, verify
from adapters.nats.server import NatsServer
from domain.errors import BusError, ChildFailedError, LeasewayError
from domain.ports import StoredMessage
from domain.subjects import LEDGER
from services.master.loop import MasterLoop
from tests.mutations.changes import CHANGES
from tests.mutations.life import doubt_of_a_master, found_by_audit, lived
from tests.mutations.store import HISTORY, STORE_CHANGES, live
from tests.support.cluster import ClusterUnderTest, cluster_on
from tests.support.nats import CLUSTER, ServerUnderTest
from tests.support.waiting import until

ANSWER_S = 40.0
TRIES = 3


class Outcome(msgspec.Struct, frozen=True):
    """What came of one change."""

    seed: int
    change: str
    what: str
    audit: str = ""
    """What the audit named; empty: nothing."""
    master: str = ""
    """Why the master was in safe mode; empty: it was not."""
    decided: int = 0
    """Commits that it stored all the same."""
    refused: bool = False
    """The bus itself did not come up on what was changed."""
    harmless: bool = False
    """Everything that is served is as it was: the server mended, or did not need, what was changed."""

    @property
    def found(self) -> bool:
        """Whether the audit names it, and the master doubts before it decides."""
        return self.harmless or (bool(self.audit) and bool(self.master) and not self.decided)


async def in_memory(seed: int, folder: Path) -> Outcome:
    """Change a history in memory by a seed."""
    dice = random.Random(seed)
    change = CHANGES[seed % len(CHANGES)]
    life = lived(seed % 17)
    what, changed = change(dice, life)
    doubt = await doubt_of_a_master(changed, folder, SystemClock())
    decides = doubt == "decides"
    return Outcome(
        seed,
        change.__name__,
        what,
        audit=await found_by_audit(changed),
        master="" if decides else doubt,
        decided=int(decides),
        harmless=changed == life,
    )


class _Standing(ServerUnderTest):
    """A server whose directory was provisioned in another life of it."""

    def __init__(self, data: Path, server: NatsServer) -> None:
        self.data, self.servers, self.cluster, self._clients = data, [server], CLUSTER, []


class Store:
    """A stopped server's data directory, older copies of it, and what it served."""

    def __init__(self, folder: Path) -> None:
        self.data, self.older = folder / "data", folder / "older"
        self.older.mkdir(parents=True)
        self.served: dict[str, list[StoredMessage]] = {}

    async def make(self) -> None:
        """Live through the history once."""
        await live(self.data, self.older)
        async with self.server_on(self.data) as cluster:
            self.served = await served(cluster)

    @asynccontextmanager
    async def server_on(self, data: Path) -> AsyncIterator[ClusterUnderTest]:
        """Run a server on a data directory."""
        server = NatsServer(data, cluster=CLUSTER, port=0, monitor_port=0)
        under_test = _Standing(data, server)
        try:
            await server.start(deadline_s=ANSWER_S)
            async with cluster_on(under_test) as cluster:
                yield cluster
        finally:
            await server.stop()


async def on_a_store(seed: int, store: Store, folder: Path) -> Outcome:
    """Change a real store by a seed, start a server and a master on it, and audit it."""
    dice = random.Random(seed)
    change = STORE_CHANGES[seed % len(STORE_CHANGES)]
    data = folder / "data"
    shutil.copytree(store.data, data)
    what = change(dice, data, store.older)
    try:
        return await _started_on(store, data, Outcome(seed, change.__name__, what))
    except ChildFailedError as error:  # the server itself refuses its store: nobody can decide anything, and it says so
        why = str(error)
        return Outcome(seed, change.__name__, what, audit=why, master=why, refused=True)


async def _started_on(store: Store, data: Path, blank: Outcome) -> Outcome:
    """Start a server and a master on a changed store; return what they and the audit say."""
    async with store.server_on(data) as cluster:
        found = await served(cluster)
        if found == store.served:
            return msgspec.structs.replace(blank, harmless=True)
        audited = await audit(cluster, data)
        loop, _ = await cluster.master()
        await until("it decides or doubts", lambda: loop.mode in {"active", "safe_mode"}, timeout_s=ANSWER_S)
        after = await served(cluster)
    decided = len(after.get(LEDGER, [])) - len(found.get(LEDGER, []))
    return msgspec.structs.replace(
        blank,
        audit="" if audited is not None and audited.clean else _first(audited),
        master=loop.doubt if loop.mode == "safe_mode" else "",
        decided=max(0, decided),
    )


def _first(report: Report | None) -> str:
    if report is None:
        return "a stream is not there"
    return report.stopped or report.differences[0].detail


async def audit(cluster: ClusterUnderTest, data: Path) -> Report | None:
    """Verify what a server serves; None if it cannot even be asked."""
    kept = await CheckpointBook(data / "checkpoints-master").read()
    secret = cluster.server.credentials("master").cluster_mac_secret
    try:
        return await verify(await cluster.streams(), Reader(CLUSTER, secret), part=Part(checkpoints=kept))
    except LeasewayError:
        return None


async def served(cluster: ClusterUnderTest) -> dict[str, list[StoredMessage]]:
    """Return every message that can be had of the three streams."""
    streams: Streams = await cluster.streams()
    found: dict[str, list[StoredMessage]] = {}
    for stream in (streams.events, streams.control, streams.ledger):
        found[stream.name] = []
        try:
            bounds = await stream.bounds()
            for seq in range(bounds.first, bounds.last + 1):
                message = await stream.get(seq)
                if message is not None:
                    found[stream.name].append(message)
        except BusError:
            continue
    return found


async def campaign(
    count: int, *, share_real: float, seed: int, jobs: int, tell: Callable[[str], None]
) -> list[Outcome]:
    """Return what came of `count` changes; a share of them on real stores."""
    real = round(count * share_real)
    outcomes: list[Outcome] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(folder / "life")
        if real:
            tell("living through the history once")
            await store.make()
        waiting = iter(range(seed, seed + count))

        async def work() -> None:
            for number in waiting:
                on_store = number - seed < real
                made = await _tried(number, store if on_store else None, folder, tell)
                outcomes.append(made)
                if not made.found:
                    tell(f"NOT FOUND: seed {made.seed} {made.change} {made.what}: {made}")
                if len(outcomes) % 25 == 0:
                    tell(f"{len(outcomes)} of {count}: {line(outcomes)}")

        await asyncio.gather(*(work() for _ in range(jobs)))
    return outcomes


async def _tried(seed: int, store: Store | None, folder: Path, tell: Callable[[str], None]) -> Outcome:
    """Return what came of one change; on a machine that is too busy for a server to answer it is tried again."""
    for attempt in range(TRIES):
        try:
            with TemporaryDirectory(dir=folder) as own:
                return await (on_a_store(seed, store, Path(own)) if store is not None else in_memory(seed, Path(own)))
        except (BusError, AssertionError) as error:
            tell(f"once more: seed {seed}: {error}")
            if attempt + 1 == TRIES:
                raise
    raise AssertionError("the last try returns or raises")


def line(outcomes: list[Outcome]) -> str:
    """Return the figures of some outcomes in one line."""
    harmless = sum(each.harmless for each in outcomes)
    found = sum(each.found for each in outcomes) - harmless
    refused = sum(each.refused for each in outcomes)
    effective = len(outcomes) - harmless
    share = f"{found / effective:.2%}" if effective else "-"
    decided = sum(each.decided for each in outcomes)
    return (
        f"{len(outcomes)} mutations, {harmless} without effect, {refused} that the bus refused, "
        f"{found} of {effective} found ({share}), "
        f"{decided} commits decided on changed history"
    )


def table(outcomes: list[Outcome]) -> list[str]:
    """Return a line for each kind of change."""
    kinds = Counter(each.change for each in outcomes)
    rows = []
    for kind in sorted(kinds):
        mine = [each for each in outcomes if each.change == kind]
        rows.append(f"  {kind:<26} {line(mine)}")
    return rows


__all__ = ["HISTORY", "MasterLoop", "Outcome", "Store", "campaign", "in_memory", "line", "on_a_store", "table"]
