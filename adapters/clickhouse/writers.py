"""Which projectors say that they write to these tables. Times are ClickHouse' own, by the one clock that all of them see."""

from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.clickhouse.store import Store

_COLUMNS: Final = ("life", "host", "process", "began", "beat")


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """A projector that has said that it writes."""

    life: str
    host: str
    process: int
    began: int
    """Seconds since the epoch."""
    seen: int = 0

    @property
    def rank(self) -> tuple[int, str]:
        """Return what orders writers: of two that meet, the lower one goes on."""
        return self.began, self.life


def now_s(store: Store) -> int:
    """Return seconds since the epoch by ClickHouse' clock."""
    return int(store.query("SELECT toUnixTimestamp(now()) AS now")[0]["now"])


def others(store: Store, life: str, *, within_s: int) -> list[Writer]:
    """Return the writers but `life` that have said within `within_s` that they are there, by rank.

    A word from the future is old as well: that clock was set back since, and whoever lives says it again.
    """
    found = store.query(
        "SELECT life, host, process, began, seen FROM writers FINAL WHERE life != {life:String} "
        "AND abs(toInt64(seen) - toInt64(toUnixTimestamp(now()))) < {within:UInt32} ORDER BY began, life",
        {"life": life, "within": within_s},
    )
    return [Writer(**row) for row in found]


def is_known(store: Store, life: str) -> bool:
    """Tell whether anything that `life` has ever said is there."""
    found = store.query("SELECT count() AS n FROM writers WHERE life = {life:String}", {"life": life})
    return bool(found[0]["n"])


def say(store: Store, writer: Writer, beat: int) -> None:
    """Say that `writer` is there, for the `beat`th time.

    Raises:
        StoreError: it could not be said.
    """
    _insert(store, _COLUMNS, writer, beat)


def leave(store: Store, writer: Writer, beat: int) -> None:
    """Say that `writer` has left: who comes next needs not wait.

    Raises:
        StoreError: it could not be said.
    """
    _insert(store, (*_COLUMNS, "seen"), writer, beat)


def _insert(store: Store, columns: Sequence[str], writer: Writer, beat: int) -> None:
    row = (writer.life, writer.host, writer.process, writer.began, beat, 0)[: len(columns)]
    store.insert("writers", columns, [row], token=f"{writer.life}:{beat}")
