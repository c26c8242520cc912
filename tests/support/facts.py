"""Small builders of stored facts, control events and commits, so that a test says only what it is about.

node = Teller("n1")
message = node.tells(held("req_..."), seq=1)          # a StoredMessage of LW_EVENTS
body = node.body(held("req_..."))                     # the same as bytes, to be published on node.subject(fact)
ledger = Ledger()
message = ledger.commits(plan(...), granted(...))     # the next StoredMessage of LW_LEDGER, chained to the last
"""

import hashlib
import os

import msgspec

from domain.events import (
    Basis,
    ControlEvent,
    Decision,
    Envelope,
    Finished,
    Held,
    Input,
    LeaseGranted,
    Lent,
    OwnerPlanned,
    Verdict,
)
from domain.events.base import tag_of
from domain.events.codec import encode, raw, with_tag
from domain.events.commit import GENESIS_DIGEST, Commit, encode_commit, seal
from domain.ids import Generation, Incarnation, LeaseId, ModelId, NodeId, RequestId, link_id
from domain.ports import StoredMessage
from domain.subjects import control_aggregate, control_subject, fact_subject, ledger_subject

DAY_NS = 86_400_000_000_000
CLUSTER = "local"
MODEL = ModelId("qwen/7b")
GENERATION = Generation("00010000")
OWNER, HELPER = NodeId("n1"), NodeId("n2")
LINK = link_id(OWNER, MODEL, HELPER, MODEL)


def request(number: int) -> RequestId:
    """Return a request id that is the same for the same number."""
    return RequestId(f"req_{number:032x}")


def lease(version: int = 1, index: int = 1) -> LeaseId:
    return LeaseId(f"{GENERATION}-{version}-{index}")


class Teller:
    """A node that states facts: counts pseq and keeps its incarnation."""

    def __init__(self, node: str = OWNER, *, incarnation: str = "", cluster: str = CLUSTER, pseq: int = 0) -> None:
        self.node, self.cluster, self.pseq = NodeId(node), cluster, pseq
        self.incarnation = Incarnation(incarnation or hashlib.blake2b(node.encode(), digest_size=16).hexdigest())

    def restart(self) -> "Teller":
        """Begin a new incarnation."""
        self.incarnation, self.pseq = Incarnation(os.urandom(16).hex()), 0
        return self

    def subject(self, fact: Input) -> str:
        return fact_subject(self.cluster, self.node, fact)

    def body(self, fact: Input, *, pseq: int | None = None, late: bool = False) -> bytes:
        """Return the stored bytes of the node's next fact, or of its fact `pseq` again."""
        if pseq is None:
            self.pseq += 1
            pseq = self.pseq
        envelope = Envelope(
            id=f"{self.incarnation}/{pseq}",
            source=f"/{self.cluster}/node/{self.node}",
            type=tag_of(fact),
            cluster=self.cluster,
            producer=self.node,
            incarnation=self.incarnation,
            pseq=str(pseq),
            late=late,
            data=raw(fact),
        )
        return with_tag(encode(envelope), "mac", "00" * 32)

    def tells(self, fact: Input, seq: int, *, at_ns: int = 0, pseq: int | None = None) -> StoredMessage:
        """Return the node's next fact as LW_EVENTS holds it at `seq`."""
        return StoredMessage(seq, at_ns or seq * 1000, self.subject(fact), b"", self.body(fact, pseq=pseq))


