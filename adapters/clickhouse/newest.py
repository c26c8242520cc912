"""Where the newest rows of a table begin, so that a question for the newest reads the last granules of one or two days.

Without a bound ClickHouse reads the end of every day's part and merges them. The bound is a guess from what was last answered:
an answer that it may have cut short is asked for again without it, so that no answer ever depends on the guess.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

DEPTH: Final = 100_000
"""Messages before the newest known one that a bound leaves in: reading ends sooner, at the limit."""


class Bound(msgspec.Struct, frozen=True):
    """Rows after a place; `sql` names the parameters."""

    sql: str
    parameters: dict[str, int]


NO_BOUND: Final = Bound("", {})


def places(sign: str, epoch: str, seq: str) -> str:
    """Return the condition that (epoch, seq) is `sign` (`<`, `>`, `<=` or `>=`) another place.

    Tuples that are compared say the same, but the primary index is not read by them: every granule of the stream is.
    """
    return f"(epoch {sign[0]}= {epoch} AND (epoch {sign[0]} {epoch} OR seq {sign} {seq}))"


class Newest:
    """The newest place that was seen in each stream of each table."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int]] = {}

    def bounds(self, table: str, stream: str, *, rare: bool = False) -> Iterator[Bound]:
        """Yield the bound to ask with, and then, for an answer that it may have cut short, none.

        `rare`: few rows are asked for, or old ones, so that a bound would only cost a second question.
        """
        epoch, seq = self._known.get((table, stream), (0, 0))
        if seq > DEPTH and not rare:
            yield Bound(places(">", "{from_epoch:UInt32}", "{from_seq:UInt64}"), _place(epoch, seq - DEPTH))
        yield NO_BOUND

    def saw(self, table: str, stream: str, places: Sequence[tuple[int, int]], bound: Bound) -> None:
        """Keep the newest of (epoch, sequence); what an unbounded answer says holds even if it is older, as after a loss."""
        if places:
            known = self._known.get((table, stream), (0, 0))
            self._known[table, stream] = max(places) if bound is NO_BOUND else max(known, *places)


def _place(epoch: int, seq: int) -> dict[str, int]:
    return {"from_epoch": epoch, "from_seq": seq}
