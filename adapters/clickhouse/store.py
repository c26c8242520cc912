"""ClickHouse behind one class: embedded in this process (`chdb:///dir`) or a server (`http://user:password@host:8123/database`).

Everything here blocks; callers run it in a thread. One client writes, a few read, so that a slow query never holds up an insert.
The driver is an extra: it is imported when a store is opened, and nowhere else.
"""

import logging
import queue
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from xml.sax.saxutils import escape

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.newest import Newest
from domain.errors import BadConfigError, DataInUseError, StoreAwayError, StoreError, StoreSlowError

DATABASE: Final = "leaseway"
MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""Cap of an embedded engine's own accounting; it was seen to take 3.4 GB for one query without."""
READ_SECONDS_MAX: Final = 10
READ_BYTES_MAX: Final = 512 * 1024 * 1024
CONNECT_S, ANSWER_S = 5, 60
READ_ANSWER_S: Final = READ_SECONDS_MAX + 5
"""A query that ClickHouse ends by itself is waited for so long: what holds it up is not the query."""

_HAS_DATABASE: Final = "SELECT count() FROM system.databases WHERE name = {name:String}"
_OTHERS_WORDS: Final = re.compile(r"received HTTP status 50[234]\b")
"""What stands before ClickHouse says that it cannot reach it."""
NO_COLUMN: Final = 16
"""ClickHouse's code for a column that a table does not have."""
NO_TABLE: Final = 60
"""ClickHouse's code for a table that is not there."""

Parameters = Mapping[str, object]


