"""The pages of the decision log, on a real ClickHouse: from the newest to the oldest, no row is missing and there is an end."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest

from adapters.clickhouse.store import Store
from adapters.clock import SystemClock
from services.console.pages import ROWS, ROWS_MAX
from services.texts.sentences import said as sentence_of
from tests.integration.test_projector_api import Client
from tests.support.console_pages import Seen, look
from tests.support.console_peers import console
from tests.support.facts import Teller, finished, held, lent, plan, verdict
from tests.support.projections import Bus, SteppedClock, a_projector, caught_up, running

pytestmark = pytest.mark.real
HOUR_US = 3_600_000_000


@pytest.fixture
async def client(database: Callable[[], Store]) -> AsyncIterator[Client]:
    bus = Bus(SteppedClock(SystemClock().wall_us() - HOUR_US, step_us=1_000))  # older rows are forgotten
    projector = a_projector(bus, database)
    async with running(projector), Client(projector, bus) as client:
        await projector.tried.wait()
        yield client


async def planned(client: Client, *candidates: int) -> None:
    """Store commits that plan so many candidates each, and a few facts between them."""
    teller, number = Teller("n1"), 0
    for at, count in enumerate(candidates):
        verdicts = [verdict(helper=f"h{each}", outcome="skipped", code="cost_rejected") for each in range(count)]
        await client.bus.commit(plan(*verdicts))
        for _ in range(at + 1):
            await client.bus.tell(teller, held(number), lent(number), finished(number, helper="n2"))
            number += 1
    await caught_up(client.projector, await client.bus.ends())


async def turned(client: Client, data: Path, **query: str) -> list[Seen]:
    """Return page after page, as somebody sees them who goes on to older ones until there are none."""
    pages: list[Seen] = []
    async with console(data, projector=client._url) as url, aiohttp.ClientSession() as http:
        while True:
            pages.append(await look(http, f"{url}/decisions", **query))
            older = [link for link in pages[-1].links() if link.startswith("/decisions?")]
            if not older:
                return pages
            assert len(pages) < 20, "there is no end"
            query = dict(parse_qsl(urlsplit(older[0]).query))


def rows_of(pages: list[Seen]) -> list[tuple[str, ...]]:
    return [tuple(row.values()) for page in pages for row in page.rows("when (UTC)")]


async def all_rows(client: Client, **query: str) -> list[dict[str, Any]]:
    """Return the rows of the read API, by its own pages, the newest first."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        rows, after = await client.rows("/v1/decisions", limit=1000, after=after, **query)
        if not rows:
            return found[::-1]
        found += rows


@pytest.mark.parametrize(
    "commits",
    [
        pytest.param((70, 5, 90, 60, 80, 110, 30), id="pages that end within a commit"),
        pytest.param((40, ROWS, 40, ROWS + 90, 12), id="commits of more rows than a page"),
        pytest.param((ROWS,), id="a commit of as many as a page"),
    ],
)
async def test_older_pages_lose_no_row_and_end(client: Client, tmp_path: Path, commits: tuple[int, ...]):
    await planned(client, *commits)
    pages = await turned(client, tmp_path, rows="all", kind="plan")
    assert not any(page.status != 200 or "left out" in page.raw for page in pages)
    stored = await all_rows(client, kind="plan")
    assert len(stored) == sum(commits)
    shown = rows_of(pages)
    assert {(row[0], row[3], row[4]) for row in shown} == {
        (row["at"], row["helper"], sentence_of(row)) for row in stored
    }
    assert [row[0] for row in shown] == sorted((row[0] for row in shown), reverse=True), "the newest first"


async def test_older_pages_of_runs_of_the_same_go_back_to_the_first_one(client: Client, tmp_path: Path):
    for first in range(0, 240, 20):
        names = (f"h{number}" for number in range(first, first + 60))
        verdicts = [verdict(helper=name, outcome="skipped", code="cost_rejected") for name in names]
        await client.bus.commit(plan(*verdicts))
    await caught_up(client.projector, await client.bus.ends())
    pages = await turned(client, tmp_path)
    assert len(pages) > 1
    shown = rows_of(pages)
    assert {row[3] for row in shown} == {f"h{number}" for number in range(280)}
    assert any(row[4].endswith("(3 times)") for row in shown)
    assert not any(page.status != 200 or "left out" in page.raw for page in pages)


async def test_of_more_rows_of_one_moment_than_can_be_shown_the_page_says_that_some_are_left_out(
    client: Client, tmp_path: Path
):
    await planned(client, 12, ROWS_MAX + 5, 7)
    pages = await turned(client, tmp_path, rows="all", kind="plan")
    assert f"the newest {ROWS_MAX} of one moment: what else it has is left out" in " ".join(
        page.text.get("p", "") for page in pages
    )
    helpers = [row[3] for row in rows_of(pages)]
    assert len(set(rows_of(pages))) == 12 + ROWS_MAX + 7
    assert helpers[-1] == "h0", "what came before that moment is shown all the same"
