"""Every way to change a stored history, drawn by dice: what a disk does, what an accident does, what a forger does.

A forger may mend whatever has no key: sequences, digests and the chain. What he has not are the nodes' keys and the master's; one
who has the nodes' keys as well can make another history of his own, which disagrees with what was signed.
"""

import random
from collections.abc import Callable

import msgspec

from adapters.keys import Signer, new_nkey
from adapters.log.generations import GAP, safe_mode_left, signed_begin
from adapters.log.reader import Reader
from domain.events.commit import Commit, decode_commit, encode_commit, seal
from domain.ids import Generation
from domain.master.step import genesis
from domain.ports import StoredMessage
from tests.mutations.life import Life, decided, stored
from tests.support.history import START_NS, Recorder, envelope, held

Messages = tuple[StoredMessage, ...]
Change = Callable[[random.Random, Life], tuple[str, Life]]
STREAMS = ("LW_EVENTS", "LW_CONTROL", "LW_LEDGER")


def _flip(content: bytes, dice: random.Random) -> bytes:
    at, bit = dice.randrange(len(content)), 1 << dice.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def _text_flip(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ (1 << dice.randrange(5))) + text[at + 1 :]


def _renumbered(messages: list[StoredMessage]) -> Messages:
    return tuple(msgspec.structs.replace(each, seq=seq) for seq, each in enumerate(messages, start=1))


def _any_stream(dice: random.Random, life: Life) -> tuple[str, list[StoredMessage]]:
    name = dice.choice(STREAMS)
    return name, list(life.streams()[name])


def flip_body(dice: random.Random, life: Life) -> tuple[str, Life]:
    """One bit of a message's body."""
    name, messages = _any_stream(dice, life)
    at = dice.randrange(len(messages))
    messages[at] = msgspec.structs.replace(messages[at], body=_flip(messages[at].body, dice))
    return f"{name} {at + 1}", life.with_stream(name, tuple(messages))


def flip_subject(dice: random.Random, life: Life) -> tuple[str, Life]:
    """One bit of a message's subject."""
    name, messages = _any_stream(dice, life)
    at = dice.randrange(len(messages))
    messages[at] = msgspec.structs.replace(messages[at], subject=_text_flip(messages[at].subject, dice))
    return f"{name} {at + 1}", life.with_stream(name, tuple(messages))


def flip_headers(dice: random.Random, life: Life) -> tuple[str, Life]:
    """One bit of a message's headers; where it has none, some more."""
    name, messages = _any_stream(dice, life)
    at = dice.randrange(len(messages))
    old = messages[at].headers
    new = _flip(old, dice) if old else b"NATS/1.0\r\nX: y\r\n\r\n"
    messages[at] = msgspec.structs.replace(messages[at], headers=new)
    return f"{name} {at + 1}", life.with_stream(name, tuple(messages))


def flip_stamp(dice: random.Random, life: Life) -> tuple[str, Life]:
    """One bit of an input's stamp: time is made of it. That of a commit is read by no rule and covered by no digest."""
    name = dice.choice(STREAMS[:2])
    messages = list(life.streams()[name])
    at = dice.randrange(len(messages))
    messages[at] = msgspec.structs.replace(messages[at], stamp_ns=messages[at].stamp_ns ^ (1 << dice.randrange(50)))
    return f"{name} {at + 1}", life.with_stream(name, tuple(messages))


