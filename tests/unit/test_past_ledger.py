"""A state is rebuilt through the repository from commits of another version too, and from none but what stands there."""

import hashlib
from collections.abc import Callable, Iterable
from typing import cast

import msgspec
import pytest

from adapters.log.copied import CopiedStream
from adapters.log.history import Streams, stored_commit
from adapters.log.reader import Reader
from adapters.log.travel import state_at
from adapters.nats.eventsourcing.grant_ledger import GrantLedger
from domain.errors import ChainBrokenError, HistoryError
from domain.events.commit import GENESIS_DIGEST, Commit, decode_commit, digest_inputs, encode_commit
from domain.master.state import encode_state
from domain.ports import StoredMessage
from services.past.ledger import through_repository
from tests.support.history import CLUSTER, SECRET, Master, Recorder, random_history


class Rebuilding:
    """Hands over commits as the library's repository does, on a thread of its own."""

    def __init__(self, commits: list[Commit]) -> None:
        self._commits = commits

    def rebuild(self, version: int, project: Callable[[Iterable[Commit]], int], *, after: int) -> int:
        return project(self._commits[after:version])


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return random_history(5, 200)


@pytest.fixture(scope="module")
def bodies(recorder: Recorder) -> list[bytes]:
    """Return commits as a version would have written them that left out what is empty."""
    master = Master()
    master.take_all(recorder, lambda: 12)
    found, prev = list[bytes](), GENESIS_DIGEST
    for made in master.commits:
        fields = {
            name: value for name, value in msgspec.json.decode(encode_commit(made)).items() if value not in ([], "")
        }
        fields |= {"prev": prev, "digest": ""}
        hasher = hashlib.blake2b(bytes.fromhex(prev), digest_size=16)
        digest_inputs(hasher, [*recorder.control[made.clo : made.chi], *recorder.facts[made.lo : made.hi]])
        hasher.update(msgspec.json.encode(fields))
        prev = hasher.hexdigest()
        found.append(msgspec.json.encode(fields | {"digest": prev}))
    return found


def streams_of(recorder: Recorder, bodies: list[bytes]) -> Streams:
    ledger = [StoredMessage(seq, recorder.now_ns, "lw.test.ledger", b"", body) for seq, body in enumerate(bodies, 1)]
    held = (("LW_EVENTS", recorder.facts), ("LW_CONTROL", recorder.control), ("LW_LEDGER", ledger))
    return Streams(*(CopiedStream(name, messages) for name, messages in held))


async def state_of(streams: Streams, handed: list[Commit]) -> bytes:
    ledger = cast("GrantLedger", Rebuilding(handed))
    version = len(handed)
    then = await state_at(streams, Reader(CLUSTER, SECRET), version=version, fold=through_repository(ledger))
    return encode_state(then.state)


async def test_commits_of_a_version_that_wrote_fewer_fields_are_folded_through_the_repository_as_along_the_stream(
    recorder: Recorder, bodies: list[bytes]
):
    commits, streams = [decode_commit(body) for body in bodies], streams_of(recorder, bodies)
    assert encode_commit(commits[-1]) != bodies[-1]
    along = await state_at(streams, Reader(CLUSTER, SECRET), version=len(commits))
    assert await state_of(streams, commits) == encode_state(along.state)


async def test_a_commit_that_the_repository_has_read_and_the_ledger_does_not_hold_is_refused(
    recorder: Recorder, bodies: list[bytes]
):
    commits = [decode_commit(body) for body in bodies]
    commits[7] = msgspec.structs.replace(commits[7], now_us=commits[7].now_us + 1)
    with pytest.raises(HistoryError, match="ledger message 8: is not the commit"):
        await state_of(streams_of(recorder, bodies), commits)


def test_a_commit_that_continues_what_is_no_digest_is_none(bodies: list[bytes]):
    other = bodies[3].replace(b'"prev":"', b'"prev":"g')
    with pytest.raises(ChainBrokenError, match="continues a commit of digest 'g"):
        stored_commit(StoredMessage(4, 0, "lw.test.ledger", b"", other))
