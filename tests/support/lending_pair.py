"""Two nodes in the test's loop: an owner whose engine is busy, and a helper it may lend to. The test is the master."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import msgspec

from domain.events import LinkAdded
from tests.support.local_nodes import (
    CHAT,
    LocalNode,
    client_of,
    grant_of,
    introduce,
    link_of,
    local_node,
    model_at,
    publish,
    signed,
)
from tests.support.odd_server import OddServer, odd_server
from tests.support.waiting import until

PATH = "/v1/chat/completions"
LENT = {"model": "theirs", **{name: value for name, value in CHAT.items() if name != "model"}}


class Pair(msgspec.Struct, kw_only=True):
    """An owner whose one engine slot is busy (depth 1), a helper with model `theirs`, and the link between them."""

    owner: LocalNode
    helper: LocalNode
    link: LinkAdded
    engine: OddServer
    """The owner's: it hangs."""
    helping: OddServer
    client: aiohttp.ClientSession
    busy: list["asyncio.Future[aiohttp.ClientResponse]"]
    versions: int = 0

    def grant(self, *, slots: int = 2, seen_by_helper: bool = True, url: str = "") -> None:
        """Let the owner have a lease."""
        self.versions += 1
        event_ = grant_of(self.link, self.owner, url or self.helper.url, version=self.versions, slots=slots)
        body = signed(event_, version=self.versions)
        assert publish(body, *([self.helper] if seen_by_helper else []), self.owner)

    def ask(self, **more: object) -> "asyncio.Future[aiohttp.ClientResponse]":
        """Send one request to the owner."""
        return asyncio.ensure_future(self.client.post(PATH, json=CHAT | more))

    async def held(self, **more: object) -> "asyncio.Future[aiohttp.ClientResponse]":
        """Send one request, and return once it is held."""
        before = self.owner.counts()[0]
        asking = self.ask(**more)
        await until("the request to be held", lambda: self.owner.counts()[0] > before)
        return asking


@contextlib.asynccontextmanager
async def pair(
    *, slots: int = 1, depth: int = 1, lane: str = "text", relays: tuple[str, ...] = ()
) -> AsyncIterator[Pair]:
    """Run the two, of models of `lane`; the owner asks `relays` when it cannot reach the helper."""
    async with (
        odd_server() as engine,
        odd_server() as helping,
        local_node([model_at(engine.url, lane=lane)], name="n1", depth=depth, relays=relays) as owner,
        local_node([model_at(helping.url, id="theirs", local_id="x", slots=slots, lane=lane)], name="n2") as helper,
        client_of(owner) as client,
    ):
        engine.script = engine.hang()
        link = link_of(owner, helper, "theirs")
        introduce(owner, helper, link)
        busy = asyncio.ensure_future(client.post(PATH, json=CHAT))
        await engine.arrived()
        made = Pair(owner=owner, helper=helper, link=link, engine=engine, helping=helping, client=client, busy=[busy])
        yield made
        for task in made.busy:
            task.cancel()
