"""What a model's machines ask the node to do. Facts (domain.events) stand beside them in the same ordered list."""

from typing import Final

import msgspec

from domain.events import Fact, LeaseChanged, LeaseGranted
from domain.ids import LeaseId, LinkId, ModelId, RequestId

OrderKey = tuple[str, int, int]
"""(generation, version, index) of a decision: the total order of everything the master decided."""

FORGET_US: Final = 660_000_000
"""No lease lives longer without a word: a tenth more than the longest `offload_lease_ttl`."""


class Dispatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give the request to the node's own engine now. Answer with `engine_finished`, always, exactly once."""

    request: RequestId
    borrowed: bool = False


class Lend(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send the request to the helper of `grant`.

    Answer with exactly one of `lend_answered`, `lend_returned`, `lend_busy`, `lend_refused`, `lend_failed`.
    """

    request: RequestId
    link: LinkId
    lease: LeaseId
    grant: LeaseGranted | LeaseChanged
    order: OrderKey
    """Names the signed decision whose bytes go along."""
    remaining_us: int
    """What is left of the lease: a duration, since the helper's clock is another."""


class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Tell the client this error: as the HTTP answer, or as the event that ends its stream if bytes were sent already."""

    request: RequestId
    status: int
    code: str
    message: str
    retry_after_s: int | None = None
    may_have_run: bool = False
    """Then `x-should-retry: false` goes along."""


class CancelEngine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close the request's connection to the own engine; `engine_finished` follows once that is done.

    Of a borrowed request whose engine died: answer the owner 502 engine_failed if nothing was sent yet.
    """

    request: RequestId


class CancelLend(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close the request's connection to the helper. No answer is awaited."""

    request: RequestId
    lease: LeaseId


class AcceptBorrow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Say 100 Continue to the owner, read the body, then call `borrow_body` (or `borrower_gone`)."""

    request: RequestId
    position: int


class RefuseBorrow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer the owner with this status and code, and close the connection; the request has not started here.

    409 offload_returned, 409 offload_duplicate, 503 offload_busy or 403 no_live_lease.
    """

    request: RequestId
    status: int
    code: str
    reason: str = ""
    """Why, in the words of `borrow.returned`; empty where the code says it all."""


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the model into the runtime that it shares, in place of what is in. Answer with `loaded` or `load_failed`.

    Nothing of the runtime's is inside any engine when this is asked.
    """

    model: ModelId
    runtime: str
    cause: str
    """own, borrowed or restore."""


RequestAction = Dispatch | Lend | Refuse | CancelEngine | CancelLend | AcceptBorrow | RefuseBorrow
"""The actions that concern one request."""
Action = RequestAction | LoadModel
"""Every action."""
Output = Fact | Action
"""What every input of a machine answers with, in order: state the facts and do the actions in this order."""
