"""Decisions as a node believes them: for the master's signature and the addresses and order key inside, never for a subject."""

from typing import Final

import msgspec

from adapters.keys import Verifier
from domain.actions import OrderKey
from domain.events import Decision, LeaseChanged, LeaseCleared, LeaseGranted, codec
from domain.events.decision import LeaseEvent
from domain.ids import Generation, LeaseId, LinkId

_LEASE_EVENTS: Final = (LeaseGranted, LeaseChanged, LeaseCleared)


class SignedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision whose signature holds."""

    order: OrderKey
    decision: Decision
    body: bytes
    """The signed bytes, to be shown to others."""

    @property
    def generation(self) -> Generation:
        """Return the generation of the ledger that it belongs to."""
        return Generation(self.order[0])

    @property
    def lease(self) -> LeaseEvent | None:
        """Return the decision if it is one that nodes act on."""
        return self.decision if isinstance(self.decision, _LEASE_EVENTS) else None


class DecisionReader:
    """Checks decisions of one cluster's master."""

    def __init__(self, cluster: str, master_public: str) -> None:
        """Believe only what `master_public` has signed for `cluster`."""
        self._cluster, self._verifier = cluster, Verifier(master_public)

    def read(self, body: bytes) -> SignedDecision | None:
        """Return the decision in `body`; None if it is not the master's, not of this cluster, or none at all."""
        tagged = codec.split_tag(body, "sig")
        if tagged is None or not self._verifier.verifies(*tagged):
            return None
        try:
            envelope = codec.decode_envelope(tagged[0] + b"}")
            decision = codec.decode_decision(envelope.data)
        except msgspec.DecodeError:
            return None
        order = _order(envelope.id)
        if envelope.cluster != self._cluster or envelope.type != codec.tag_of(decision) or order is None:
            return None
        return SignedDecision(order=order, decision=decision, body=body)


def unsigned_lease(body: bytes) -> LeaseEvent | None:
    """Return the lease event that `body` claims to be, its signature not looked at: to say what was refused."""
    try:
        decision = codec.decode_decision(codec.decode_envelope(body).data)
    except msgspec.DecodeError:
        return None
    return decision if isinstance(decision, _LEASE_EVENTS) else None


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    signed: SignedDecision
    event: LeaseEvent
    taken_us: int


class LeaseCopies:
    """The newest lease event of each link, as this node has seen it: what it shows to helpers, and checks owners against."""

    def __init__(self) -> None:
        """Begin with none."""
        self._newest: dict[LinkId, _Copy] = {}

    def take(self, signed: SignedDecision, now_us: int) -> bool:
        """Keep a lease event if it is newer than what is kept of its link; tell whether it was."""
        event = signed.lease
        if event is None:
            return False
        kept = self._newest.get(event.link)
        if kept is not None and signed.order <= kept.signed.order:
            return False
        self._newest[event.link] = _Copy(signed=signed, event=event, taken_us=now_us)
        return True

    def shown(self, link: LinkId, order: OrderKey) -> bytes | None:
        """Return the signed bytes of the decision `order` of `link`; None if it is not the newest one any more."""
        kept = self._newest.get(link)
        return kept.signed.body if kept is not None and kept.signed.order == order else None

    def live(self, link: LinkId, lease: LeaseId, now_us: int) -> LeaseEvent | None:
        """Return the newest event of `link` if it lets requests come under `lease` now."""
        kept = self._newest.get(link)
        if kept is None or kept.event.lease != lease or kept.event.slots <= 0 or isinstance(kept.event, LeaseCleared):
            return None
        # the owner's clock counts from the basis, which is older: for a lease that was not renewed this is the later end
        return kept.event if now_us < kept.taken_us + kept.event.ttl_us else None


def _order(decision_id: str) -> OrderKey | None:
    """Return (generation, version, index) of `<generation>-<version>-<index>`."""
    parts = decision_id.split("-")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return Generation(parts[0]), int(parts[1]), int(parts[2])
