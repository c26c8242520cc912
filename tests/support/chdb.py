"""A real ClickHouse inside the test process: one engine for the session, a database of its own for each test.

    @pytest.mark.real
    def test_something(store): ...               # migrated
    def test_else(database): store = database()  # as many handles to one database as wanted, not migrated

chDB takes one directory a process, so nothing else in the test process may open one; other processes may, elsewhere.
With LEASEWAY_TEST_CLICKHOUSE=server the same tests run against a real server (`make server-tier`).
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.clickhouse.migrate import migrate
from adapters.clickhouse.store import Store, open_store
from projections.tables import MIGRATIONS
from tests.support.clickhouse_server import NoServerError, a_server

_NUMBERS = itertools.count(1)
_RUN = secrets.token_hex(3)
"""Tells the databases of this run from those of others on one server."""
ON_SERVER = os.environ.get("LEASEWAY_TEST_CLICKHOUSE") == "server"
MEMORY_BYTES = 8 * 1024 * 1024 * 1024
"""By the engine's own accounting each migrated database costs 14 MB for ever, of which it really takes one."""
embedded_only = pytest.mark.skipif(ON_SERVER, reason="about the embedded engine")


@pytest.fixture(scope="session")
def engine_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the dsn of this session's engine, which runs until the end."""
    directory: Path = tmp_path_factory.mktemp("clickhouse")
    if ON_SERVER:
        try:
            with a_server(directory) as url:
                yield url
        except NoServerError as error:
            pytest.skip(str(error))
        return
    dsn = f"chdb://{directory}"
    # starting takes half a second: the engine lives as long as one client does, with what the first one said of memory
    keeper = open_store(dsn, readers=1, memory_bytes=MEMORY_BYTES)
    yield dsn
    keeper.close()


@pytest.fixture
def database(engine_dsn: str) -> Iterator[Callable[[], Store]]:
    """Return what opens this test's own, empty database; what was opened is closed."""
    name = f"test_{_RUN}_{next(_NUMBERS)}"
    opened: list[Store] = []

    def open_it() -> Store:
        opened.append(open_store(engine_dsn, database=name, readers=1))
        return opened[-1]

    yield open_it
    if ON_SERVER and opened:
        open_store(engine_dsn, readers=1).command(f"DROP DATABASE IF EXISTS {name}")
    for store in opened:
        store.close()


@pytest.fixture
def store(database: Callable[[], Store]) -> Store:
    """Return this test's own database, with all tables."""
    opened = database()
    migrate(opened, MIGRATIONS)
    return opened
