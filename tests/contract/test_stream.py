"""What every domain.ports.Stream promises, in memory and on a real server."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from domain.errors import HistoryGapError, PublishRefusedError, PublishUnknownError, WrongLastSequenceError
from domain.ports import Stored, StoredMessage, Stream
from tests.contract.rigs import Rig


async def fill(stream: Stream, count: int, *, start: int = 1) -> None:
    for number in range(start, start + count):
        await stream.publish(f"{stream.name}.a", b"%d" % number)


async def collect(batches: AsyncIterator[Sequence[StoredMessage]]) -> list[StoredMessage]:
    return [message for batch in [each async for each in batches] for message in batch]


async def test_a_message_is_the_same_bytes_however_it_is_read(rig: Rig):
    stream = await rig.stream()
    await stream.publish("LW_LEDGER.a.b", b"\x00 body \xff", message_id="x/1", headers={"Lw-Order": "g-1.0"})
    await stream.publish("LW_LEDGER.plain", b"")
    read = await collect(stream.read(after=0, until=2))
    assert [await stream.get(1), await stream.get(2)] == read
    assert await stream.last() == read[1]
    first, second = read
    assert (first.seq, first.subject, first.body) == (1, "LW_LEDGER.a.b", b"\x00 body \xff")
    assert first.headers == b"NATS/1.0\r\nLw-Order: g-1.0\r\nNats-Msg-Id: x/1\r\n\r\n"
    assert (second.seq, second.headers, second.body) == (2, b"", b"")
    assert 0 < first.stamp_ns <= second.stamp_ns


async def test_an_empty_stream_has_no_last_message_and_bounds_that_say_so(rig: Rig):
    stream = await rig.stream()
    bounds = await stream.bounds()
    assert (await stream.last(), await stream.get(1), bounds.first, bounds.last) == (None, None, 1, 0)
    await fill(stream, 3)
    bounds = await stream.bounds()
    assert (bounds.first, bounds.last) == (1, 3)


async def test_a_stream_says_what_time_it_is_by_the_clock_that_stamps(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 1)
    message, bounds = await stream.last(), await stream.bounds()
    assert message is not None
    assert 0 <= bounds.now_ns - message.stamp_ns < 60_000_000_000


async def test_only_one_of_two_writers_with_the_same_expectation_is_stored(rig: Rig):
    stream, other = await rig.stream(), None
    other = await rig.another()
    assert await stream.publish("LW_LEDGER.a", b"ours", expected_last=0) == Stored(seq=1)
    with pytest.raises(WrongLastSequenceError):
        await other.publish("LW_LEDGER.a", b"theirs", expected_last=0)
    last = await other.last()
    assert last is not None
    assert last.body == b"ours"


async def test_the_expectation_counts_the_whole_stream_and_a_refusal_uses_up_no_sequence(rig: Rig):
    stream = await rig.stream()
    await stream.publish("LW_LEDGER.a", b"1", expected_last=0)
    await stream.publish("LW_LEDGER.b", b"2", expected_last=1)  # the first on its subject, yet the second of the stream
    with pytest.raises(WrongLastSequenceError):
        await stream.publish("LW_LEDGER.a", b"x", expected_last=1)
    assert await stream.publish("LW_LEDGER.a", b"3", expected_last=2) == Stored(seq=3)


async def test_expectations_may_be_sent_ahead_and_all_fail_after_one_that_failed(rig: Rig):
    stream = await rig.stream()
    sent = [stream.publish_soon("LW_LEDGER.a", b"%d" % at, expected_last=at) for at in (0, 1, 7, 2, 3)]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert answers[:2] == [Stored(seq=1), Stored(seq=2)]
    assert isinstance(answers[2], WrongLastSequenceError)
    assert answers[3:] == [Stored(seq=3), Stored(seq=4)]


async def test_a_message_id_is_stored_once_and_the_second_answer_says_where(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 2)
    assert await stream.publish("LW_LEDGER.a", b"x", message_id="i/1") == Stored(seq=3)
    await fill(stream, 1)
    assert await stream.publish("LW_LEDGER.a", b"x", message_id="i/1") == Stored(seq=3, duplicate=True)
    assert (await stream.bounds()).last == 4


async def test_publishes_are_stored_in_the_order_in_which_they_were_started(rig: Rig):
    stream = await rig.stream()
    answers = await asyncio.gather(*(stream.publish_soon("LW_LEDGER.a", b"%d" % at) for at in range(500)))
    assert [answer.seq for answer in answers] == list(range(1, 501))
    read = await collect(stream.read(after=0, until=500))
    assert [message.body for message in read] == [b"%d" % at for at in range(500)]


async def test_a_lost_answer_is_unknown_and_the_message_is_there(rig: Rig):
    stream = await rig.stream()
    await rig.lose_answers()
    with pytest.raises(PublishUnknownError):
        await stream.publish("LW_LEDGER.a", b"x")
    await rig.heal()
    last = await stream.last()
    assert last is not None
    assert (last.seq, last.body) == (1, b"x")


async def test_a_publish_that_was_given_up_may_be_stored_later(rig: Rig):
    stream = await rig.stream()
    await rig.freeze()
    with pytest.raises(PublishUnknownError):
        await stream.publish("LW_LEDGER.a", b"x", expected_last=0)
    await rig.heal()
    last = await stream.last()
    assert last is not None
    assert last.body == b"x"
    with pytest.raises(WrongLastSequenceError):
        await stream.publish("LW_LEDGER.a", b"y", expected_last=0)


async def test_a_message_that_is_too_large_is_refused_and_says_so(rig: Rig):
    stream = await rig.stream(max_msg_size=1000)
    with pytest.raises(PublishRefusedError) as refused:
        await stream.publish("LW_LEDGER.a", b"x" * 1001)
    assert refused.value.reason == "too_large"
    with pytest.raises(PublishRefusedError) as refused:
        await stream.publish("LW_LEDGER.a", b"x" * 2_000_000)
    assert refused.value.reason == "too_large"
    assert (await stream.bounds()).last == 0


async def test_a_reader_begins_after_the_given_sequence_and_ends_where_it_must(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 10)
    assert [message.seq for message in await collect(stream.read(after=3, until=7))] == [4, 5, 6, 7]
    assert await collect(stream.read(after=7, until=7)) == []


async def test_a_reader_waits_for_what_is_not_there_yet(rig: Rig):
    stream, seen = await rig.stream(), asyncio.Event()
    read: list[int] = []

    async def follow() -> None:
        async for batch in stream.read(after=0):
            read.extend(message.seq for message in batch)
            seen.set()
            if read[-1] == 5:
                return

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(follow())
        await fill(stream, 2)
        await seen.wait()
        await fill(stream, 3)
    assert read == [1, 2, 3, 4, 5]


async def test_a_message_that_is_gone_is_a_gap_and_what_is_before_it_is_given(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 6)
    await rig.remove(stream, 4)
    read: list[int] = []

    async def read_all() -> None:
        async for batch in stream.read(after=0, until=6):
            read.extend(message.seq for message in batch)

    with pytest.raises(HistoryGapError, match="4"):
        await read_all()
    assert read == [1, 2, 3]


async def test_messages_that_are_gone_at_the_end_are_a_gap_to_who_reads_up_to_it(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 6)
    await rig.remove(stream, 6)
    await rig.remove(stream, 5)
    read: list[int] = []

    async def read_all() -> None:
        async for batch in stream.read(after=0, until=6):
            read.extend(message.seq for message in batch)

    with pytest.raises(HistoryGapError, match="5"):
        await asyncio.wait_for(read_all(), 20)
    assert read == [1, 2, 3, 4]


async def test_reading_from_before_the_first_message_is_a_gap(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 3)
    await rig.remove(stream, 1)
    with pytest.raises(HistoryGapError, match="1"):
        await collect(stream.read(after=0, until=3))
    assert [message.seq for message in await collect(stream.read(after=1, until=3))] == [2, 3]


async def test_a_stream_that_ends_before_what_was_read_has_lost_its_history(rig: Rig):
    stream = await rig.stream()
    await fill(stream, 3)
    await rig.restart_history(stream)
    await fill(stream, 1)
    with pytest.raises(HistoryGapError):
        await collect(stream.read(after=3, until=5))
