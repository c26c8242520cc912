"""A message read at once is judged as one read piece by piece."""

import json
import random

import pytest

from adapters.keys import derive_mac_key, mac
from adapters.log import bounds, reader
from adapters.log.reader import Reader
from domain.events import codec
from domain.events.base import tag_of
from domain.master.inputs import FactInput, FactOrRejected
from domain.ports import StoredMessage
from tests.support.history import CLUSTER, SECRET, random_history

TEXTS = ("", "x" * 65, "x" * 2000, "ü", "a b", "00010000", "-1", "1.0", "٣", "req\n")
NUMBERS = (-1, 0, 1.5, 1e3, 10**15, 10**15 + 1, 10**19, 2**70)
STRANGE: tuple[object, ...] = (*TEXTS, *NUMBERS, None, True, [], {}, [1], {"a": 1})


def resigned(body: bytes, who: str) -> bytes:
    return codec.with_tag(body, "mac", mac(bytes.fromhex(derive_mac_key(SECRET, who)), body[:-1]))


def twisted(dice: random.Random, message: StoredMessage) -> StoredMessage:
    """The message with something else in one place, signed as its speaker would."""
    said = json.loads(message.body)
    said.pop("mac")
    who = str(said["producer"])
    inside = dice.random() < 0.6
    fields = said["data"] if inside else said
    name = dice.choice(sorted(fields))
    match dice.randrange(4):
        case 0:
            del fields[name]
        case 1:
            fields["unheard_of"] = dice.choice(STRANGE)
        case _:
            fields[name] = dice.choice(STRANGE)
    encoded = json.dumps(said, ensure_ascii=dice.random() < 0.5).encode()
    if dice.random() < 0.1:
        encoded = encoded.replace(b"{", b'{"data":7,', 1)  # the last of two counts
    if dice.random() < 0.1:
        encoded = encoded.replace(b"x", b"\xff")
    return StoredMessage(message.seq, message.stamp_ns, message.subject, b"", resigned(encoded, who))


def told(judged: FactOrRejected) -> object:
    """What the judgement says, whatever class the event was decoded to."""
    if isinstance(judged, FactInput):
        place = (judged.seq, judged.stamp_us, judged.speaker, judged.incarnation, judged.pseq, judged.late, judged.term)
        return place, tag_of(judged.fact), codec.encode(judged.fact)
    return judged


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_read_at_once_is_judged_as_piece_by_piece(seed: int, monkeypatch: pytest.MonkeyPatch):
    # given honest messages, and as many that were twisted and signed all the same
    dice, at_once = random.Random(seed), Reader(CLUSTER, SECRET)
    honest = [m for m in random_history(seed, 1000, models=2).facts if b'"mac"' in m.body]
    messages = honest + [twisted(dice, message) for message in honest for _ in range(3)]
    quick = [told(at_once.fact(message)) for message in messages]
    # when each is read piece by piece
    monkeypatch.setattr(bounds, "spoken", lambda body: None)
    slow = [told(Reader(CLUSTER, SECRET).fact(message)) for message in messages]
    # then every judgement is the same, and each was made
    assert quick == slow
    codes = {judged.code for judged in slow if not isinstance(judged, tuple)}  # type: ignore[attr-defined]
    assert codes >= {reader.BAD_EVENT, reader.WRONG_SPEAKER, reader.BAD_PLACE, reader.WRONG_EVENT, reader.OUT_OF_BOUNDS}


def test_nearly_every_kind_of_event_is_read_at_once():
    tags = {tag_of(kind) for kind in bounds.NARROWED}
    assert tags >= {"queue.held", "queue.finished", "lend.lent", "borrow.finished", "queue.snapshot", "obs.due"}
    for kind, narrowed in bounds.NARROWED.items():
        assert narrowed.__struct_fields__ == kind.__struct_fields__
        assert tag_of(narrowed) == tag_of(kind)
