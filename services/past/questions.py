"""What may be asked why of: a request, a lease, a commit, a model; told apart by the form of its name."""

import re
from typing import Any, Final

from domain.errors import BadConfigError
from projections.why.commit import CommitStory
from projections.why.lease import LeaseStory
from projections.why.model import ModelStory
from projections.why.request import RequestStory
from services.ends import end
from services.past.why import LEASE, VERSION

Story = RequestStory | LeaseStory | CommitStory | ModelStory
STORIES: Final[dict[str, type[Any]]] = {
    "request": RequestStory,
    "lease": LeaseStory,
    "commit": CommitStory,
    "model": ModelStory,
}
"""Kinds of questions, each with the struct of its answer."""
_REQUEST: Final = re.compile(r"req_[0-9a-f]{32}")


def kind_of(what: str) -> tuple[str, str]:
    """Return (kind, name) of what is asked for by the form of its name.

    Raises:
        BadConfigError: it has the form of nothing.
    """
    if _REQUEST.fullmatch(what):
        return "request", what
    if LEASE.fullmatch(what):
        return "lease", what
    if VERSION.fullmatch(what):
        return "commit", what
    if "/" in what:
        end("model", what)
        return "model", what
    raise BadConfigError(
        f"{what[:80]!r}: must be a request (req_ and 32 hex digits: the header leaseway-request of its answer; a client's "
        "own x-request-id is in no event), a lease (00010a2b-812-1), a version (812), or NODE/MODEL"
    )
