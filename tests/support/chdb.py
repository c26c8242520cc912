"""A real ClickHouse inside the test process: one engine for the session, a database of its own for each test.

    @pytest.mark.real
    def test_something(store): ...               # migrated
    def test_else(database): store = database()  # as many handles to one database as wanted, not migrated

chDB takes one directory a process, so nothing else in the test process may open one; other processes may, elsewhere.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.store import Store, open_store
from projections.tables import MIGRATIONS

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def engine_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the dsn of this session's engine, which runs until the end."""
    directory: Path = tmp_path_factory.mktemp("clickhouse")
    dsn = f"chdb://{directory}"
    keeper = open_store(dsn, readers=1)  # starting takes half a second: the engine lives as long as one client does
    yield dsn
    keeper.close()


@pytest.fixture
def database(engine_dsn: str) -> Iterator[Callable[[], Store]]:
    """Return what opens this test's own, empty database; what was opened is closed."""
    name = f"test_{next(_NUMBERS)}"
    opened: list[Store] = []

    def open_it() -> Store:
        opened.append(open_store(engine_dsn, database=name, readers=1))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(database: Callable[[], Store]) -> Store:
    """Return this test's own database, with all tables."""
    opened = database()
    migrate(opened, MIGRATIONS)
    return opened
