"""A stream that is followed anew brings nothing twice."""

from domain.ports import StoredMessage
from services.following import Taken


def stored(seq: int, stamp_ns: int) -> StoredMessage:
    return StoredMessage(seq, stamp_ns, "lw.local.control.links.a", b"", b"{}")


def new(taken: Taken, messages: list[StoredMessage]) -> list[int]:
    return [message.seq for message in messages if taken.is_new(message)]


def test_what_was_taken_is_not_taken_again_however_often_the_stream_is_read_from_its_beginning():
    taken, whole = Taken(), [stored(seq, 100 * seq) for seq in range(1, 6)]
    assert new(taken, whole[:3]) == [1, 2, 3]
    assert new(taken, whole) == [4, 5]
    assert new(taken, whole) == []


def test_a_server_clock_that_was_set_back_hides_nothing_and_brings_nothing_back():
    taken, whole = Taken(), [stored(1, 500), stored(2, 600), stored(3, 50)]
    assert new(taken, whole) == [1, 2, 3]
    assert new(taken, [*whole, stored(4, 60)]) == [4]


def test_a_stream_that_was_made_anew_is_taken_from_its_beginning():
    taken = Taken()
    assert new(taken, [stored(seq, 100 * seq) for seq in range(1, 6)]) == [1, 2, 3, 4, 5]
    anew = [stored(1, 1000), stored(2, 1001)]
    assert new(taken, anew) == [1, 2]
    assert new(taken, anew) == []
