"""What an owner shows a helper before it sends a body: who asks, under which lease, for what; signed with the owner's nkey."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from adapters.keys import Signer, Verifier
from domain.catalogue.work import WORK_MAX
from domain.ids import LeaseId, LinkId, ModelId, NodeId, RequestId

PREFIX: Final = "/cluster/v1/lend"
RELAY_PREFIX: Final = "/cluster/v1/relay"
HEAD: Final = "Leaseway-Lend"
SIGNATURE: Final = "Leaseway-Lend-Signature"
GRANT: Final = "Leaseway-Grant"
OUTCOME: Final = "leaseway-outcome"
"""How a helper's answer is meant: answered, returned, busy, refused (not started), failed (its engine died under it),
stopped (the node ended under it).

A relay of its own accord only refuses: no_live_lease, helper_unreachable, forward_failed, or why it does not trust the lend.
"""
REASON: Final = "leaseway-reason"
SERVICE_US: Final = "leaseway-service-us"
"""How long the engine served it; of a stream, whose head is out before that is known, only the helper's facts say it."""
LOAD_US: Final = "leaseway-load-us"
"""What loading the model for it took; missing if nothing was loaded."""


# an owner's word goes into facts of the helper, for all to read and fold: it must have the form of what it is
_Request = Annotated[RequestId, msgspec.Meta(pattern=r"^req_[0-9a-f]{32}\Z")]
_Work = Annotated[int, msgspec.Meta(ge=0, le=WORK_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=-(1 << 40), le=1 << 40)]


class LendHead(msgspec.Struct, frozen=True, kw_only=True):
    """The signed part of a lend."""

    request: _Request
    lease: LeaseId
    link: LinkId
    owner: NodeId
    helper: NodeId
    model: ModelId
    """The helper's."""
    path: str
    """Of the engine's API."""
    work: _Work
    rough: bool = False
    """The owner has measured nothing yet: `work` is a guess, in another unit than that of requests that come later."""
    remaining_ms: _Milliseconds
    size_bytes: int
    body_sha256: str


class BadLendError(ValueError):
    """The headers are no lend, or not signed by the owner that they name."""


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(LendHead)


def sealed(head: LendHead, signer: Signer, grant: bytes) -> dict[str, str]:
    """Return the headers that show `head`, signed, and the master's signed decision."""
    encoded = _ENCODER.encode(head)
    return {
        HEAD: base64.b64encode(encoded).decode(),
        SIGNATURE: signer.sign(encoded),
        GRANT: base64.b64encode(grant).decode(),
    }


def opened(headers: Mapping[str, str]) -> tuple[LendHead, bytes, str, bytes]:
    """Return (head, its signed bytes, signature, grant's bytes); nothing of it is verified yet.

    Raises:
        BadLendError: they are not what `sealed` makes.
    """
    try:
        encoded = base64.b64decode(headers[HEAD], validate=True)
        grant = base64.b64decode(headers[GRANT], validate=True)
        return _DECODER.decode(encoded), encoded, headers[SIGNATURE], grant
    except KeyError as error:
        raise BadLendError(f"header {error.args[0]} is missing") from None
    except (binascii.Error, msgspec.DecodeError):
        raise BadLendError("the headers cannot be read") from None


def is_signed(encoded: bytes, signature: str, public: str) -> bool:
    """Tell whether the owner whose nkey is `public` signed these bytes."""
    return Verifier(public).verifies(encoded, signature)


def body_hash(body: bytes) -> str:
    """Return the hash that binds a lend to its body."""
    return hashlib.sha256(body).hexdigest()