class Store:
    """One database of one ClickHouse. Made by `open_store`."""

    def __init__(self, shown: str, database: str, writer: Any, readers: Sequence[Any], cluster: str = "") -> None:
        self.shown, self.database = shown, database
        """Where it is, without secrets."""
        self.cluster = cluster
        """Servers that hold the same tables; empty if there is one."""
        self.newest = Newest()
        """Where the newest rows of its tables were last seen."""
        self._writer, self._over_http = writer, shown.startswith("http")
        self._writing = threading.Lock()
        self._types: dict[str, Any] = {}
        """Types of a table's columns, so that each insert needs not ask."""
        self._readers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._clients = (writer, *readers)
        for reader in readers:
            self._readers.put(reader)

    @property
    def server_version(self) -> str:
        """Return ClickHouse's own version."""
        return str(self._writer.server_version)

    @property
    def is_shared(self) -> bool:
        """Tell whether other processes can open it as well: an embedded engine locks its directory."""
        return self._over_http

    def command(self, statement: str) -> None:
        """Run a statement that gives no rows.

        Raises:
            StoreError: it was refused, or (StoreAwayError) ClickHouse is not there.
        """
        with self._writing, _translated(self.shown):
            said = self._writer.command(statement)
            if hasattr(said, "query_id"):
                self._check(said.query_id())
            elif str(said).lstrip().startswith("<"):  # how it went on each server of a cluster comes without it too
                self._check("")

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, token: str) -> None:
        """Insert `rows` as one part; of several inserts with one `token`, one counts.

        Raises:
            StoreError: it was refused, or (StoreAwayError) whether it was taken is unknown.
        """
        self.insert_columns(table, dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)), token=token)

    def insert_columns(self, table: str, columns: Mapping[str, Sequence[Any]], *, token: str) -> None:
        """Insert rows that are given column by column; a column that is left out gets its default. Else as `insert`."""
        with self._writing, _translated(self.shown):
            types = self._types_of(table, columns)
            # not through a kept insert context: the driver then leaves `settings` out, without a word
            said = self._writer.insert(
                table,
                list(columns.values()),
                column_names=list(columns),
                column_types=[types[name] for name in columns],
                column_oriented=True,
                settings={
                    "insert_deduplication_token": token,
                    # off on servers before 26: a view's target would count a repeated insert twice
                    "deduplicate_blocks_in_dependent_materialized_views": 1,
                },
            )
            self._check(said.query_id())

    def _types_of(self, table: str, columns: Collection[str]) -> dict[str, Any]:
        """Return the types of a table's columns.

        Raises:
            StoreError: it lacks one of `columns`.
        """
        types = self._types.get(table)
        if types is None or not types.keys() >= set(columns):
            asked = self._writer.create_insert_context(table)
            types = dict(zip(asked.column_names, asked.column_types, strict=True))
            if lacking := sorted(set(columns) - types.keys()):
                rule = f"must have column {', '.join(lacking)}: somebody has altered it; a table that is dropped is made anew"
                raise StoreError(f"clickhouse {self.shown}: table {table}: {rule}", code=NO_COLUMN)
            self._types[table] = types
        return types

    def query(
        self, statement: str, parameters: Parameters | None = None, *, raw: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the rows of `statement`, each by column name; the columns `raw` come as bytes.

        Values reach ClickHouse only as `parameters`, which `statement` names as `{name:Type}`.

        Raises:
            StoreError: it was refused or too heavy, or (StoreAwayError) ClickHouse is not there.
        """
        try:
            reader = self._readers.get(timeout=READ_SECONDS_MAX)
        except queue.Empty:
            raise StoreError(f"clickhouse {self.shown}: every reader is busy for {READ_SECONDS_MAX} s") from None
        try:
            with _translated(self.shown):
                result = reader.query(
                    statement,
                    parameters=dict(parameters or {}),
                    settings={"max_execution_time": READ_SECONDS_MAX, "max_memory_usage": READ_BYTES_MAX},
                    column_formats=dict.fromkeys(raw, "bytes"),
                )
                self._check(result.query_id)
                return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]
        finally:
            self._readers.put(reader)

    def _check(self, query_id: str) -> None:
        """Check that ClickHouse itself has answered, which repeats the name of each query.

        Some page in its place may be glad to take an insert.

        Raises:
            StoreAwayError: something else did.
        """
        if not query_id and self._over_http:
            raise StoreAwayError(f"clickhouse {self.shown}: something else answers in its place")

    def close(self) -> None:
        """Let go of ClickHouse; an embedded engine ends with its last client."""
        with self._writing:
            for client in self._clients:
                client.close()


def open_store(
    dsn: str, *, database: str = "", memory_bytes: int = MEMORY_BYTES, readers: int = 2, cluster: str = ""
) -> Store:
    """Return the store at `dsn`, its database made if it was not there.

    `database`: default is the one that an http dsn names in its path, else `leaseway`. `cluster`: name that the server knows
    its cluster by; tables are then replicated over it.

    Raises:
        BadConfigError: the dsn is none, or its driver is not installed.
        DataInUseError: another process holds the embedded engine's directory.
        StoreAwayError: no server answers there.
    """
    parts = _checked(dsn)
    shown = _shown(parts)
    get_client = _driver(dsn, shown)
    options: dict[str, Any]
    if parts.scheme == "chdb":
        options = {"interface": "chdb", "path": parts.path, "chdb_options": _embedded(Path(parts.path), memory_bytes)}
    else:
        options = {"dsn": parts._replace(path="").geturl(), "autogenerate_session_id": False}
        options |= {"connect_timeout": CONNECT_S, "send_receive_timeout": ANSWER_S}
        database = database or parts.path.strip("/")
    database = database or DATABASE
    with _translated(shown):
        first = get_client(**options)
        try:
            # nothing is written where all is there: one that takes no writes just now still answers questions
            if cluster or not first.command(_HAS_DATABASE, parameters={"name": database}):
                first.command(on_cluster(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}", cluster))
            writer = get_client(**options, database=database)
            if parts.scheme != "chdb":
                options["send_receive_timeout"] = READ_ANSWER_S
            others = [get_client(**options, database=database) for _ in range(readers)]
        finally:
            first.close()
    return Store(shown, database, writer, others, cluster)


def broken_rule(dsn: str) -> str:
    """Return the rule that `dsn` breaks; empty if it is a dsn."""
    try:
        parts = urlsplit(dsn)
        port_fits = parts.port is None or parts.port > 0
    except ValueError:
        return "must be a URL, its host or port cannot be read"
    if parts.scheme == "chdb":
        return "must name an absolute directory (chdb:///dir)" if parts.netloc or len(parts.path) < 2 else ""
    if parts.scheme not in {"http", "https"} or not port_fits:
        return "must begin with chdb://, http:// or https://"
    return "" if parts.hostname else "must name a host (http://host:8123/database)"


def _checked(dsn: str) -> SplitResult:
    if rule := broken_rule(dsn):
        raise BadConfigError(f"clickhouse.dsn: {rule}")
    return urlsplit(dsn)


def _shown(parts: SplitResult) -> str:
    """Return a dsn without user and password."""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"[:200]


def _driver(dsn: str, shown: str) -> Any:
    embedded = dsn.startswith("chdb:")
    try:
        from clickhouse_connect import get_client  # noqa: PLC0415  # an extra: a node or gateway runs without it

        if embedded:
            import chdb  # noqa: F401, PLC0415  # the same
    except ImportError as error:
        extra = "embedded" if embedded else "clickhouse"
        missing = error.name or "clickhouse_connect"
        raise BadConfigError(
            f"clickhouse {shown}: needs the package {missing}, which is not installed: pip install 'leaseway[{extra}]'"
        ) from None
    # each of its errors is raised too, and said once by whoever acts on it
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    return get_client


def _embedded(directory: Path, memory_bytes: int) -> dict[str, str]:
    """Return the engine's options: a configuration file beside its data, since it takes limits from nowhere else."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = {
        "max_server_memory_usage": memory_bytes,
        "mark_cache_size": 64 * 1024 * 1024,
        "background_pool_size": 2,
        "background_schedule_pool_size": 4,
    }
    lines = "".join(f"  <{name}>{escape(str(value))}</{name}>\n" for name, value in settings.items())
    file = directory / "leaseway.xml"
    file.write_text(f"<clickhouse>\n{lines}</clickhouse>\n", encoding="utf-8")
    return {"config-file": str(file)}


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


