"""What the projector notes beside the rows: which life of each stream it reads, how far, and what was gone."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from adapters.clickhouse.causes import cause_of
from adapters.clickhouse.store import Store
from domain.errors import BadConfigError, StoreError

_STATE: Final = ("stream", "epoch", "last_seq", "written_ns", "cluster", "created_ns")
_GAP: Final = ("stream", "epoch", "first_seq", "last_seq", "seen_ns")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """How far one life of one stream was projected."""

    stream: str
    epoch: int
    created_ns: int
    """When the stream was made."""
    last_seq: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The newest commit in the tables."""

    seq: int
    """Newest message of the ledger, also if its commit does not count."""
    generation: str
    version: int
    digest: str
    """Of the newest commit that counts."""


class Notes:
    """Reads and writes the projector's notes of one cluster."""

    def __init__(self, store: Store, cluster: str) -> None:
        self._store, self._cluster = store, cluster
        self._written_ns: dict[tuple[str, int], int] = {}
        """When the newest note of each life says that it was written."""

    def check_cluster(self) -> None:
        """Return if the tables are this cluster's, or nobody's yet.

        Raises:
            BadConfigError: they are about another cluster; mixing two would make both useless.
        """
        try:
            rows = self._store.query("SELECT DISTINCT cluster FROM projector_state ORDER BY 1")
        except StoreError as error:
            if cause_of(error) != "no_table":
                raise
            return
        known = [row["cluster"] for row in rows]
        if known and known != [self._cluster]:
            raise BadConfigError(
                f"clickhouse {self._store.shown}: database {self._store.database} must be of cluster {self._cluster}, "
                f"it is of {', '.join(known)}"
            )

    def newest(self, stream: str) -> Note | None:
        """Return the note of the newest life of `stream`; None if it was never read."""
        found = self._store.query(
            "SELECT epoch, created_ns, last_seq FROM projector_state FINAL WHERE stream = {stream:String} "
            "ORDER BY epoch DESC LIMIT 1",
            {"stream": stream},
        )
        return Note(stream=stream, **found[0]) if found else None

    def held(self, stream: str) -> int:
        """Return the newest life of `stream` of which messages are kept; 0 if there is none."""
        found = self._store.query(
            "SELECT max(epoch) AS epoch FROM events WHERE stream = {stream:String}", {"stream": stream}
        )
        return int(found[0]["epoch"]) if found else 0

    def write(self, note: Note, *, now_ns: int) -> None:
        """Keep `note`; the newest one of a life holds, and that is this one even if the clock was set back since the last."""
        life = note.stream, note.epoch
        last_ns = self._written_ns[life] if life in self._written_ns else self._last_written_ns(note)
        now_ns = max(now_ns, last_ns + 1)
        row = (note.stream, note.epoch, note.last_seq, now_ns, self._cluster, note.created_ns)
        token = f"{note.stream}:{note.epoch}:{note.last_seq}:{now_ns}"
        self._store.insert("projector_state", _STATE, [row], token=token)
        self._written_ns[life] = now_ns

    def begin_again(self, stream: str, *, now_ns: int) -> None:
        """Note that nothing of the newest life of `stream` is in the tables any more."""
        note = self.newest(stream)
        if note is not None:
            self.write(msgspec.structs.replace(note, last_seq=0), now_ns=now_ns)

    def _last_written_ns(self, note: Note) -> int:
        found = self._store.query(
            "SELECT max(written_ns) AS written FROM projector_state WHERE stream = {stream:String} AND epoch = {epoch:UInt32}",
            {"stream": note.stream, "epoch": note.epoch},
        )
        return int(found[0]["written"])

    def add_gap(self, stream: str, epoch: int, first: int, last: int, *, now_ns: int) -> None:
        """Keep that messages `first` to `last` were gone."""
        row = (stream, epoch, first, last, now_ns)
        self._store.insert("gaps", _GAP, [row], token=f"{stream}:{epoch}:{first}-{last}")

    def gaps(self) -> list[dict[str, object]]:
        """Return the newest 100 gaps."""
        return self._store.query(
            "SELECT stream, epoch, first_seq, last_seq FROM gaps FINAL ORDER BY seen_ns DESC LIMIT 100"
        )

    def stamp_of(self, stream: str, epoch: int, seq: int) -> int | None:
        """Return the stamp of a message that was projected; None if its row is not there (any more)."""
        found = self._store.query(
            "SELECT at_ns FROM events WHERE stream = {stream:String} AND epoch = {epoch:UInt32} AND seq = {seq:UInt64} "
            "LIMIT 1",
            {"stream": stream, "epoch": epoch, "seq": seq},
        )
        return int(found[0]["at_ns"]) if found else None

    def runs(self, stream: str, epoch: int, after: int, columns: Sequence[str], gap_ns: int) -> list[dict[str, Any]]:
        """Return the newest row of each combination of `columns` in the last `gap_ns` of the decisions up to `after`."""
        where = "stream = {stream:String} AND epoch = {epoch:UInt32} AND seq <= {after:UInt64}"
        names = ", ".join(columns)
        return self._store.query(
            f"SELECT {names}, at_ns, fold_id FROM decisions WHERE {where} AND at_ns + {{gap:UInt64}} >= "  # noqa: S608  # names of ours
            f"(SELECT max(at_ns) FROM decisions WHERE {where}) ORDER BY seq DESC, item DESC LIMIT 1 BY {names}",
            {"stream": stream, "epoch": epoch, "after": after, "gap": gap_ns},
        )

    def head(self, stream: str, epoch: int) -> Head | None:
        """Return the newest commit of one life of the ledger; None if no commit is there."""
        found = self._store.query(
            "SELECT max(c.seq) AS seq, argMaxIf(c.generation, c.seq, NOT c.void) AS generation, "
            "argMaxIf(c.version, c.seq, NOT c.void) AS version, argMaxIf(c.digest, c.seq, NOT c.void) AS digest "
            "FROM commits AS c WHERE c.stream = {stream:String} AND c.epoch = {epoch:UInt32}",
            {"stream": stream, "epoch": epoch},
        )
        return Head(**found[0]) if found and found[0]["seq"] else None
