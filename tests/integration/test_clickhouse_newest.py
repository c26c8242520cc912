"""The newest rows are the newest rows, whatever was guessed of where they begin; on a real ClickHouse engine."""

import re
from typing import Any

import pytest

from adapters.clickhouse import folds, newest, queries
from adapters.clickhouse.newest import Newest
from adapters.clickhouse.queries import Asked
from adapters.clickhouse.sink import DAY_NS, Sink, highest
from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from domain.ports import StoredMessage
from domain.subjects import EVENTS, LEDGER
from projections.folds import FOLDED_BY
from projections.project import LAST_TABLE, Context, project
from projections.tables import RETAINED, column_names
from tests.support.facts import Teller, lent

pytestmark = pytest.mark.real

NOON_NS = SystemClock().wall_us() * 1000 // DAY_NS * DAY_NS - DAY_NS // 2
NAMES = column_names("decisions")
ASKED = (
    Asked(limit=5),
    Asked(limit=40, filters={"owner": "n2"}),
    Asked(limit=200),
    Asked(limit=5, filters={"side": "owner", "kind": "nothing of the kind"}),
    Asked(limit=5, until_ns=NOON_NS),
)


def put(store: Store, node: str, first: int, last: int, *, at_ns: int, epoch: int = 1) -> None:
    """Let `node` tell facts `first` to `last` of LW_EVENTS."""
    teller = Teller(node, pseq=first - 1)
    told: list[StoredMessage] = [teller.tells(lent(seq), seq, at_ns=at_ns + seq) for seq in range(first, last + 1)]
    sink = Sink(store, RETAINED, last_table=LAST_TABLE)
    sink.reached(EVENTS, epoch)
    sink.write(EVENTS, epoch, project(EVENTS, epoch, told, Context(router="test")).rows)


@pytest.fixture
def history(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Three days' parts; the last facts are of the first day, since the server's clock was set back."""
    monkeypatch.setattr(newest, "DEPTH", 20)
    put(store, "n1", 1, 60, at_ns=NOON_NS - DAY_NS)
    put(store, "n2", 61, 90, at_ns=NOON_NS)
    put(store, "n1", 91, 130, at_ns=NOON_NS)
    put(store, "n1", 131, 150, at_ns=NOON_NS - DAY_NS)
    return store


def answers(store: Store, asked: Asked) -> tuple[Any, Any]:
    return queries.decisions(store, NAMES, asked), folds.folded(store, NAMES, FOLDED_BY, asked)


def test_no_answer_depends_on_what_was_guessed(history: Store):
    for asked in ASKED:
        history.newest = Newest()
        plain = answers(history, asked)
        for guess in ((1, 150), (1, 60), (1, 100_000), (2, 50)):
            history.newest._known[("decisions", EVENTS)] = guess
            assert answers(history, asked) == plain, (guess, asked)
        assert plain[0][0] or "kind" in asked.filters


def test_what_comes_after_a_question_is_in_the_next_answer_and_a_new_life_of_the_stream_too(history: Store):
    assert queries.decisions(history, NAMES, Asked(limit=5))[0][-1]["seq"] == 150

    put(history, "n3", 151, 400, at_ns=NOON_NS)
    assert [row["seq"] for row in queries.decisions(history, NAMES, Asked(limit=3))[0]] == [398, 399, 400]

    put(history, "n3", 1, 4, at_ns=NOON_NS + 10, epoch=2)
    found = queries.decisions(history, NAMES, Asked(limit=6))[0]
    assert sorted((row["epoch"], row["seq"]) for row in found) == [(1, 399), (1, 400), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_second_question_for_the_newest_reads_a_bounded_part(history: Store, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    plain = Store.query

    def listened(self: Store, text: str, *args: Any, **more: Any) -> list[dict[str, Any]]:
        said.append(text)
        return plain(self, text, *args, **more)

    monkeypatch.setattr(Store, "query", listened)
    first = queries.decisions(history, NAMES, Asked(limit=5, filters={"side": "owner"}))
    again = queries.decisions(history, NAMES, Asked(limit=5, filters={"side": "owner"}))
    assert first == again
    assert ["from_seq" in text for text in said] == [False, True]


def test_a_place_in_a_stream_is_found_by_the_primary_index(history: Store, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, dict[str, Any]]] = []
    plain = Store.query

    def listened(self: Store, text: str, parameters: dict[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
        asked.append((text, parameters or {}))
        return plain(self, text, parameters, **more)

    monkeypatch.setattr(Store, "query", listened)
    cursor = queries.decisions(history, NAMES, Asked(limit=5, filters={"side": "owner"}))[1]
    queries.decisions(history, NAMES, Asked(limit=5, filters={"side": "owner"}))
    queries.decisions(history, NAMES, Asked(limit=5, filters={"side": "owner"}, after=cursor))
    folds.folded(history, NAMES, FOLDED_BY, Asked(limit=5, filters={"side": "owner"}))
    of_places = [(text, values) for text, values in asked if {"from_seq", "seq", "seqs"} & values.keys()]
    assert len(of_places) == 4, "newest with a bound, after a cursor, runs with a bound, the runs' rows"
    for text, values in of_places:
        said = [str(*row.values()) for row in plain(history, f"EXPLAIN indexes = 1 {text}", values)]
        by_index = next(line for line in said if "Condition: and(" in line)
        assert "(epoch in [1, +Inf))" in by_index, text
        assert re.search(r"seq in (\[|4-element)", by_index), text


def test_a_table_that_lost_its_newest_rows_is_known_as_it_is_after_one_question(history: Store):
    history.newest._known[("decisions", EVENTS)] = (1, 100_000)
    queries.decisions(history, NAMES, Asked(limit=5))
    assert history.newest._known[("decisions", EVENTS)] == (1, 150)


def test_the_highest_sequence_is_found_wherever_it_is_looked_for_first(history: Store):
    for noted in (0, 1, 149, 150, 151, 100_000):
        assert highest(history, "decisions", EVENTS, 1, noted=noted) == 150
        assert highest(history, "decisions", EVENTS, 2, noted=noted) == 0
        assert highest(history, "decisions", LEDGER, 1, noted=noted) == 0
