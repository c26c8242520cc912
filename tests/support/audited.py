"""A history to be audited in parts: its streams, and the states that it has been in."""

import random

import msgspec

from adapters.keys import Signer
from adapters.log.checkpoints import Kept, sign
from adapters.log.copied import CopiedStream
from adapters.log.history import Streams
from adapters.log.segments import FindState
from domain.events import Checkpoint
from domain.events.commit import Commit, decode_commit, encode_commit
from domain.master.state import encode_state
from domain.ports import StoredMessage
from tests.support.history import CLUSTER, Master, random_history


class Lived(msgspec.Struct):
    """A history, and what an audit may know of it besides."""

    streams: Streams
    states: dict[int, bytes]
    """After the commits that state a digest."""
    last: int
    """Version of the newest commit."""
    stamp_ns: int
    """Commit n is stored n seconds after this."""


def lived_on() -> Lived:
    """Return a history of some 230 commits, each seventh of which states the digest of its state."""
    recorder, master, dice = random_history(12, 900), Master(), random.Random(1)
    states: dict[int, bytes] = {}

    def keep(made: Commit) -> None:
        if made.state:
            states[made.version] = encode_state(master.state)

    at, control = 0, list(recorder.control)
    while at < len(recorder.facts):
        chunk = recorder.facts[at : at + dice.randint(1, 6)]
        at += len(chunk)
        due = [message for message in control if message.stamp_ns <= chunk[-1].stamp_ns]
        control = control[len(due) :]
        master.take(chunk, due, with_state=len(master.commits) % 7 == 0, each=keep)
    ledger = [
        StoredMessage(made.version, recorder.now_ns + made.version * 10**9, "lw.test.ledger", b"", encode_commit(made))
        for made in master.commits
    ]
    held = (("LW_EVENTS", recorder.facts), ("LW_CONTROL", recorder.control), ("LW_LEDGER", ledger))
    return Lived(
        Streams(*(CopiedStream(name, messages) for name, messages in held)), states, len(ledger), recorder.now_ns
    )


def stored(states: dict[int, bytes]) -> FindState:
    """Return what finds these states."""

    async def find(upto: int) -> tuple[int, bytes] | None:
        version = max((each for each in states if each <= upto), default=None)
        return (version, states[version]) if version is not None else None

    return find


async def checkpoint(lived: Lived, signer: Signer, version: int, **changes: object) -> Kept:
    """Return the checkpoint of a stored version, with some of its fields changed before it was signed."""
    message = await lived.streams.ledger.get(version)
    assert message is not None
    made = decode_commit(message.body)
    draft = Checkpoint(
        cluster=CLUSTER,
        generation=made.generation,
        version=version,
        digest=made.digest,
        hi=made.hi,
        chi=made.chi,
        at_us=1,
    )
    return Kept(checkpoint=sign(msgspec.structs.replace(draft, **changes), signer), source="a book")
