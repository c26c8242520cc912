"""Who was allowed to lend to whom, at any version of the ledger.

    with GrantLedger(url, credentials, "local") as ledger:
        ledger.grants_at(812)                 # the leases that were live after commit 812, by link
        for record in ledger.history(link):   # how one link's lease came to be what it is
            print(record.version, record.event.slots, record.event.reason)

Everything here blocks; asyncio code runs it in a thread.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self, TypeVar, cast

import msgspec
from eventsourcing.application import Application, Repository
from eventsourcing.persistence import ApplicationRecorder, InfrastructureFactory, Mapper, PersistenceError
from eventsourcing.utils import Environment

from adapters.keys import Credentials
from adapters.nats.eventsourcing.factory import JetStreamFactory
from adapters.nats.eventsourcing.ledger_recorder import ORIGINATOR, CommitMapper, Committed, LedgerRecorder
from adapters.nats.eventsourcing.subscription import JetStreamSubscription
from domain.errors import BusError, CallerError, ChainBrokenError
from domain.events import LeaseChanged, LeaseCleared, LeaseGranted
from domain.events.commit import Commit
from domain.events.decision import LeaseEvent
from domain.ids import LinkId
from domain.master.health import lease_life_us

_PAGE: Final = 500
_T = TypeVar("_T")


class GrantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One lease event in its place."""

    version: int
    index: int
    """Its place among the decisions of the commit, from 0."""
    now_us: int
    """Domain time of the commit."""
    event: LeaseEvent


class Grants(msgspec.Struct):
    """The aggregate: the leases that are live after the newest commit folded. The library keeps it and folds on."""

    id: str = ORIGINATOR
    version: int = 0
    digest: str = ""
    now_us: int = 0
    live: dict[LinkId, GrantRecord] = {}

    def take(self, commit: Commit) -> None:
        """Fold the next commit.

        Raises:
            ChainBrokenError: it does not continue the one before it.
        """
        if self.digest and commit.prev != self.digest:
            raise ChainBrokenError(f"LW_LEDGER version {commit.version}: does not continue version {self.version}")
        for record in lease_records(commit):
            if isinstance(record.event, LeaseCleared):
                self.live.pop(record.event.link, None)
            else:
                self.live[record.event.link] = record
        self.version, self.digest, self.now_us = commit.version, commit.digest, commit.now_us

    def by_link(self) -> dict[LinkId, LeaseGranted | LeaseChanged]:
        """Return the live leases, in order of link: those that are neither cleared nor past their time."""
        leases: dict[LinkId, LeaseGranted | LeaseChanged] = {}
        for link in sorted(self.live):
            record = self.live[link]
            assert not isinstance(record.event, LeaseCleared), "cleared leases are dropped"
            if record.now_us + lease_life_us(record.event.ttl_us) > self.now_us:
                leases[link] = record.event
        return leases


def lease_records(commit: Commit) -> Iterator[GrantRecord]:
    """Yield the lease events of a commit."""
    for index, decision in enumerate(commit.decisions):
        if isinstance(decision, LeaseEvent):
            yield GrantRecord(version=commit.version, index=index, now_us=commit.now_us, event=decision)


def _project(grants: Grants | None, events: Iterable[Any]) -> Grants:
    """Return `grants` after `events`. A ledger without commits is one at version 0, not a missing one."""
    folded = grants or Grants()
    for committed in events:
        folded.take(committed.commit)
    return folded


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rebuilding begins, since its state is known: what the library calls a snapshot. Its state is with the caller."""

    originator_id: str = ORIGINATOR
    originator_version: int


class _ReachedStore:
    """Stands where the library looks for snapshots."""

    def __init__(self, reached: Reached | None) -> None:
        self._reached = reached

    def get(self, originator_id: str, *, lte: int | None = None, **_: object) -> Iterator[Reached]:
        """Yield the snapshot, if it is not after version `lte`."""
        del originator_id
        if self._reached is not None and (lte is None or self._reached.originator_version <= lte):
            yield self._reached


class LedgerApplication(Application[str]):
    """The library's application over LW_LEDGER; it only reads."""

    name = "Ledger"
    env: ClassVar[dict[str, str]] = {}

    def __init__(self, url: str, credentials: Credentials | None, cluster: str) -> None:
        self._credentials, self._cluster = credentials, cluster
        # The newest state is kept and folded on; it is given out in copies only, so the library need not copy it too.
        kept = {"AGGREGATE_CACHE_MAXSIZE": "1", "DEEPCOPY_FROM_AGGREGATE_CACHE": "no"}
        super().__init__({"NATS_URL": url, "ORIGINATOR_ID_TYPE": "text", **kept})

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Return our persistence module, with the reader's credentials."""
        return JetStreamFactory(env, self._credentials)

    def construct_mapper(self) -> Mapper[str]:
        """Return the mapper from commits."""
        return CommitMapper()

    def construct_recorder(self) -> ApplicationRecorder:
        """Return the recorder whose versions are sequences."""
        assert isinstance(self.factory, JetStreamFactory), "made above"
        return LedgerRecorder(self.factory.link, self._cluster)

    def grants(self, version: int | None = None) -> Grants:
        """Return the aggregate at `version`; None is the newest."""
        return self.repository.get(ORIGINATOR, version=version, projector_func=_project)

    def rebuild(self, version: int, project: Callable[[Iterable[Commit]], _T], reached: Reached | None) -> _T:
        """Return what `project` makes of the commits after `reached` up to `version`, through a repository of the library."""
        repository = Repository[str](self.events, snapshot_store=cast("Any", _ReachedStore(reached)))

        def projected(_: object, events: Iterable[Any]) -> Any:
            return project(event.commit for event in events if isinstance(event, Committed))

        return cast("_T", repository.get(ORIGINATOR, version=version, projector_func=projected))

    def commits(self, after: int, until: int | None) -> Iterator[Commit]:
        """Yield the commits of versions (after, until]; 0 begins with the oldest that is kept."""
        start = after or None
        while True:
            page = self.recorder.select_notifications(start, _PAGE, until, inclusive_of_start=False)
            for notification in page:
                yield _commit(self.mapper.to_domain_event(notification))
            if len(page) < _PAGE:
                return
            start = page[-1].id


