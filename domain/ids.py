"""Identifiers, each its own type, and the tokens that stand for them in a subject.

A raw model id never enters a subject: it may hold dots, stars, spaces or slashes, which NATS would read as structure.
"""

import hashlib
import re
import unicodedata
from typing import NewType

from domain.errors import BadIdError

NodeId = NewType("NodeId", str)
"""A machine or process that serves models: `[a-z0-9][a-z0-9-]{0,30}`."""
ModelId = NewType("ModelId", str)
"""What clients call a model: any NFC string of 1 to 256 characters."""
ModelToken = NewType("ModelToken", str)
"""16 hex digits that stand for a model id in a subject."""
LinkId = NewType("LinkId", str)
"""16 hex digits that stand for a link (owner node and model, helper node and model)."""
LeaseId = NewType("LeaseId", str)
"""`<generation>-<version>-<index>` of the decision that first granted it."""
RequestId = NewType("RequestId", str)
"""`req_` and the 32 hex digits of a UUIDv7, made by the node that receives the request."""
Incarnation = NewType("Incarnation", str)
"""32 hex digits, new at each start of a producer."""
Generation = NewType("Generation", str)
"""8 hex digits of one history of the ledger: 4 of a counter, 4 random; later histories sort later."""

MODEL_ID_CHARS_MAX = 256
_NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def node_id(text: str) -> NodeId:
    """Return `text` as a node id (also used for cluster and gateway names).

    Raises:
        BadIdError: it does not match `[a-z0-9][a-z0-9-]{0,30}`.
    """
    if not _NODE_ID.fullmatch(text):
        raise BadIdError("node", text, "must match [a-z0-9][a-z0-9-]{0,30}")
    return NodeId(text)


def model_id(text: str) -> ModelId:
    """Return `text` as a model id, in Unicode's NFC form, so that equal-looking ids are equal.

    Raises:
        BadIdError: it is empty, longer than 256 characters, or holds a control character or lone surrogate.
    """
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
        raise BadIdError("model", text, "must not hold control characters or lone surrogates")
    composed = unicodedata.normalize("NFC", text)
    if not 1 <= len(composed) <= MODEL_ID_CHARS_MAX:
        raise BadIdError("model", text, f"must have 1 to {MODEL_ID_CHARS_MAX} characters, got {len(composed)}")
    return ModelId(composed)


def request_id(text: str) -> RequestId:
    """Return `text` as a request id.

    Raises:
        BadIdError: it is not `req_` and 32 hex digits.
    """
    if not _REQUEST_ID.fullmatch(text):
        raise BadIdError("request", text, "must be req_ and 32 hex digits")
    return RequestId(text)


def model_token(model: ModelId) -> ModelToken:
    """Return the subject token of `model`: blake2b-8 of its UTF-8, in hex."""
    return ModelToken(hashlib.blake2b(model.encode(), digest_size=8).hexdigest())


def link_id(owner: NodeId, owner_model: ModelId, helper: NodeId, helper_model: ModelId) -> LinkId:
    """Return the id of the one-way link from an owner's model to a helper's model."""
    name = f"{owner}\x1f{owner_model}\x1f{helper}\x1f{helper_model}"
    return LinkId(hashlib.blake2b(name.encode(), digest_size=8).hexdigest())


def lease_id(generation: Generation, version: int, index: int) -> LeaseId:
    """Return the id of the lease that decision `index` of commit `version` grants."""
    return LeaseId(f"{generation}-{version}-{index}")
