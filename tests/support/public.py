"""The three public streams in memory, with events of each, and who reads them over HTTP."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from adapters.clock import SystemClock
from adapters.decisions import DecisionReader
from adapters.http.server import Call, HttpServer
from adapters.keys import Signer, new_nkey
from adapters.memory.stream import MemoryStream
from domain.events import Decision, Envelope, Input, LinkAdded
from domain.events.base import tag_of
from domain.events.codec import encode, raw, with_tag
from domain.subjects import CONTROL, DECISIONS, EVENTS, decision_subject
from services.projector.api_feed import LiveFeed, Pace
from services.projector.projector import Projector, Setup
from services.projector.routes import Desk, Routes
from services.projector.told import Told
from services.projector.webhooks import Supply
from tests.support.facts import CLUSTER, GENERATION, HELPER, LINK, MODEL, OWNER, Teller, control

SIGNER = Signer(new_nkey()[0])
"""The master's."""


class Public:
    """LW_EVENTS, LW_CONTROL and LW_DECISIONS in memory."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.told = Told(DecisionReader(CLUSTER, SIGNER.public))
        self.streams = {name: MemoryStream(name, self.clock, batch_max=50) for name in (EVENTS, CONTROL, DECISIONS)}
        self.owner, self.helper = Teller("n1"), Teller("n2")
        self.decisions = 0

    async def tell(self, *facts: Input, teller: Teller | None = None) -> None:
        said_by = teller or self.owner
        for fact in facts:
            await self.streams[EVENTS].publish(said_by.subject(fact), said_by.body(fact))

    @property
    def supply(self) -> Supply:
        """What webhooks live on."""
        return Supply(self.streams, self.clock, self.told)

    async def decide(self, *decisions: Decision, signer: Signer = SIGNER) -> None:
        for decision in decisions:
            self.decisions += 1
            envelope = Envelope(
                id=f"{GENERATION}-{self.decisions}-0",
                source=f"/{CLUSTER}/master",
                type=tag_of(decision),
                cluster=CLUSTER,
                producer="master",
                data=raw(decision),
            )
            encoded = encode(envelope)
            body = with_tag(encoded, "sig", signer.sign(encoded[:-1]))
            await self.streams[DECISIONS].publish(decision_subject(CLUSTER, decision), body)

    async def link(self) -> None:
        added = LinkAdded(link=LINK, owner=OWNER, owner_model=MODEL, helper=HELPER, helper_model=MODEL)
        subject, body = control(added)
        await self.streams[CONTROL].publish(subject, body)

    def desk(self) -> Desk:
        def never() -> Any:
            raise AssertionError("the feed asks no table")

        setup = Setup(cluster=CLUSTER, router="test", streams=self.streams, open_store=never, clock=self.clock)
        return Desk(Projector(setup), self.clock, self.told)


class Sent(NamedTuple):
    """One server-sent event."""

    id: str
    event: str
    data: str

    @property
    def place(self) -> str:
        """The place that its id says, whatever streams it is in."""
        return self.id.partition("@")[0]


class Reader:
    """Reads events as a browser does."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer, self.last_id, self.comments = answer, "", 0
        self._lines: list[str] = []

    async def next(self) -> Sent:
        """Return the next event that has data."""
        fields: dict[str, str] = {}
        while True:
            line = (await self.answer.content.readline()).decode()
            if not line:
                raise EOFError
            name, _, value = line.rstrip("\n").partition(": ")
            if line == "\n":
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    return Sent(self.last_id, fields.get("event", "message"), fields["data"])
                fields = {}
            elif line.startswith(":"):
                self.comments += 1
            else:
                fields[name] = value

    @property
    def place(self) -> str:
        """The place that the newest id says."""
        return self.last_id.partition("@")[0]

    async def take(self, count: int) -> list[Sent]:
        return [await self.next() for _ in range(count)]


class FeedServer:
    """The feed on a port."""

    def __init__(self, public: Public, pace: Pace) -> None:
        self.feed = LiveFeed(public.desk(), pace)
        self.routes = Routes()
        self.routes.add("/v1/lending/events", self.feed.answer)
        self.url = ""
        self.session: aiohttp.ClientSession

    async def handle(self, call: Call) -> Any:
        return await self.routes.answer(call)

    @asynccontextmanager
    async def reading(self, *, last_id: str = "", **query: str) -> AsyncIterator[Reader]:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        async with self.session.get(self.url, params=query, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            yield Reader(answer)

    async def refusal(self, **query: str) -> tuple[int, str]:
        async with self.session.get(self.url, params=query) as answer:
            said = (await answer.json())["error"]
            return answer.status, said["code"]


@asynccontextmanager
async def feed_of(public: Public, pace: Pace | None = None) -> AsyncIterator[FeedServer]:
    """Serve the feed of `public` for the length of the block."""
    served = FeedServer(public, pace or Pace())
    server = HttpServer(served.handle, connections_max=700, served_by="projector")
    served.url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}/v1/lending/events"
    try:
        async with aiohttp.ClientSession() as session:
            served.session = session
            yield served
    finally:
        await server.stop()


def kinds(sent: Sequence[Sent]) -> list[str]:
    return [each.event for each in sent]
