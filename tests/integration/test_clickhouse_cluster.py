"""The schema for a cluster of servers: it says what it should, ClickHouse reads it, and an engine with a keeper makes it."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from adapters.clickhouse.dialect import on_cluster
from adapters.clickhouse.store import Store
from domain.errors import StoreError
from projections.rollups import ROLLUPS
from projections.tables import MIGRATIONS, RETAINED
from services.cli.projections import schema

ROOT = Path(__file__).parents[2]


def statements(cluster: str) -> list[str]:
    return [text for text in schema(cluster).split(";\n\n") if text]


def test_for_one_server_the_schema_is_the_migrations_text():
    said = [statement.rstrip() for step in MIGRATIONS for statement in step.statements]
    assert statements("")[: len(said)] == said


def test_for_a_cluster_every_statement_names_it_and_every_table_is_replicated():
    for plain, replicated in zip(statements(""), statements("main"), strict=True):
        assert replicated.count(" ON CLUSTER 'main'") == 1, replicated[:80]
        assert replicated.count("ENGINE = Replicated") == plain.count("ENGINE = "), replicated[:80]
        assert "non_replicated" not in replicated
        back = replicated.replace(" ON CLUSTER 'main'", "").replace("ENGINE = Replicated", "ENGINE = ")
        back = back.replace("('/clickhouse/tables/{uuid}/{shard}', '{replica}')", "")
        back = back.replace("('/clickhouse/tables/{uuid}/{shard}', '{replica}', ", "(")
        assert (
            back.replace("SETTINGS replicated", "SETTINGS non_replicated").replace(", replicated", ", non_replicated")
            == plain
        )


@pytest.mark.parametrize("statement", ["SELECT 1", "INSERT INTO a SELECT * FROM b", "TRUNCATE TABLE a"])
def test_what_makes_no_schema_runs_where_it_is(statement: str):
    assert on_cluster(statement, "main") == statement


@pytest.mark.real
def test_clickhouse_reads_every_statement_of_the_schema(store: Store):
    for statement in statements("main"):
        store.command(f"EXPLAIN AST {statement}")
    with pytest.raises(StoreError, match="Syntax error"):
        store.command("EXPLAIN AST CREATE TABLE a ON CLUSTER")


@pytest.mark.real
async def test_every_replicated_table_is_really_made_by_an_engine_with_a_keeper(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.replicated_child", str(tmp_path / "clickhouse")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    told = json.loads(out)
    for table in (*RETAINED, "projector_state", "gaps"):
        assert told[table].startswith("ReplicatedReplacingMergeTree('/clickhouse/tables/"), table
    for rollup in ROLLUPS:
        assert told[rollup.table].startswith("ReplicatedSummingMergeTree('/clickhouse/tables/"), rollup.table
        assert rollup.view in told
    assert told.pop("writers").startswith("ReplicatedReplacingMergeTree('/clickhouse/tables/")
    assert all("replicated_deduplication_window = 10000" in text for text in told.values() if text)
