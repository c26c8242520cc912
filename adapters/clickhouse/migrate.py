"""Brings a database to the schema of this release, one numbered step after the other."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final, Protocol

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.store import Store
from domain.errors import BrokenSetupError

_BOOK = """\
CREATE TABLE IF NOT EXISTS schema_migrations (
  number UInt32, name String, digest String, applied DateTime('UTC') DEFAULT now()
) ENGINE = ReplacingMergeTree ORDER BY number
COMMENT 'Steps that were taken to this schema'"""


_IS_THERE: Final = (
    "SELECT count() AS there FROM system.tables WHERE database = currentDatabase() AND name = 'schema_migrations'"
)


_MAKES: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")


class Step(Protocol):
    """One migration. Its statements may run twice: a crash may come between them and their entry in the book."""

    @property
    def number(self) -> int:
        """Its place, from 1, without gaps."""
        ...

    @property
    def name(self) -> str:
        """What it does."""
        ...

    @property
    def statements(self) -> tuple[str, ...]:
        """SQL, in order."""
        ...


def digest_of(step: Step) -> str:
    """Return the digest of a step's statements, in hex: a released step never changes."""
    return hashlib.blake2b("\0".join(step.statements).encode(), digest_size=16).hexdigest()


def migrate(store: Store, steps: Sequence[Step]) -> int:
    """Take the steps that `store` lacks and return the number of the newest one.

    Raises:
        BrokenSetupError: the database is of a newer release, or was made by another text of one of these steps.
        StoreError: ClickHouse refused a statement.
    """
    # nothing is written where all is there: one that takes no writes just now still answers questions
    if store.cluster or not store.query(_IS_THERE)[0]["there"]:
        store.command(on_cluster(_BOOK, store.cluster))
    taken = {row["number"]: row["digest"] for row in store.query("SELECT number, digest FROM schema_migrations FINAL")}
    newest = steps[-1].number
    if taken and max(taken) > newest:
        raise BrokenSetupError(
            f"clickhouse {store.shown}: schema must be {newest} or older, it is {max(taken)}: a newer release wrote it"
        )
    for step in steps:
        known = taken.get(step.number)
        if known is None:
            _take(store, step)
        elif known != digest_of(step):
            raise BrokenSetupError(
                f"clickhouse {store.shown}: schema step {step.number} ({step.name}) must be this release's, it is another"
            )
    return newest


def make_missing(store: Store, steps: Sequence[Step]) -> list[str]:
    """Make those tables again, empty, that `steps` have made and somebody has dropped; return their names.

    To be asked after `migrate`.

    Raises:
        StoreError: ClickHouse refused a statement.
    """
    statements = [statement for step in steps for statement in step.statements]
    made = {found[1] for statement in statements if (found := _MAKES.match(statement))}
    there = store.query("SELECT name FROM system.tables WHERE database = currentDatabase()")
    missing = sorted(made - {row["name"] for row in there})
    if missing:  # each statement leaves alone what is there
        for statement in statements:
            store.command(on_cluster(statement, store.cluster))
    return missing


def _take(store: Store, step: Step) -> None:
    for statement in step.statements:
        store.command(on_cluster(statement, store.cluster))
    digest = digest_of(step)
    store.insert(
        "schema_migrations", ("number", "name", "digest"), [(step.number, step.name, digest)], token=f"step:{digest}"
    )
