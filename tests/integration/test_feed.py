"""`GET /v1/lending/events`: every event once, in order, from any place; slow readers and too many of them harm nobody."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec
import pytest

from adapters.keys import Signer, new_nkey
from adapters.log.public import Place
from domain.errors import NotAllowedError
from domain.events import BorrowAccepted
from domain.ports import StoredMessage
from domain.subjects import DECISIONS, EVENTS
from services.projector import api_feed, live
from services.projector.api_feed import Pace
from tests.support.facts import HELPER, LINK, MODEL, OWNER, Teller, finished, granted, held, lease, lent, request
from tests.support.public import FeedServer, Public, feed_of, kinds
from tests.support.waiting import until

THIEF = Signer(new_nkey()[0])


@pytest.fixture
async def public() -> Public:
    """One link, two held requests, a lease, one lent over it: five events, in this order."""
    made = Public()
    await made.link()
    await made.tell(held(1), held(2))
    await made.decide(granted())
    await made.tell(lent(1))
    return made


@pytest.fixture
async def feed(public: Public) -> AsyncIterator[FeedServer]:
    async with feed_of(public, Pace(silence_s=0.1, linger_s=0.1)) as served:
        yield served


STORY = ["control.link_added", "queue.held", "queue.held", "lease.granted", "lend.lent"]


async def test_a_reader_gets_what_is_stored_in_order_and_then_what_comes(feed: FeedServer, public: Public) -> None:
    async with feed.reading(since="0") as reader:
        told = await reader.take(5)
        assert kinds(told) == STORY
        assert json.loads(told[4].data)["data"]["request"] == request(1)
        await public.tell(finished(1))
        await public.decide(granted(slots=1))
        assert sorted(kinds(await reader.take(2))) == ["lease.granted", "queue.finished"]


async def test_a_reader_that_says_nothing_gets_what_comes_from_now_on(feed: FeedServer, public: Public) -> None:
    async with feed.reading() as reader:
        await public.tell(finished(2))
        assert kinds([await reader.next()]) == ["queue.finished"]


async def test_a_reader_that_was_cut_off_goes_on_after_the_last_event_it_got(feed: FeedServer, public: Public) -> None:
    seen: list[str] = []
    last = ""
    for _ in STORY:
        query = {} if last else {"since": "0"}
        async with feed.reading(last_id=last, **query) as reader:
            sent = await reader.next()
            seen.append(sent.event)
            last = sent.id
    assert seen == STORY
    await public.tell(finished(1))
    async with feed.reading(last_id=last, since="0") as reader:  # the browser repeats its query
        assert kinds([await reader.next()]) == ["queue.finished"]


async def test_a_reader_that_had_read_the_streams_in_another_order_gets_what_it_lacks_of_each_and_nothing_again(
    feed: FeedServer, public: Public
) -> None:
    async with feed.reading(since="0") as other:  # what is told is kept for all
        await other.take(5)
        async with feed.reading(last_id="1-0-1") as reader:
            told = await reader.take(3)
            assert [(each.event, each.place) for each in told] == [
                ("control.link_added", "1-1-1"),
                ("queue.held", "2-1-1"),
                ("lend.lent", "3-1-1"),
            ]


async def test_a_reader_joins_at_a_time_a_duration_or_a_sequence(feed: FeedServer, public: Public) -> None:
    told_us = public.clock.wall_us()
    moment = await until("a later moment", lambda: later_than(told_us))
    await public.tell(finished(1))
    for since, first in (
        (moment, "queue.finished"),
        ("1h", STORY[0]),
        (f"{EVENTS}:3", "lend.lent"),
        (f"{DECISIONS}:1", "lease.granted"),
    ):
        async with feed.reading(since=since) as reader:
            assert (since, (await reader.next()).event) == (since, first)


def later_than(wall_us: int) -> str:
    """Return the time it is if that is later; empty if it is not yet."""
    now = datetime.now(UTC)
    return now.isoformat() if now.timestamp() * 1e6 > wall_us + 10 else ""


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"kind": "lease.*,lend.lent"}, ["lease.granted", "lend.lent"]),
        ({"subject": "lw.local.lease.>"}, ["lease.granted"]),
        ({"subject": "lw.local.node.*.queue.>"}, ["queue.held", "queue.held"]),
        ({"owner": OWNER, "kind": "queue.*,lease.*"}, ["queue.held", "queue.held", "lease.granted"]),
        ({"helper": HELPER}, ["control.link_added", "lease.granted", "lend.lent", "borrow.accepted"]),
        ({"model": "another/model"}, ["queue.finished"]),
    ],
)  # fmt: skip
async def test_a_reader_gets_what_it_filters_for(
    feed: FeedServer, public: Public, query: dict[str, str], told: list[str]
):
    taken = BorrowAccepted(request=request(1), model=MODEL, owner=OWNER, link=LINK, lease=lease(), position=1)
    await public.tell(taken, teller=public.helper)
    await public.tell(finished(3, model="another/model"))  # type: ignore[arg-type]
    async with feed.reading(since="0", **query) as reader:
        assert kinds(await reader.take(len(told))) == told


async def test_a_day_without_its_hour_is_no_place_to_begin_at_and_an_id_that_reads_as_one_is(feed: FeedServer) -> None:
    async with feed.session.get(feed.url, params={"since": "2026-11-30"}) as answer:
        said = await answer.json()
    assert (answer.status, said["error"]["code"]) == (400, "bad_query")
    assert "2026-11-30T00:00:00Z" in said["error"]["message"]
    assert "Last-Event-ID" in said["error"]["message"]
    async with feed.reading(last_id="2026-11-30") as reader:
        missed = [json.loads((await reader.next()).data)["after"] for _ in range(3)]
    assert missed == [2026, 11, 30]


async def test_silence_is_broken_by_comments_that_move_the_place(feed: FeedServer, public: Public) -> None:
    async with feed.reading(kind="safe_mode.*") as reader:
        await public.tell(finished(1))
        waiting = asyncio.ensure_future(reader.next())
        await until("a comment with the place", lambda: reader.comments > 1 and reader.place == "4-1-1")
        waiting.cancel()


async def test_what_a_node_stores_under_its_name_that_is_no_event_of_its_is_not_told(
    feed: FeedServer, public: Public
) -> None:
    stream, rogue = public.streams[EVENTS], Teller("n2")
    fact = held(9)
    other, lie = rogue.subject(fact), Teller("n1").body(fact)
    await stream.publish(other, lie)
    await stream.publish(other, b'{"not":"an event"}')
    await stream.publish(other, b'{"id":"x","type":"queue.held\\n\\ndata: forged","producer":"n2","data":{}}')
    await stream.publish(other, rogue.body(finished(9)))
    await public.tell(finished(1))
    async with feed.reading(since=f"{EVENTS}:4") as reader:
        assert kinds([await reader.next()]) == ["queue.finished"]
        assert reader.last_id.startswith("8-")


async def test_a_lease_that_the_master_has_not_signed_is_not_told(feed: FeedServer, public: Public) -> None:
    await public.decide(granted(slots=7), signer=THIEF)  # by whoever stole the key that lets a master in to the bus
    await public.decide(granted(slots=3))
    async with feed.reading(since=f"{DECISIONS}:1", kind="lease.*") as reader:
        told = await reader.take(2)
    assert [json.loads(each.data)["data"]["slots"] for each in told] == [2, 3]
    assert told[1].place.endswith("-3")
    assert public.told.refused == 1


async def test_a_reader_that_is_further_behind_than_what_is_kept_for_all_misses_nothing(
    feed: FeedServer, public: Public, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_KEPT_MAX", 7)
    async with feed.reading(kind="queue.finished") as reader, feed.reading(since="0") as late:
        for seq in (63, 123, 183, 243):
            await public.tell(*(finished(number) for number in range(60)))
            assert (await reader.take(60))[-1].place == f"{seq}-1-1"
            assert len(feed.feed._live._kept) <= 7
        assert [each.id.partition("-")[0] for each in await late.take(245) if each.event == "queue.finished"] == [
            str(seq) for seq in range(4, 244)
        ]


async def test_readers_of_a_bus_that_fails_are_told_so_and_go_on_where_they_were(
    feed: FeedServer, public: Public, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = public.streams[EVENTS]

    def broken(after: int, until: int | None) -> list[StoredMessage]:
        raise NotAllowedError("nobody may read")

    async with feed.reading() as reader, feed.reading() as other:
        await public.tell(finished(1))
        assert kinds([await reader.next(), await other.next()]) == ["queue.finished"] * 2
        with monkeypatch.context() as patch:
            patch.setattr(stream, "_batch", broken)
            await public.tell(finished(2))
            for each in (reader, other):
                cut = await each.next()
                assert (cut.event, json.loads(cut.data)["code"]) == ("leaseway.cut", "bus_away")
                assert json.loads(cut.data)["resume"] == cut.id
                assert cut.place == "4-1-1"
            assert await feed.refusal() == (503, "bus_away")
    async with feed.reading(last_id="4-1-1") as again:
        assert (await again.next()).place == "5-1-1"


async def test_what_is_gone_is_named(feed: FeedServer, public: Public) -> None:
    public.streams[EVENTS].truncate(2) if hasattr(public.streams[EVENTS], "truncate") else None
    async with feed.reading(last_id="99-1-0") as reader:
        missed = await reader.next()
        assert (missed.event, json.loads(missed.data)) == (
            "leaseway.missed",
            {"stream": EVENTS, "after": 99, "first": 1, "anew": True},
        )
        assert kinds(await reader.take(2)) == ["queue.held", "queue.held"]


async def test_a_hole_is_named_and_passed(feed: FeedServer, public: Public) -> None:
    await public.tell(*(finished(number) for number in range(5)))
    for seq in (5, 6):
        public.streams[EVENTS].remove(seq)
    async with feed.reading(last_id="4-1-1") as reader:
        missed = await reader.next()
        assert json.loads(missed.data) == {"stream": EVENTS, "after": 4, "first": 7, "anew": False}
        assert [(await reader.next()).place, (await reader.next()).place] == ["7-1-1", "8-1-1"]


@pytest.mark.parametrize("query", [{"since": "yesterday"}, {"kind": "lease.>.x"}, {"owner": "Nobody!"}, {"sinse": "0"}])
async def test_a_bad_question_is_refused(feed: FeedServer, query: dict[str, str]) -> None:
    assert await feed.refusal(**query) == (400, "bad_query")


async def test_so_many_readers_and_no_more(feed: FeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_feed, "CLIENTS_MAX", 1)
    async with feed.reading(since="0") as reader:
        await reader.next()
        assert await feed.refusal() == (503, "too_many_connections")
        async with feed.session.get(feed.url) as answer:
            assert answer.headers["Retry-After"] == "1"
    await until("the place of the one who left", lambda: feed.feed.clients == 0)


async def test_a_reader_that_takes_nothing_is_cut_with_a_last_event_that_says_where_to_go_on() -> None:
    public = Public()
    large = msgspec.structs.replace(held(1), tenant="x" * 8000)
    await public.tell(*(large for _ in range(1000)))
    async with feed_of(public, Pace(silence_s=0.1, stall_s=0.3, flush_s=5)) as feed:
        where = urlsplit(feed.url)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((where.hostname, where.port))
            slow.sendall(f"GET {where.path}?since=0 HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
            await until("the cut", lambda: feed.feed.clients == 1)
            async with feed.reading(since="0", kind="queue.*") as quick:
                assert len(await quick.take(1000)) == 1000  # the other one is served meanwhile
            await until("the cut", lambda: feed.feed.clients == 0)
            taken = await asyncio.to_thread(rest_of, slow)
    events = taken.decode().split("\n\n")
    told = json.loads(next(line[6:] for line in events[-2].splitlines() if line.startswith("data: ")))
    got = sum("event: queue.held" in event for event in events)
    assert told["code"] == "too_slow"
    assert 0 < got < 1000
    assert told["resume"].partition("@")[0] == str(Place(events=got))


def rest_of(connection: socket.socket) -> bytes:
    """Return all that comes until the other side hangs up, without the frames of chunks."""
    connection.settimeout(10)
    raw = b""
    while piece := connection.recv(65536):
        raw += piece
    _, _, body = raw.partition(b"\r\n\r\n")
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole


async def test_nothing_is_kept_for_a_reader_that_left(feed: FeedServer) -> None:
    async with feed.reading(since="0") as reader:
        await reader.next()
    await until("its end", lambda: feed.feed.clients == 0)
    await until(
        "its tasks' end", lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("public ")]
    )