def delete(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A message, so that a hole is left."""
    name, messages = _any_stream(dice, life)
    gone = messages.pop(dice.randrange(len(messages)))
    return f"{name} {gone.seq}", life.with_stream(name, tuple(messages))


def delete_and_close_up(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A message, and those after it move up."""
    name, messages = _any_stream(dice, life)
    gone = messages.pop(dice.randrange(len(messages)))
    return f"{name} {gone.seq}", life.with_stream(name, _renumbered(messages))


def reorder(dice: random.Random, life: Life) -> tuple[str, Life]:
    """Two messages change places."""
    name, messages = _any_stream(dice, life)
    if len(messages) < 2:
        return delete(dice, life)
    first, second = dice.sample(range(len(messages)), 2)
    messages[first], messages[second] = messages[second], messages[first]
    return f"{name} {first + 1} and {second + 1}", life.with_stream(name, _renumbered(messages))


def truncate(dice: random.Random, life: Life) -> tuple[str, Life]:
    """The newest messages of a stream."""
    name, messages = _any_stream(dice, life)
    kept = dice.randrange(len(messages))
    return f"{name} after {kept}", life.with_stream(name, tuple(messages[:kept]))


def lose_the_front(dice: random.Random, life: Life) -> tuple[str, Life]:
    """The oldest messages of a stream, long before their age."""
    name, messages = _any_stream(dice, life)
    kept = dice.randrange(1, len(messages) + 1)
    return f"{name} up to {kept}", life.with_stream(name, tuple(messages[kept:]))


def lose_a_stream(dice: random.Random, life: Life) -> tuple[str, Life]:
    """All of one stream: it was deleted, and made anew."""
    name = dice.choice(STREAMS)
    return name, life.with_stream(name, ())


def repeat(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A message once more, somewhere else."""
    name, messages = _any_stream(dice, life)
    messages.insert(dice.randrange(len(messages) + 1), dice.choice(messages))
    if _renumbered(messages)[:-1] == life.streams()[name]:  # a repeated last one after the end is a new message
        return delete(dice, life)
    return name, life.with_stream(name, _renumbered(messages))


def replace(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A message by the content of another."""
    name, messages = _any_stream(dice, life)
    at, other = dice.randrange(len(messages)), dice.choice(messages)
    if (other.body, other.subject) == (messages[at].body, messages[at].subject):
        return flip_body(dice, life)
    messages[at] = msgspec.structs.replace(messages[at], subject=other.subject, body=other.body)
    return f"{name} {at + 1} by {other.seq}", life.with_stream(name, tuple(messages))


def forge_a_fact(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A fact in the name of a node, under another node's key."""
    messages = list(life.facts)
    at = dice.randrange(len(messages))
    body = envelope("n3", "n3-1", dice.randint(1, 50), held(f"req_{dice.getrandbits(64):032x}"))
    messages[at] = msgspec.structs.replace(messages[at], body=body)
    return f"LW_EVENTS {at + 1}", life.with_stream("LW_EVENTS", tuple(messages))


def forge_a_commit(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A commit without one of its decisions, its digest and all of the chain after it mended."""
    commits = [decode_commit(message.body) for message in life.ledger]
    chosen = dice.choice([at for at, made in enumerate(commits) if made.decisions])
    changed = list(commits[chosen].decisions)
    changed.pop(dice.randrange(len(changed)))
    commits[chosen] = msgspec.structs.replace(commits[chosen], decisions=tuple(changed))
    return f"version {chosen + 1}", _rechained(life, commits, chosen)


def _rechained(life: Life, commits: list[Commit], begin: int) -> Life:
    for at in range(begin, len(commits)):
        made = commits[at]
        inputs = (*life.control[made.clo : made.chi], *life.facts[made.lo : made.hi])
        prev = commits[at - 1].digest if at else made.prev
        commits[at] = seal(msgspec.structs.replace(made, prev=prev), inputs)
    return _with_commits(life, commits)


def _with_commits(life: Life, commits: list[Commit]) -> Life:
    """Return the life with another ledger, stored after everything else."""
    stamp_ns = max(START_NS, life.facts[-1].stamp_ns)
    return life.with_stream("LW_LEDGER", stored(commits, stamp_ns, life.ledger[0].subject))


def forge_everything(dice: random.Random, life: Life) -> tuple[str, Life]:
    """Another history, decided by the same rules, made with every node's key: only what was signed speaks against it."""
    recorder, gone = Recorder(), dice.randrange(10, len(life.facts) // 2)
    recorder.control = list(life.control)
    kept = [message for message in life.facts if message.seq != gone]
    recorder.facts = list(_renumbered(kept))
    generation = decode_commit(life.ledger[0].body).generation
    master = decided(recorder, dice.randrange(1000), Reader(life.cluster, life.secret), generation)
    return f"without fact {gone}", _with_commits(life.with_stream("LW_EVENTS", tuple(recorder.facts)), master.commits)


def restore_older(dice: random.Random, life: Life) -> tuple[str, Life]:
    """All streams as they were at an earlier commit: a history that is whole in itself."""
    version = dice.randrange(1, len(life.ledger))
    made = decode_commit(life.ledger[version - 1].body)
    older = life.with_stream("LW_LEDGER", life.ledger[:version]).with_stream("LW_EVENTS", life.facts[: made.hi])
    return f"version {version}", older.with_stream("LW_CONTROL", life.control[: made.chi])


def lose_the_tail(dice: random.Random, life: Life) -> tuple[str, Life]:
    """Facts that no commit has folded yet."""
    hi = decode_commit(life.ledger[-1].body).hi
    if hi >= len(life.facts):
        return truncate(dice, life)
    kept = dice.randrange(hi, len(life.facts))
    return f"after {kept}", life.with_stream("LW_EVENTS", life.facts[:kept])


def change_a_commit_blindly(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A number in a commit, its digest mended but nothing after it."""
    at = dice.randrange(len(life.ledger))
    made = decode_commit(life.ledger[at].body)
    changed = msgspec.structs.replace(made, now_us=made.now_us + dice.randint(1, 10**6))
    inputs = (*life.control[made.clo : made.chi], *life.facts[made.lo : made.hi])
    ledger = list(life.ledger)
    ledger[at] = msgspec.structs.replace(ledger[at], body=encode_commit(seal(changed, inputs)))
    return f"version {at + 1}", life.with_stream("LW_LEDGER", tuple(ledger))


def end_safe_mode(dice: random.Random, life: Life) -> tuple[str, Life]:
    """A new generation begun in the operator's name, or as after lost facts: with no key, a stranger's, or another's name."""
    what, first = begun_falsely(dice, life.ledger[-1], life.cluster, life.operator)
    commits = [decode_commit(message.body) for message in life.ledger]
    return what, _with_commits(life, [*commits, first])


def begun_falsely(dice: random.Random, last: StoredMessage, cluster: str, operator: str) -> tuple[str, Commit]:
    """Return a commit that begins a generation after `last` as somebody would make it who has not the operator's key."""
    who, reason = dice.choice(("nobody", "a stranger", "the operator")), dice.choice(("we looked", f"{GAP}LW_EVENTS"))
    reason = f"{reason} {dice.randrange(10_000)}"
    first = genesis(decode_commit(last.body), Generation("0002abcd"), reason, events_first=1, control_first=1)
    if who == "nobody":
        return f"{who}: {reason}", first
    first = signed_begin(first, cluster, Signer(new_nkey()[0]))
    if who == "the operator":  # the name alone
        left = safe_mode_left(first)
        assert left is not None
        named = msgspec.structs.replace(left, public=operator)
        first = seal(msgspec.structs.replace(first, decisions=(named,), digest=""), ())
    return f"{who}: {reason}", first


CHANGES: tuple[Change, ...] = (
    flip_body,
    flip_subject,
    flip_headers,
    flip_stamp,
    delete,
    delete_and_close_up,
    reorder,
    truncate,
    lose_the_front,
    lose_a_stream,
    lose_the_tail,
    repeat,
    replace,
    forge_a_fact,
    forge_a_commit,
    forge_everything,
    restore_older,
    change_a_commit_blindly,
    end_safe_mode,
)
