"""`commits` and `rejected`: the ledger's own rows, and whether a commit counts."""

from typing import Final

import msgspec

from domain.events.commit import Commit
from projections.rows import Place, Row, row


class Chain(msgspec.Struct, frozen=True):
    """The end of the ledger as far as it is read."""

    seq: int
    digest: str
    """Of the newest commit that counts; empty if it is not known."""


BEGINNING: Final = Chain(seq=0, digest="")
"""Before the first commit: what a first one may continue is the master's to judge, not ours."""


def continues(chain: Chain, seq: int, commit: Commit) -> bool:
    """Tell whether `commit`, at sequence `seq`, follows the end of the chain.

    Where messages between are gone (too old, or unreadable) nothing can be said, and it counts.
    """
    if not chain.digest or seq != chain.seq + 1:
        return commit.version == seq
    return commit.version == seq and commit.prev == chain.digest


def commit_row(place: Place, commit: Commit, *, void: bool) -> Row:
    """Return the row of one commit."""
    stated: dict[str, object] = {
        "generation": str(commit.generation),
        "version": commit.version,
        "term": commit.term,
        "policy": commit.policy,
        "lo": commit.lo,
        "hi": commit.hi,
        "clo": commit.clo,
        "chi": commit.chi,
        "owners": commit.n,
        "now_us": commit.now_us,
        "decisions": len(commit.decisions),
        "rejected": len(commit.rejected),
        "state": commit.state,
        "prev": commit.prev,
        "digest": commit.digest,
        "void": void,
    }
    return row(place, stated)


def rejected_rows(place: Place, commit: Commit, events_epoch: int) -> list[Row]:
    """Return one row for each message that the commit names as not believed."""
    head: dict[str, object] = {
        "generation": str(commit.generation),
        "version": commit.version,
        "event_epoch": events_epoch,
    }
    return [
        row(place, head | {"item": item, "event_seq": seq, "code": code})
        for item, (seq, code) in enumerate(commit.rejected)
    ]
