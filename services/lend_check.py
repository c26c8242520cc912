"""Whether a lend may be taken, or passed on: judged by its headers alone, before a byte of its body is asked for."""

import logging
from typing import Final

import msgspec

from adapters.decisions import DecisionReader, SignedDecision
from adapters.http.body import check_headers
from adapters.http.errors import ApiError
from adapters.http.server import Call
from adapters.http.surface import WORK_PATHS
from domain.control.view import ControlView
from domain.events.decision import LeaseEvent
from domain.ids import NodeId
from services import lend_head
from services.lend_head import BadLendError, LendHead

_LOG: Final = logging.getLogger("leaseway.node")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a lend shows, signatures checked and the two in agreement. Whether the lease is live is another question."""

    head: LendHead
    grant: SignedDecision
    lease: LeaseEvent


class LendCheck:
    """Judges lends of one cluster."""

    def __init__(self, view: ControlView, reader: DecisionReader, limit_bytes: int) -> None:
        """Believe the roster in `view` for owners' keys, and `reader` for the master's word."""
        self._view, self._reader, self._limit_bytes = view, reader, limit_bytes

    def shown(self, call: Call, prefix: str, *, helper: NodeId | None = None) -> Shown:
        """Return what a lend to `prefix` shows; `helper`: the only one it may be for.

        Raises:
            ApiError: it is no lend, or nobody of this cluster signed it; nothing has changed.
        """
        headers = call.request.headers
        if headers.get("Expect", "").strip().lower() != "100-continue":
            raise ApiError("expectation_failed", "a lend must wait for 100 Continue before its body")
        check_headers(call.request, self._limit_bytes)
        try:
            head, encoded, signature, grant = lend_head.opened(headers)
        except BadLendError as error:
            raise ApiError("bad_request", f"lend: {error}") from None
        owner = self._view.node(head.owner)
        if owner is None or not lend_head.is_signed(encoded, signature, owner.public_key):
            _LOG.warning("lend_refused", extra={"owner": head.owner, "request": head.request, "why": "signature"})
            raise ApiError("bad_signature", f"lend of {head.owner}: must be signed by a node of this cluster")
        if helper not in {None, head.helper}:
            raise ApiError("bad_request", f"lend: is for {head.helper}, came to {helper}")
        path = call.path.removeprefix(prefix)
        if head.path != path or path not in WORK_PATHS:
            raise ApiError("bad_request", f"lend: is for {head.path[:80]}, came to {path[:80]}")
        if call.request.content_length != head.size_bytes:
            raise ApiError("bad_request", f"lend: Content-Length must be {head.size_bytes}")
        return self._granted(head, grant)

    def _granted(self, head: LendHead, grant: bytes) -> Shown:
        signed = self._reader.read(grant)
        event = signed.lease if signed is not None else None
        if signed is None or event is None:
            _LOG.warning("lend_refused", extra={"owner": head.owner, "request": head.request, "why": "grant"})
            raise ApiError("bad_signature", f"lend of {head.owner}: the grant must be signed by the master")
        named = (event.link, event.owner, event.helper, event.helper_model, event.lease)
        if named != (head.link, head.owner, head.helper, head.model, head.lease):
            raise ApiError("no_live_lease", f"lend of {head.owner}: the grant is for something else")
        return Shown(head=head, grant=signed, lease=event)
