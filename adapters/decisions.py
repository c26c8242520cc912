"""Decisions as nodes and gateways believe them: for the master's signature and what is inside, never for a subject."""

from typing import Final

import msgspec

from adapters.keys import Verifier
from domain.actions import OrderKey
from domain.events import (
    Decision,
    Envelope,
    LeaseChanged,
    LeaseChecked,
    LeaseCleared,
    LeaseGranted,
    LeaseStalled,
    LinkPriced,
    codec,
)
from domain.events.decision import LeaseEvent, LinkWord
from domain.ids import Generation

_LEASE_EVENTS: Final = (LeaseGranted, LeaseChanged, LeaseCleared)
_LINK_WORDS: Final = (LinkPriced, LeaseChecked, LeaseStalled)


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
        """Return the decision if it gives or takes slots."""
        return self.decision if isinstance(self.decision, _LEASE_EVENTS) else None

    @property
    def word(self) -> LinkWord | None:
        """Return the decision if it is what else the two ends of a link act on."""
        return self.decision if isinstance(self.decision, _LINK_WORDS) else None


class DecisionReader:
    """Checks decisions of one cluster's master."""

    def __init__(self, cluster: str, master_public: str) -> None:
        """Believe only what `master_public` has signed for `cluster`."""
        self._cluster, self._verifier = cluster, Verifier(master_public)

    def read(self, body: bytes) -> SignedDecision | None:
        """Return the decision in `body`; None if it is not the master's, not of this cluster, or none at all."""
        envelope = self._signed(body)
        if envelope is None:
            return None
        try:
            decision = codec.decode_decision(envelope.data)
        except msgspec.DecodeError:
            return None
        order = _order(envelope.id)
        if envelope.type != codec.tag_of(decision) or order is None:
            return None
        return SignedDecision(order=order, decision=decision, body=body)

    def is_signed(self, body: bytes) -> bool:
        """Tell whether the master has signed `body` for this cluster, also if it is a decision that only a newer version knows.

        For those who pass it on and do not act on it.
        """
        return self._signed(body) is not None

    def _signed(self, body: bytes) -> Envelope | None:
        tagged = codec.split_tag(body, "sig")
        if tagged is None or not self._verifier.verifies(*tagged):
            return None
        try:
            envelope = codec.decode_envelope(tagged[0] + b"}")
        except msgspec.DecodeError:
            return None
        return envelope if envelope.cluster == self._cluster else None


def unsigned_lease(body: bytes) -> LeaseEvent | None:
    """Return the lease event that `body` claims to be, its signature not looked at: to say what was refused."""
    try:
        decision = codec.decode_decision(codec.decode_envelope(body).data)
    except msgspec.DecodeError:
        return None
    return decision if isinstance(decision, _LEASE_EVENTS) else None


def _order(decision_id: str) -> OrderKey | None:
    """Return (generation, version, index) of `<generation>-<version>-<index>`."""
    parts = decision_id.split("-")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return Generation(parts[0]), int(parts[1]), int(parts[2])
