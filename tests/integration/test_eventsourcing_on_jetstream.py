"""What the library's own cases leave open of our persistence module, on a real nats-server."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import nats
import pytest
from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    StoredEvent,
    Tracking,
)

from adapters.nats.eventsourcing import JetStreamFactory
from adapters.nats.eventsourcing.feed import Feed
from adapters.nats.eventsourcing.link import NatsLink
from adapters.nats.eventsourcing.recorder import JetStreamApplicationRecorder, JetStreamProcessRecorder, Place
from adapters.nats.eventsourcing.stream import BATCH_MAX, EXPECTED_LAST, Outgoing
from tests.support.bare_nats import bare_nats_url  # noqa: F401  # a fixture

pytestmark = pytest.mark.real
_numbers = itertools.count()


def event(version, originator="kind.id", state=b"{}"):
    return StoredEvent(originator, version, "topic", state)


@pytest.fixture
def make(bare_nats_url):  # noqa: F811  # the fixture
    """Return a maker of recorders, each on a link of its own, all on one stream of this test."""
    name, links = f"S{next(_numbers)}", []

    def make_recorder(recorder_class=JetStreamApplicationRecorder):
        links.append(NatsLink(bare_nats_url))
        place = Place(stream=name, events=f"app.{name}.control", tracking=f"{name}.t", uuid_ids=False)
        recorder = recorder_class(links[-1], place)
        recorder.create()
        return recorder

    yield make_recorder
    for link in links:
        link.close()


def test_an_originator_id_with_dots_is_one_subject_under_the_prefix(make):
    recorder = make()
    recorder.insert_events([event(1), event(1, "kind.id.x"), event(2)])
    assert recorder.select_events("kind.id") == [event(1), event(2)]
    last = recorder.link.call(recorder.stream.last(f"{recorder.place.events}.>"))
    assert last.subject == f"{recorder.place.events}.kind.id"
    assert [found.originator_id for found in recorder.select_notifications(None, 9)] == [
        "kind.id",
        "kind.id.x",
        "kind.id",
    ]


def test_of_many_writers_of_one_version_exactly_one_is_stored(make):
    recorders = [make() for _ in range(6)]
    start = threading.Barrier(len(recorders))

    def write(recorder, version):
        start.wait(10)
        try:
            recorder.insert_events([event(version, state=str(id(recorder)).encode())])
        except IntegrityError:
            return 0
        return 1

    with ThreadPoolExecutor(len(recorders)) as pool:
        for version in range(1, 21):
            assert sum(pool.map(write, recorders, itertools.repeat(version))) == 1
    assert [stored.originator_version for stored in recorders[0].select_events("kind.id")] == list(range(1, 21))


def test_a_version_that_leaves_one_out_is_refused(make):
    recorder = make()
    recorder.insert_events([event(1)])
    with pytest.raises(IntegrityError, match=r"kind\.id: is at version 1, got 3"):
        recorder.insert_events([event(3)])


def test_of_a_save_that_conflicts_in_one_aggregate_nothing_is_stored(make):
    recorder = make()
    recorder.insert_events([event(1)])
    stale = Outgoing(f"{recorder.place.events}.kind.id", b"{}", {"Es-V": "2", "Es-T": "t", EXPECTED_LAST: "0"})
    fresh = Outgoing(f"{recorder.place.events}.other", b"{}", {"Es-V": "1", "Es-T": "t", EXPECTED_LAST: "0"})
    for messages in ([fresh, stale], [stale, fresh], [stale]):
        with pytest.raises(IntegrityError):
            recorder.link.call(recorder.stream.append(messages))
    assert recorder.select_events("other") == []
    assert recorder.max_notification_id() == 1


def test_events_and_the_position_they_came_from_are_stored_together_or_not_at_all(make):
    recorder = make(JetStreamProcessRecorder)
    recorder.insert_events([event(1)], tracking=Tracking("upstream", 7))
    with pytest.raises(IntegrityError, match="upstream: is tracked to 7, got 7"):
        recorder.insert_events([event(2)], tracking=Tracking("upstream", 7))
    with pytest.raises(IntegrityError):
        recorder.insert_events([event(1)], tracking=Tracking("upstream", 8))
    assert recorder.select_events("kind.id") == [event(1)]
    assert recorder.max_tracking_id("upstream") == 7


def test_an_event_larger_than_the_server_takes_is_refused_before_anything_is_sent(make):
    recorder = make()
    with pytest.raises(DataError, match="must fit 1048576 bytes"):
        recorder.insert_events([event(1), event(2, state=b"x" * 1024 * 1024)])
    assert recorder.max_notification_id() is None
    recorder.insert_events([event(1, state=b"x" * 1000 * 1024)])


def test_more_events_than_one_batch_holds_are_refused_before_anything_is_sent(make):
    recorder = make()
    with pytest.raises(ProgrammingError, match=f"at most {BATCH_MAX} events at once, got {BATCH_MAX + 1}"):
        recorder.insert_events([event(version) for version in range(1, BATCH_MAX + 2)])
    assert recorder.max_notification_id() is None


def test_a_stream_is_made_only_if_told(bare_nats_url):  # noqa: F811  # the fixture
    factory = JetStreamFactory({"NATS_URL": bare_nats_url, "JS_STREAM": "UNMADE", "ORIGINATOR_ID_TYPE": "text"})
    recorder = factory.application_recorder()
    with pytest.raises(OperationalError, match="stream UNMADE: stream not found"):
        recorder.insert_events([event(1)])
    factory.close()


def test_a_server_that_is_not_there_is_an_error_in_a_sentence():
    with pytest.raises(OperationalError, match=r"bus nats://127\.0\.0\.1:1: no connection: .*Connect"):
        NatsLink("nats://127.0.0.1:1", connect_s=0.5)


def test_a_subscription_loses_and_repeats_nothing_when_its_consumer_is_taken_away(make):
    recorder = make()
    recorder.insert_events([event(version) for version in range(1, 301)])

    async def take_consumers_away():
        client = await nats.connect(recorder.link.url)
        consumers = await client.jetstream().consumers_info(recorder.place.stream)
        for consumer in consumers:
            await client.jetstream().delete_consumer(recorder.place.stream, consumer.name)
        await client.close()
        return len(consumers)

    taken = []
    with recorder.subscribe() as subscription:
        for notification in subscription:
            taken.append(notification.id)
            if len(taken) in {100, 250, 400}:
                assert asyncio.run(take_consumers_away()) >= 1
            if len(taken) == 300:
                recorder.insert_events([event(version) for version in range(301, 501)])
            if len(taken) == 500:
                break
    assert taken == list(range(1, 501))


def test_a_feed_fetches_again_what_was_lost_on_the_way(make):
    recorder = make()
    recorder.insert_events([event(version) for version in range(1, 101)])
    to_lose, has_lost = ["1", "20", "60", "100"], set()

    async def read_over_a_lossy_line():
        feed = Feed(recorder.link, recorder.place.stream, f"{recorder.place.events}.>", 1)

        def lose_some(message):
            consumer, _, seq = message.reply.split(".")[-6:-3] if message.reply else ("", "", "")
            if to_lose and seq == to_lose[0] and consumer not in has_lost:
                has_lost.add(consumer)
                to_lose.pop(0)
            else:
                feed.take(message)

        seen: list[int] = []
        async with recorder.link.listening(lose_some) as feed.inbox:
            while len(seen) < 100:
                seen += [entry.seq for entry in await feed.pull()]
        return seen

    assert recorder.link.call(read_over_a_lossy_line()) == list(range(1, 101))
    assert not to_lose


def test_a_subscription_to_some_topics_passes_over_the_others(make):
    recorder = make()
    recorder.insert_events([event(1), StoredEvent("kind.id", 2, "wanted", b"{}"), event(3)])
    with recorder.subscribe(topics=["wanted"]) as subscription:
        assert next(subscription).originator_version == 2
    assert [found.id for found in recorder.select_notifications(None, 9, topics=["wanted"])] == [2]
