"""A commit's digest stands for its stored bytes: who knows more fields than their writer still checks the same digest."""

import hashlib
import itertools

import msgspec
import pytest

from domain.events.commit import decode_commit, digest_inputs, encode_commit, is_read_whole, is_sealed
from domain.ports import StoredMessage
from tests.support import golden

INPUT = StoredMessage(seq=1, subject="lw.local.fact.n1", headers=b"", body=b"{}", stamp_ns=7)
NOTHING = "0" * 32


def bytes_of(fields: dict[str, object]) -> bytes:
    """Return the stored bytes of a commit of these fields, sealed over one input."""
    hasher = hashlib.blake2b(bytes(16), digest_size=16)
    digest_inputs(hasher, [INPUT])
    hasher.update(msgspec.json.encode(fields | {"digest": ""}))
    return msgspec.json.encode(fields | {"digest": hasher.hexdigest()})


def earlier_fields() -> dict[str, object]:
    """Return a commit as a version would write it that knew neither `rejected` nor `state`."""
    fields = {"version": 1, "generation": "00010000", "term": 1, "policy": "p", "lo": 0, "hi": 1, "clo": 0, "chi": 0}
    return {**fields, "n": 0, "now_us": 0, "decisions": [], "prev": NOTHING}


def test_a_commit_of_a_version_that_knew_fewer_fields_keeps_its_digest():
    body = bytes_of(earlier_fields())
    commit = decode_commit(body)
    assert encode_commit(commit) != body
    assert is_sealed(commit, [INPUT], body)
    assert is_read_whole(commit, body)
    assert not is_sealed(commit, [], body)


def test_a_row_of_fields_that_has_grown_since_is_read_whole_and_one_with_more_than_we_know_is_not():
    commit = next(made for made in golden.load("realistic")[1] if b'"verdicts":[[' in encode_commit(made))
    fields = msgspec.json.decode(encode_commit(commit))
    verdicts = next(each["verdicts"] for each in fields["decisions"] if each.get("verdicts"))
    verdicts[0].append("of a later version")
    assert not is_read_whole(decode_commit(msgspec.json.encode(fields)), msgspec.json.encode(fields))
    while len(verdicts[0]) > 1:  # as many as can be missing
        verdicts[0].pop()
        try:
            earlier = decode_commit(msgspec.json.encode(fields))
        except msgspec.ValidationError:
            break
        assert is_read_whole(earlier, msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (b'"n":0', b'"n": 0'),
        (b'"n":0', b'"n":0,"later":1'),
        (b'"n":0', b'"n":1,"n":0'),
        (b'"policy":"p"', rb'"policy":"\u0070"'),
    ],
    ids=["spaced", "with a field that is not read", "said twice", "spelt otherwise"],
)
def test_bytes_that_say_more_than_is_read_or_are_not_as_we_write_are_not_read_whole(then: bytes, now: bytes):
    body = bytes_of(earlier_fields())
    other = body.replace(then, now)
    assert decode_commit(other) == decode_commit(body)
    assert not is_read_whole(decode_commit(other), other)
    assert not is_sealed(decode_commit(other), [INPUT], other)


def test_no_bit_of_a_stored_commit_can_change_under_its_digest():
    body = bytes_of(earlier_fields())
    assert is_sealed(decode_commit(body), [INPUT], body)
    read = 0
    for place, bit in itertools.product(range(len(body)), range(8)):
        other = body[:place] + bytes([body[place] ^ 1 << bit]) + body[place + 1 :]
        try:
            commit = decode_commit(other)
        except msgspec.DecodeError:
            continue
        read += 1
        if commit.prev == NOTHING:  # another one is found by the chain
            assert not is_sealed(commit, [INPUT], other)
    assert read > 100
