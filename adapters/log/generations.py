"""Where a generation of the ledger begins: with the very first commit, or with one by which an operator has left safe mode."""

from domain.errors import HistoryGapError
from domain.events import SafeModeLeft
from domain.events.commit import Commit
from domain.ports import Stream


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
