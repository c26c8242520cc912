"""Every way to change the feed of decisions, by a forger who mends what has no key; the master's key he has not."""

import random
from collections.abc import Callable

import msgspec

from domain.ports import StoredMessage

Feed = list[StoredMessage]
FeedChange = Callable[[random.Random, Feed], tuple[str, Feed]]


def _renumbered(messages: Feed) -> Feed:
    return [msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(messages, start=1)]


def _inner(dice: random.Random, feed: Feed) -> int:
    """Return the place of a message that is not the last: what the feed lacks at its end a master publishes again."""
    return dice.randrange(len(feed) - 1)


def flip_body(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """One bit of a decision's body, its signature included."""
    at = dice.randrange(len(feed))
    body = bytearray(feed[at].body)
    place, bit = dice.randrange(len(body)), dice.randrange(8)
    body[place] ^= 1 << bit
    changed = msgspec.structs.replace(feed[at], body=bytes(body))
    return f"message {at + 1} byte {place} bit {bit}", [*feed[:at], changed, *feed[at + 1 :]]


def flip_subject(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """One letter of a decision's subject."""
    at = dice.randrange(len(feed))
    subject = feed[at].subject
    place = dice.randrange(len(subject))
    letter = chr(ord(subject[place]) ^ 1)
    changed = msgspec.structs.replace(feed[at], subject=subject[:place] + letter + subject[place + 1 :])
    return f"message {at + 1} letter {place}", [*feed[:at], changed, *feed[at + 1 :]]


def flip_headers(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """One letter of a decision's headers."""
    at = dice.randrange(len(feed))
    headers = bytearray(feed[at].headers)
    place = dice.randrange(10, len(headers) - 4)
    headers[place] ^= 1
    changed = msgspec.structs.replace(feed[at], headers=bytes(headers))
    return f"message {at + 1} byte {place}", [*feed[:at], changed, *feed[at + 1 :]]


def delete(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """A decision, so that a hole is left."""
    at = _inner(dice, feed)
    return f"message {at + 1}", [*feed[:at], *feed[at + 1 :]]


def delete_and_close_up(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """A decision, and those after it move up."""
    at = _inner(dice, feed)
    return f"message {at + 1}", _renumbered([*feed[:at], *feed[at + 1 :]])


def lose_the_front(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """The oldest decisions, long before their age."""
    kept = dice.randrange(1, len(feed))
    return f"up to {kept}", feed[kept:]


def reorder(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """Two decisions change places."""
    first, second = sorted(dice.sample(range(len(feed)), 2))
    changed = list(feed)
    changed[first], changed[second] = changed[second], changed[first]
    return f"messages {first + 1} and {second + 1}", _renumbered(changed)


def repeat(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """An old decision once more, signature and all: leases that have ended."""
    at, place = dice.randrange(len(feed)), dice.randrange(len(feed) + 1)
    return f"message {at + 1} at {place + 1}", _renumbered([*feed[:place], feed[at], *feed[place:]])


def replace(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """A decision by the content of another, under its own headers."""
    at, other = dice.sample(range(len(feed)), 2)
    changed = msgspec.structs.replace(feed[at], body=feed[other].body, subject=feed[other].subject)
    return f"message {at + 1} by {other + 1}", [*feed[:at], changed, *feed[at + 1 :]]


def forge(dice: random.Random, feed: Feed) -> tuple[str, Feed]:
    """A lease of more slots than was decided, the signature as it was."""
    at, more = dice.choice([at for at, each in enumerate(feed) if b'"slots":' in each.body]), dice.randint(1, 9)
    body = feed[at].body.replace(b'"slots":', b'"slots":%d' % more, 1)
    return f"message {at + 1} by {more}", [*feed[:at], msgspec.structs.replace(feed[at], body=body), *feed[at + 1 :]]


CHANGES: tuple[FeedChange, ...] = (
    flip_body,
    flip_subject,
    flip_headers,
    delete,
    delete_and_close_up,
    lose_the_front,
    reorder,
    repeat,
    replace,
    forge,
)