@contextmanager
def _translated(shown: str) -> Iterator[None]:
    """Raise what the driver raises as an error of ours."""
    from clickhouse_connect.driver import exceptions  # noqa: PLC0415  # as in _driver

    try:
        yield
    except (exceptions.OperationalError, exceptions.StreamFailureError, OSError) as error:
        raise _away(shown, error) from error
    except exceptions.ProgrammingError as error:
        if "Error initializing EmbeddedServer" in str(error):
            raise DataInUseError(f"clickhouse {shown}: another process holds this directory") from None
        raise StoreError(f"clickhouse {shown}: {_reason(error)}") from error
    except exceptions.ClickHouseError as error:
        code = getattr(error, "code", None)
        if code is None and _OTHERS_WORDS.search(str(error)):
            raise StoreAwayError(f"clickhouse {shown}: {_reason(error)}") from error
        raise StoreError(f"clickhouse {shown}: {_reason(error)}", code=code if isinstance(code, int) else 0) from error


def _away(shown: str, error: Exception) -> StoreAwayError:
    if "Read timed out" in str(error):
        return StoreSlowError(f"clickhouse {shown}: has not answered in time")
    return StoreAwayError(f"clickhouse {shown}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return the first 300 characters of what went wrong, on one line."""
    text = " ".join(str(error).split())
    if "HTTPConnectionPool" in text or "HTTPSConnectionPool" in text:
        return "does not answer"  # the driver's words are a URL with all its parameters
    return text.partition(" In scope ")[0][:300] or type(error).__name__  # what follows is the whole statement
