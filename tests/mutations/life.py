"""A history that a real master has decided, signed and witnessed, in memory, and a master started on what became of it."""

import asyncio
import random
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from adapters.headers import encode_headers
from adapters.keys import Signer, new_nkey
from adapters.log.begun import check_generations
from adapters.log.checkpoints import CheckpointBook, Kept, sign, tail_digest
from adapters.log.copied import CopiedStream
from adapters.log.feed import Feed
from adapters.log.generations import Beginners, safe_mode_left
from adapters.log.history import Streams
from adapters.log.ledger import Ledger
from adapters.log.reader import Reader
from adapters.log.snapshots import Snapshots
from adapters.log.verify import Part, verify
from adapters.memory.stream import MemoryStream
from domain.errors import PublishUnknownError
from domain.events import Checkpoint, Input
from domain.events.commit import Commit, decode_commit, encode_commit
from domain.ids import Generation
from domain.master.state import State, encode_state
from domain.master.step import Range, fold_into, follow
from domain.ports import Clock, Stored, StoredMessage, Witnessed
from domain.subjects import ledger_subject
from services.master.checkpoints import Checkpoints
from services.master.loop import MasterLoop, Parts
from tests.support.history import CLUSTER, SECRET, START_NS, Master, Recorder, random_history
from tests.support.waiting import until

LEDGER_SUBJECT = ledger_subject(CLUSTER)


class Life(msgspec.Struct, frozen=True):
    """What stands in the three streams, and what is kept elsewhere."""

    facts: tuple[StoredMessage, ...]
    control: tuple[StoredMessage, ...]
    ledger: tuple[StoredMessage, ...]
    checkpoints: tuple[Checkpoint, ...]
    witnessed: Witnessed
    snapshot: tuple[int, bytes]
    """The newest state for which a commit vouches: a master begins there, and what is before it is easily overlooked."""
    cluster: str = CLUSTER
    secret: str = SECRET
    """Of the cluster's MACs."""
    operator: str = ""
    """The operator's public key."""

    def streams(self) -> dict[str, tuple[StoredMessage, ...]]:
        """Return the messages by stream."""
        return {"LW_EVENTS": self.facts, "LW_CONTROL": self.control, "LW_LEDGER": self.ledger}

    def with_stream(self, name: str, messages: tuple[StoredMessage, ...]) -> "Life":
        """Return the same with another stream."""
        field = {"LW_EVENTS": "facts", "LW_CONTROL": "control", "LW_LEDGER": "ledger"}[name]
        return msgspec.structs.replace(self, **{field: messages})


SIGNER = Signer(new_nkey()[0])
OPERATOR = Signer(new_nkey()[0])


def decided(recorder: Recorder, seed: int, reader: Reader | None = None, generation: str = "00010000") -> Master:
    """Let a master decide a history in batches of that seed."""
    master, dice = Master(generation), random.Random(seed)
    master.reader = reader or master.reader
    master.take_all(recorder, lambda: dice.randint(1, 20))
    return master


@lru_cache(32)
def lived(seed: int, events: int = 240, *, later_ns: int = 0) -> Life:
    """Return a life whose last facts no commit has folded yet, with a checkpoint every few commits and one at its end.

    `later_ns`: so much after the time at which made-up histories begin.
    """
    recorder = random_history(seed, events)
    recorder.facts = [msgspec.structs.replace(each, stamp_ns=each.stamp_ns + later_ns) for each in recorder.facts]
    recorder.control = [msgspec.structs.replace(each, stamp_ns=each.stamp_ns + later_ns) for each in recorder.control]
    master = decided(recorder, seed)
    extra = random_history(seed, events + 9).facts[len(recorder.facts) :]
    tail = tuple(
        msgspec.structs.replace(message, seq=len(recorder.facts) + at, stamp_ns=message.stamp_ns + later_ns)
        for at, message in enumerate(extra, 1)
    )
    facts = (*recorder.facts, *tail)
    commits = master.commits
    ledger = stored(commits, START_NS + later_ns)
    checkpoints = [signed(made) for made in commits[4::7]]
    open_facts = facts[commits[-1].hi :]
    checkpoints.append(
        sign(
            msgspec.structs.replace(
                signed(commits[-1]),
                tail_hi=len(facts),
                tail_chi=commits[-1].chi,
                tail=tail_digest(open_facts),
                at_us=facts[-1].stamp_ns // 1000 + 1,
            ),
            SIGNER,
        )
    )
    newest = Witnessed(generation=commits[-1].generation, version=commits[-1].version, digest=commits[-1].digest)
    control = tuple(recorder.control[: commits[-1].chi])
    snapshot = _snapshot(recorder, commits)
    return Life(facts, control, ledger, tuple(checkpoints), newest, snapshot, operator=OPERATOR.public)


