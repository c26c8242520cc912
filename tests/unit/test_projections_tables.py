"""The schema's text is the one source: of the rows' shapes, of the reference, and of what was released."""

from collections import Counter
from pathlib import Path

import pytest

from adapters.clickhouse.migrate import digest_of
from projections.reference import reference
from projections.rows import Place, block, row
from projections.tables import MIGRATIONS, RETAINED, SCHEMA_VERSION, TABLES, blank, column_names

ROOT = Path(__file__).parents[2]
RELEASED = {
    1: "3b5766956e263d382028a9324f736863",
    2: "f633be796185abc7e3766201bc543cde",
    3: "a7d264c65596acc03d839a32c00d16c1",
    4: "906a718557f076868aa51dbebab38560",
    5: "2b4da61e0a98582317c7133150ff0204",
}
"""Add a line for each new migration; a line that is here never changes."""
STATEMENTS = [statement for step in MIGRATIONS for statement in step.statements]
ADDED = [line for text in STATEMENTS for line in text.splitlines() if line.startswith("  ADD COLUMN")]


def test_a_released_migration_is_never_edited():
    assert {step.number: digest_of(step) for step in MIGRATIONS} == RELEASED


def test_migrations_are_numbered_without_gaps_and_the_newest_is_the_schema_version():
    assert [step.number for step in MIGRATIONS] == list(range(1, SCHEMA_VERSION + 1))


def test_the_reference_of_the_tables_is_current():
    page = ROOT / "docs" / "reference" / "tables.md"
    assert page.read_text(encoding="utf-8") == reference(), "run python docs/reference/tables.py"


def test_every_column_line_of_every_statement_is_understood():
    lines = Counter[str]()
    for statement in STATEMENTS:
        table = statement.removeprefix("CREATE TABLE IF NOT EXISTS ").removeprefix("ALTER TABLE ").split()[0]
        lines[table] += sum(
            line.startswith("  ") and not line.startswith(("  INDEX", "  COMMENT COLUMN"))
            for line in statement.splitlines()
        )
    assert {name: len(table.columns) for name, table in TABLES.items()} == lines


def test_a_column_that_a_later_migration_adds_or_rewords_stands_in_the_table_as_it_leaves_it():
    columns = {column.name: column for column in TABLES["decisions"].columns}
    assert list(columns)[-12:] == [line.split()[5] for line in ADDED]
    assert columns["probe_in_us"].default == "-1"
    assert columns["outcome"].about.startswith("Plan: granted, probe, skipped, left_out or none; health, breaker")


def test_every_table_of_messages_begins_with_the_place_of_the_message_and_is_parted_by_the_day_of_its_stamp():
    for name in RETAINED:
        assert column_names(name)[:4] == ("stream", "epoch", "seq", "at_ns"), name
        statement = next(text for text in STATEMENTS if f" {name} (" in text)
        assert "PARTITION BY day" in statement
        assert "non_replicated_deduplication_window = 10000" in statement
        assert TABLES[name].order_by.startswith("stream, epoch, seq"), "the key must not move between partitions"


def test_a_row_with_a_column_that_its_table_lacks_is_refused():
    with pytest.raises(ValueError, match="table requests: has no column prompt"):
        block("requests", [row(Place("LW_EVENTS", 1, 1, 1), {"prompt": "hello"})])


def test_what_is_not_known_is_told_from_zero():
    unknown = ("drain_us", "lent_drain_us", "owner_job_us", "idle_us", "probe_in_us")
    assert {blank("decisions")[name] for name in unknown} == {-1}


def test_no_column_can_hold_a_prompt_or_an_answer():
    names = {column.name for table in TABLES.values() for column in table.columns}
    assert not names & {"prompt", "messages", "content", "answer", "text", "choices"}