class GrantLedger:
    """Reads the ledger's grants. One connection; close it. Any of master, projector and operator may."""

    def __init__(self, url: str, credentials: Credentials | None, cluster: str) -> None:
        """Connect to the bus.

        Raises:
            BusError: nobody answers there, or not to these credentials. Every method may raise it.
        """
        with _bus_errors():
            self._application = LedgerApplication(url, credentials, cluster)

    def head(self) -> int:
        """Return the newest version; 0 if there is no commit."""
        with _bus_errors():
            return self._application.recorder.max_notification_id() or 0

    def grants_at(self, version: int | None = None) -> Mapping[LinkId, LeaseGranted | LeaseChanged]:
        """Return the leases that were live after commit `version` (None: now), by link.

        Raises:
            CallerError: the ledger has no such version yet, or it is negative.
            ChainBrokenError: a commit up to there does not continue the one before it.
            HistoryGapError: a commit up to there is missing.
        """
        if version == 0:
            return {}
        with _bus_errors():
            if version is None:
                return self._application.grants().by_link()
            head = self._application.recorder.max_notification_id() or 0
            if not 0 < version <= head:
                raise CallerError(f"version {version}: must be 0 to {head}, the ledger's newest")
            return self._application.grants(version).by_link()

    def rebuild(self, version: int, project: Callable[[Iterable[Commit]], _T], *, after: int = 0) -> _T:
        """Return what `project` makes of the commits of versions (after, version]: any aggregate over the ledger.

        `after`: a version whose state the caller has, from a snapshot of its own. `project` may not return None.

        Raises:
            ChainBrokenError: one of them is no commit, or not at its version.
            HistoryGapError: one of them is missing.
        """
        reached = Reached(originator_version=after) if after else None
        with _bus_errors():
            return self._application.rebuild(version, project, reached)

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[Commit]:
        """Yield the commits of versions (after, until], up to the newest now; 0 begins with the oldest that is kept.

        Raises:
            ChainBrokenError, HistoryGapError: as for `grants_at`.
        """
        with _bus_errors():
            yield from self._application.commits(after, until)

    def history(self, link: LinkId | None = None, *, after: int = 0, until: int | None = None) -> Iterator[GrantRecord]:
        """Yield what happened to the leases of `link` (None: of all) in versions (after, until]."""
        for commit in self.commits(after, until):
            for record in lease_records(commit):
                if link is None or record.event.link == link:
                    yield record

    def subscribe(self, after: int | None = None) -> "CommitSubscription":
        """Return an iterator over the commits after version `after` (None: after the newest); it waits for more.

        Use it as a context manager; `stop` ends it from any thread.
        """
        start = self.head() if after is None else after
        with _bus_errors():
            subscription = self._application.recorder.subscribe(start)
        assert isinstance(subscription, JetStreamSubscription), "our recorder makes no other"
        return CommitSubscription(subscription, self._application.mapper)

    def close(self) -> None:
        """End the connection; may be called twice."""
        self._application.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CommitSubscription(Iterator[Commit]):
    """Commits in order, each once, as they are stored."""

    def __init__(self, subscription: JetStreamSubscription, mapper: Mapper[str]) -> None:
        self._subscription, self._mapper = subscription, mapper

    def __next__(self) -> Commit:
        with _bus_errors():
            return _commit(self._mapper.to_domain_event(next(self._subscription)))

    def stop(self) -> None:
        """End the iteration; may be called twice and from any thread."""
        self._subscription.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _commit(event: object) -> Commit:
    assert isinstance(event, Committed), "our mapper makes nothing else"
    return event.commit


@contextmanager
def _bus_errors() -> Iterator[None]:
    """Raise the library's errors as ours."""
    try:
        yield
    except PersistenceError as error:
        raise BusError(f"LW_LEDGER: {error}") from error
