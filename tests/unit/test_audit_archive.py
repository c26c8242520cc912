"""An audit of ClickHouse beside a live master: the ledger ends where it ended, and its facts are waited for."""

import base64
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.log.copied import CopiedStream
from adapters.log.verify import Part
from domain.events.commit import decode_commit
from domain.ports import StoredMessage
from services.cli.audit_source import Source, opened
from services.cli.audit_workers import verified
from tests.support.audited import Lived, lived_on
from tests.support.history import CLUSTER


@pytest.fixture(scope="module")
def lived() -> Lived:
    return lived_on()


class Behind:
    """An archive whose ledger is ahead of its facts, and grows each time that it is looked at."""

    def __init__(self, held: dict[str, list[StoredMessage]], *, commits: int, folded: int) -> None:
        self._held, self._commits, self._folded = held, commits, folded
        self.looked = 0

    async def answer(self, request: web.Request) -> web.Response:
        stream, after, limit = (request.query[name] for name in ("stream", "after", "limit"))
        held = self._held[stream]
        if stream == "LW_LEDGER":
            held, self._commits = held[: self._commits], self._commits + 1
        elif stream == "LW_EVENTS" and self.looked < 3:
            held, self.looked = held[: self._folded], self.looked + 1
        found = held[int(after) : int(after) + int(limit)]
        rows = [
            {
                "seq": each.seq,
                "stamp_ns": each.stamp_ns,
                "subject": each.subject,
                "headers": base64.b64encode(each.headers).decode(),
                "body": base64.b64encode(each.body).decode(),
            }
            for each in found
        ]
        return web.json_response({"stream": stream, "first": 1, "last": len(held), "messages": rows})


@pytest.fixture
async def url(lived: Lived) -> AsyncIterator[str]:
    held: dict[str, list[StoredMessage]] = {}
    for stream in (lived.streams.events, lived.streams.control, lived.streams.ledger):
        assert isinstance(stream, CopiedStream)
        held[stream.name] = [message async for batch in stream.read(after=0) for message in batch]
    folded = decode_commit(held["LW_LEDGER"][99].body).hi - 1
    app = web.Application()
    app.router.add_get("/admin/v1/archive", Behind(held, commits=100, folded=folded).answer)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


async def test_facts_that_are_not_projected_yet_are_no_difference(url: str):
    source = Source(kind="archive", cluster=CLUSTER, projector_url=url)
    async with opened(source) as place:
        report = await verified(source, place, Part(), workers=1, fold_max=1000, progress=lambda _, __: None)
    assert report.differences == []
    assert 100 <= report.commits < 110
