"""The protocol parser and what is read from JetStream's answers."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.headers import decode_headers, encode_headers
from adapters.nats.api import place_of, read_ack, read_message, stamp_ns
from adapters.nats.wire import Gathered, Wire
from domain.errors import PublishRefusedError, PublishUnknownError, WrongLastSequenceError
from domain.ports import Stored, StoredMessage

Message = tuple[bytes, bytes, bytes, bytes]
TOKENS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8).map(str.encode)
HEADERS = st.one_of(st.just(b""), st.binary(max_size=40).map(lambda junk: b"NATS/1.0\r\nA: " + junk + b"\r\n\r\n"))
MESSAGES = st.tuples(TOKENS, st.one_of(st.just(b""), TOKENS), HEADERS, st.binary(max_size=300))


class Listening:
    """A wire that is fed by hand."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.errors: list[str] = []
        self.wire = Wire(self.errors.append)
        self.wire.subscribe(b"7", b"x", lambda *message: self.heard.append(message))


def on_the_wire(message: Message, sid: bytes = b"7") -> bytes:
    subject, reply, headers, body = message
    to = b" ".join(each for each in (subject, sid, reply) if each)
    if headers:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(headers), len(headers) + len(body), headers, body)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(body), body)


@given(messages=st.lists(MESSAGES, max_size=6), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_messages_are_the_same_however_the_network_cuts_them(messages: list[Message], cuts: list[int]):
    async def feed() -> list[Message]:
        listening = Listening()
        data = b"PING\r\n".join([b"", *map(on_the_wire, messages), b""])
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, end in itertools.pairwise(edges):
            listening.wire.data_received(data[start:end])
        return listening.heard

    assert asyncio.run(feed()) == messages


@given(
    messages=st.lists(st.tuples(MESSAGES, st.booleans()), max_size=8), cuts=st.lists(st.integers(0, 2000), max_size=6)
)
def test_who_takes_messages_gathered_gets_the_same_in_the_same_order(
    messages: list[tuple[Message, bool]], cuts: list[int]
):
    async def feed() -> list[Message]:
        listening = Listening()
        listening.wire.subscribe(b"9", b"y", Gathered(listening.heard.extend))
        data = b"".join(on_the_wire(message, b"9" if gathered else b"7") for message, gathered in messages)
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, end in itertools.pairwise(edges):
            listening.wire.data_received(data[start:end])
        return listening.heard

    assert asyncio.run(feed()) == [message for message, _ in messages]


async def test_what_came_at_once_is_given_at_once():
    listening, given_at_once = Listening(), list[int]()
    listening.wire.subscribe(b"9", b"y", Gathered(lambda messages: given_at_once.append(len(messages))))
    message = (b"a", b"", b"", b"body")
    listening.wire.data_received(on_the_wire(message, b"9") * 3 + on_the_wire(message, b"9")[:-4])
    assert given_at_once == [3]


async def test_what_nobody_subscribed_to_is_passed_over():
    listening = Listening()
    message = (b"a", b"", b"", b"body")
    listening.wire.data_received(on_the_wire(message, sid=b"8") + on_the_wire(message))
    assert listening.heard == [message]


async def test_the_server_s_errors_keep_their_case():
    listening = Listening()
    listening.wire.data_received(b"-ERR 'Permissions Violation for Publish to \"lw.X\"'\r\n")
    assert listening.errors == ['Permissions Violation for Publish to "lw.X"']


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T19:10:56.959740349Z", 1795979456959740349),
        ("2026-11-29T19:10:56.9Z", 1795979456900000000),
        ("2026-11-29T19:10:56Z", 1795979456000000000),
        ("2026-11-29T21:10:56.000000001+02:00", 1795979456000000001),
    ],
)
def test_a_stamp_is_exact_to_the_nanosecond(text: str, expected: int):
    assert stamp_ns(text) == expected


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.LW_EVENTS.c.1.42.7.1795979456958539311.3",
        b"$JS.ACK.hub.acc.LW_EVENTS.c.1.42.7.1795979456958539311.3.x",
    ],
)
def test_a_reply_subject_says_sequence_stamp_and_what_is_pending(reply: bytes):
    assert place_of(reply) == (42, 1795979456958539311, 3)


def test_a_stream_s_answers_become_what_the_port_promises():
    assert read_ack(b"", b'{"stream":"S","seq":5,"duplicate":true}') == Stored(seq=5, duplicate=True)
    for code in (10071, 10164):
        with pytest.raises(WrongLastSequenceError):
            read_ack(b"", b'{"error":{"code":400,"err_code":%d,"description":"x"}}' % code)
    for body in (b'{"error":{"code":503,"err_code":10008,"description":"x"}}', b"", b"nonsense"):
        with pytest.raises(PublishUnknownError):
            read_ack(b"", body)
    for code, reason in ((10077, "full"), (10054, "too_large"), (10109, "refused")):
        with pytest.raises(PublishRefusedError) as refused:
            read_ack(b"", b'{"error":{"code":400,"err_code":%d,"description":"x"}}' % code)
        assert refused.value.reason == reason


def test_a_message_that_was_got_has_the_bytes_that_were_stored():
    body = (
        b'{"message":{"subject":"a.b","seq":3,"hdrs":"TkFUUy8xLjANCg0K","data":"AP8=","time":"2026-11-29T19:10:56.5Z"}}'
    )
    expected = StoredMessage(3, 1795979456500000000, "a.b", b"NATS/1.0\r\n\r\n", b"\x00\xff")
    assert read_message(b"", body) == expected
    assert read_message(b"", b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}') is None


@given(st.dictionaries(st.text("abcXYZ-", min_size=1, max_size=9), st.text("abc :/.-", max_size=9), max_size=4))
def test_headers_come_back(headers: dict[str, str]):
    stripped = {name: value.strip() for name, value in headers.items()}
    assert decode_headers(encode_headers(headers)) == stripped


@pytest.mark.parametrize("headers", [{"a": "x\r\nb: y"}, {"a\n": "x"}, {"a:b": "x"}, {"": "x"}, {"a": "x\ry"}])
def test_a_header_cannot_smuggle_another_one(headers: dict[str, str]):
    with pytest.raises(ValueError, match="one line each"):
        encode_headers(headers)


def test_a_status_line_is_read():
    assert decode_headers(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n") == {
        "": "408 Request Timeout",
        "Nats-Pending-Messages": "3",
    }
    assert decode_headers(b"") == {}