class Ledger:
    """Commits that follow each other."""

    def __init__(self, generation: Generation = GENERATION, cluster: str = CLUSTER) -> None:
        self.generation, self.cluster = generation, cluster
        self.version, self.digest, self.hi = 0, GENESIS_DIGEST, 0

    def commit(
        self, *decisions: Decision, rejected: tuple[tuple[int, str], ...] = (), prev: str = "", hi: int | None = None
    ) -> Commit:
        """Return the next commit, over the facts up to `hi`; if nobody says, over one more."""
        self.version += 1
        lo, self.hi = self.hi, self.hi + 1 if hi is None else hi
        commit = seal(
            Commit(
                version=self.version,
                generation=self.generation,
                term=1,
                policy="1",
                lo=lo,
                hi=self.hi,
                clo=0,
                chi=0,
                n=1,
                now_us=self.hi * 1000,
                rejected=rejected,
                decisions=decisions,
                prev=prev or self.digest,
                digest="",
            ),
            (),
        )
        self.digest = commit.digest
        return commit

    def commits(
        self, *decisions: Decision, at_ns: int = 0, rejected: tuple[tuple[int, str], ...] = (), prev: str = ""
    ) -> StoredMessage:
        """Return the next commit as LW_LEDGER holds it: its sequence is its version."""
        body = encode_commit(self.commit(*decisions, rejected=rejected, prev=prev))
        return StoredMessage(self.version, at_ns or self.version * 1000, ledger_subject(self.cluster), b"", body)


def control(event: ControlEvent, *, cluster: str = CLUSTER) -> tuple[str, bytes]:
    """Return (subject, body) of a control event as an operator stores it."""
    aggregate = control_aggregate(event)
    envelope = Envelope(
        id=f"{aggregate}/1",
        source=f"/{cluster}/control/{aggregate}",
        type=tag_of(event),
        cluster=cluster,
        producer="operator",
        data=raw(event),
    )
    return control_subject(cluster, aggregate), encode(envelope)


def held(number: int, *, waiting: int = 1, model: ModelId = MODEL) -> Held:
    return Held(
        request=request(number),
        model=model,
        lane="text",
        work=64_000_000,
        size_bytes=200,
        est_tokens=64,
        streaming=False,
        replayable=True,
        lendable=True,
        waiting=waiting,
    )


def lent(number: int, *, out: int = 1, lease_id: LeaseId | None = None) -> Lent:
    return Lent(
        request=request(number),
        model=MODEL,
        helper=HELPER,
        link=LINK,
        lease=lease_id or lease(),
        work=64_000_000,
        out=out,
        waited_us=1500,
    )


def finished(number: int, *, helper: str = "", model: ModelId = MODEL, code: str = "") -> Finished:
    return Finished(
        request=request(number),
        model=model,
        work=64_000_000,
        wait_us=2000,
        service_us=900_000,
        status=200,
        code=code,
        tokens_in=12,
        tokens_out=64,
        helper=helper,
    )


def verdict(*, helper: str = HELPER, outcome: str = "granted", code: str = "", slots: int = 2) -> Verdict:
    return Verdict(
        helper=NodeId(helper),
        link=LINK,
        outcome=outcome,
        code=code,
        slots=slots,
        first_answer_us=2_000_000,
        job_us=1_000_000,
        gain_us=5_000_000,
        source="helper",
        quota=3,
    )


def plan(*verdicts: Verdict, left_out: tuple[tuple[str, int], ...] = ()) -> OwnerPlanned:
    return OwnerPlanned(
        owner=OWNER,
        model=MODEL,
        trigger="enqueued",
        held=8,
        lendable=7,
        in_engine=2,
        out=0,
        drain_us=11_000_000,
        lent_drain_us=5_500_000,
        owner_job_us=1_100_000,
        verdicts=verdicts,
        left_out=left_out,
    )


def granted(*, slots: int = 2, lease_id: LeaseId | None = None) -> LeaseGranted:
    return LeaseGranted(
        link=LINK,
        owner=OWNER,
        owner_model=MODEL,
        helper=HELPER,
        helper_model=MODEL,
        helper_url="http://127.0.0.1:8101",
        lease=lease_id or lease(),
        slots=slots,
        ttl_us=30_000_000,
        basis=Basis(OWNER, Incarnation("ab" * 16), 3),
        job_us=1_000_000,
        source="helper",
        gain_us=5_000_000,
    )


def changed_body(message: StoredMessage, old: bytes, new: bytes) -> StoredMessage:
    """Return `message` with one piece of its body replaced."""
    assert old in message.body
    return msgspec.structs.replace(message, body=message.body.replace(old, new, 1))
