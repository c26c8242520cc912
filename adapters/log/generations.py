"""Where a generation of the ledger begins: with the very first commit, or with one by which somebody has left safe mode.

That commit is signed by whoever began the generation: an operator with the operator's key, or, where a bus of relaxed durability
lost its newest facts, the master with the key that signs its decisions. The right to write to the ledger is not enough.
"""

from typing import Final

import msgspec

from adapters.keys import Signer, Verifier
from domain.errors import BadConfigError, HistoryError, HistoryGapError
from domain.events import SafeModeLeft
from domain.events.commit import Commit, encode_commit, is_sealed, seal
from domain.ports import Stream

_PURPOSE: Final = b"leaseway/generation/1|"
GENERATION_CHARS_MAX: Final = 16
GAP: Final = "history_gap: "
"""What the reason of a generation begins with that a master has begun by itself."""


def safe_mode_left(first: Commit) -> SafeModeLeft | None:
    """Return with which word of an operator `first` begins a generation; None if it begins none, or the very first one."""
    begun = first.decisions[0] if first.decisions else None
    return begun if isinstance(begun, SafeModeLeft) else None


async def check_begins(ledger: Stream, first: Commit) -> None:
    """Check that `first` begins a generation, or is the oldest that is kept: a search finds a commit after a hole as well.

    Raises:
        HistoryGapError: it is neither, so the commit before it is gone.
    """
    begins = first.version == 1 or safe_mode_left(first) is not None
    if not begins and (await ledger.bounds()).first != first.version:
        raise HistoryGapError(
            ledger.name, f"message {first.version - 1} must be there, it is not or is of another generation"
        )


# ---- who began it ----------------------------------------------------------------------------------------------------


class Beginners(msgspec.Struct, frozen=True, kw_only=True):
    """Who may begin a generation of a cluster's ledger, by their public nkeys."""

    cluster: str
    operator: str
    """Empty: it is not known, and nobody is taken for the operator."""
    master: str = ""
    """Of the master's decisions, where it may begin one by itself (relaxed durability); empty: it may not."""

    def complaint(self, first: Commit, body: bytes) -> str:
        """Return why `first`, of these stored bytes, begins a generation by nobody's word who may; empty if it is by theirs."""
        left = safe_mode_left(first)
        if left is None:
            return ""
        by_itself = left.reason.startswith(GAP)
        if left.public in {self.operator, self.master if by_itself else ""} - {""}:
            right = is_sealed(first, (), body) and _is_signed(left, body, self.cluster)
            what = "" if right else f"is not what {left.public[:12]} signed"
        elif not left.public:
            what = "is signed by nobody"
        elif by_itself and not self.master:
            what = (
                "says that facts were lost, after which a master begins by itself on a bus of relaxed durability alone"
            )
        else:
            what = f"is signed by {left.public[:12]}"
        if not what:
            return ""
        rule = f"must be signed by the operator, {self.operator[:12] or 'whose key is not known here'}"
        return f"generation {first.generation}: its first commit {rule}; it {what}"


def signed_begin(first: Commit, cluster: str, signer: Signer) -> Commit:
    """Return the first commit of a generation with its beginner's key and signature, sealed anew."""
    left = safe_mode_left(first)
    assert left is not None, f"commit {first.version}: begins no generation"
    named = _with(first, msgspec.structs.replace(left, public=signer.public, signature=""))
    signature = signer.sign(_PURPOSE + cluster.encode() + b"|" + encode_commit(named))
    return seal(_with(first, msgspec.structs.replace(left, public=signer.public, signature=signature)), ())


def _with(first: Commit, left: SafeModeLeft) -> Commit:
    return msgspec.structs.replace(first, decisions=(left, *first.decisions[1:]), digest="")


def _is_signed(left: SafeModeLeft, body: bytes, cluster: str) -> bool:
    """Tell whether the signature is over these bytes without digest and signature: they count, not what is read from them."""
    end, named = body.rpartition(b'"digest":"'), b'"signature":"%b"' % left.signature.encode()
    if not left.signature or body.count(named) != 1:
        return False
    covered = (end[0] + end[1] + b'"}').replace(named, b'"signature":""')
    try:
        verifier = Verifier(left.public)
    except BadConfigError:
        return False
    return verifier.verifies(_PURPOSE + cluster.encode() + b"|" + covered, left.signature)


async def check_begun(ledger: Stream, first: Commit, beginners: Beginners) -> None:
    """Check who began the generation of which `first` is the first commit that is kept.

    Raises:
        HistoryError: nobody who may.
    """
    message = await ledger.get(first.version)
    if message is not None and (complaint := beginners.complaint(first, message.body)):
        raise HistoryError(f"{ledger.name}: {complaint}")