def _snapshot(recorder: Recorder, commits: list[Commit]) -> tuple[int, bytes]:
    """Return the newest (version, state bytes) that a commit vouches for."""
    reader, state = Reader(CLUSTER, SECRET), State()
    newest = max(made.version for made in commits if made.state)
    for made in commits[:newest]:
        state.term, span = made.term, Range()
        control = [(reader.control(m), m) for m in recorder.control[made.clo : made.chi]]
        fold_into(state, span, control, reader.facts(recorder.facts[made.lo : made.hi]))
        follow(state, made)
    return newest, encode_state(state)


def stored(commits: list[Commit], stamp_ns: int, subject: str = LEDGER_SUBJECT) -> tuple[StoredMessage, ...]:
    """Return commits as the ledger holds them."""
    return tuple(
        StoredMessage(
            made.version,
            stamp_ns + 10**15 + made.version,
            subject,
            encode_headers(None, message_id=f"{made.version}-{made.digest}", expected_last=made.version - 1),
            encode_commit(made),
        )
        for made in commits
    )


def signed(made: Commit) -> Checkpoint:
    """Return the checkpoint of a commit."""
    return sign(
        Checkpoint(
            cluster=CLUSTER,
            generation=made.generation,
            version=made.version,
            digest=made.digest,
            hi=made.hi,
            chi=made.chi,
            state=made.state,
            at_us=START_NS // 1000,
        ),
        SIGNER,
    )


async def found_by_audit(life: Life) -> str:
    """Return what a verification names first; empty if it finds nothing."""
    kept = [Kept(checkpoint=each, source="the test") for each in life.checkpoints]
    report = await verify(_copies(life), Reader(CLUSTER, SECRET), part=Part(checkpoints=kept))
    await check_generations(_copies(life).ledger, Beginners(cluster=CLUSTER, operator=life.operator), report, kept)
    return "" if report.clean else (report.stopped or report.differences[0].detail)


def _copies(life: Life) -> Streams:
    held = {name: CopiedStream(name, list(messages)) for name, messages in life.streams().items()}
    return Streams(held["LW_EVENTS"], held["LW_CONTROL"], held["LW_LEDGER"])


class _Watched(CopiedStream):
    """A ledger that notes what a master tries to store in it."""

    def __init__(self, name: str, messages: list[StoredMessage]) -> None:
        super().__init__(name, messages)
        self.tried: list[bytes] = []

    async def publish(self, subject: str, body: bytes, **_: object) -> Stored:
        self.tried.append(body)
        raise PublishUnknownError(f"{subject}: nobody answers")


class _Silent:
    """An observer that hears nothing and says nothing."""

    master_seen_us: int | None = None

    async def listen(self) -> None:
        """Hear nothing."""

    def begin(self) -> None:
        """Begin."""

    def beat(self) -> None:
        """Beat."""

    async def look(self, _: object) -> None:
        """See nothing."""

    async def state(self, _: int, __: Input) -> None:
        """Say nothing."""

    async def due(self, *_: object) -> None:
        """Say nothing."""


class _Book:
    def __init__(self, kept: Witnessed) -> None:
        self.kept = kept

    async def read(self) -> Witnessed | None:
        return self.kept

    async def put_aside(self) -> str:
        """Return that all is well."""
        return ""

    async def write(self, witnessed: Witnessed) -> None:
        self.kept = witnessed


async def doubt_of_a_master(life: Life, folder: Path, clock: Clock, *, relaxed: bool = False) -> str:
    """Start a master on a life; return why it is in safe mode, or, once it would store a commit, `decides` or `begins anew`."""
    held = _copies(life)
    ledger = _Watched("LW_LEDGER", list(life.ledger))
    book = CheckpointBook(folder)
    for each in life.checkpoints:
        await book.add(each)
    feed, snap = MemoryStream("LW_DECISIONS", clock), MemoryStream("LW_SNAP", clock)
    snapshots = Snapshots(snap, cluster=CLUSTER)
    await snapshots.save(*life.snapshot)
    parts = Parts(
        streams=Streams(held.events, held.control, ledger),
        ledger=Ledger(ledger, LEDGER_SUBJECT),
        feed=Feed(feed, cluster=CLUSTER, signer=SIGNER, clock=clock),
        snapshots=snapshots,
        witness=_Book(life.witnessed),
        reader=Reader(CLUSTER, SECRET),
        observer=_Silent(),  # type: ignore[arg-type]  # the same methods
        clock=clock,
        new_generation=Generation("00010000"),
        signer=SIGNER,
        operator_public=life.operator,
        relaxed=relaxed,
        checkpoints=Checkpoints(book, SIGNER, CLUSTER, clock),
    )
    loop = MasterLoop(parts)
    task = asyncio.ensure_future(loop.run())
    try:
        await until(
            "it decides or doubts", lambda: loop.mode == "safe_mode" or ledger.tried or task.done(), timeout_s=60
        )
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert not (ledger.tried and loop.mode == "safe_mode"), "it tried to decide before it doubted"
    if loop.mode == "safe_mode":
        return loop.doubt
    return "begins anew" if safe_mode_left(decode_commit(ledger.tried[0])) is not None else "decides"
