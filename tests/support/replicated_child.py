"""Replicated tables in a process of its own: a real engine whose keeper lives in its memory.

    python -m tests.support.replicated_child DIRECTORY

An embedded engine runs nothing ON CLUSTER; where a table is made, the id that this would give it stands in the statement instead.
It carries out no entry of a replication log, so tables are made and that is all. Prints what was made.
"""

import json
import os
import re
import sys
import uuid
from pathlib import Path

from adapters.clickhouse import store as store_module
from adapters.clickhouse.store import Store, open_store
from services.cli.projections import schema

CLUSTER = "main"
_CONFIG = """\
  <zookeeper><implementation>testkeeper</implementation></zookeeper>
  <macros><shard>1</shard><replica>one</replica></macros>
"""
_EMBEDDED = store_module._embedded


def _configured(directory: Path, memory_bytes: int) -> dict[str, str]:
    said = _EMBEDDED(directory, memory_bytes)
    file = Path(said["config-file"])
    file.write_text(file.read_text().replace("</clickhouse>", f"{_CONFIG}</clickhouse>"))
    return said


def make_tables(store: Store) -> None:
    """Make every table and view of the schema, as a cluster is told."""
    for statement in schema(CLUSTER).split(";\n\n"):
        if statement.startswith("CREATE"):
            in_its_place = f" UUID '{uuid.uuid4()}'" if statement.startswith("CREATE TABLE") else ""
            store.command(re.sub(f" ON CLUSTER '{CLUSTER}'", in_its_place, statement))


def main(directory: str) -> None:
    store_module._embedded = _configured
    store = open_store(f"chdb://{directory}", readers=1)
    make_tables(store)
    engines = store.query("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
    sys.stdout.write(json.dumps({row["name"]: row["engine_full"] for row in engines}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # replicated tables of an embedded engine never end by themselves


if __name__ == "__main__":
    main(sys.argv[1])
