"""Messages of one stream -> rows of every table. A pure function of its arguments: projecting again gives the same rows."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from domain.events import Observation
from domain.events.codec import decode_input
from domain.events.commit import Commit, decode_commit
from domain.ids import NodeId
from domain.ports import StoredMessage
from domain.subjects import CONTROL, EVENTS, LEDGER, event_of, speaker
from projections import checkpoints, decision_log, folds, health, ledger, loads, requests
from projections.events import COMMIT, envelope_of, event_row, pseq_of
from projections.ledger import BEGINNING, Chain
from projections.rows import Block, Place, Row, Rows, block, joined
from projections.tables import RETAINED

STREAMS = (CONTROL, LEDGER, EVENTS)
"""What is projected. The feed is left out: it repeats the ledger."""
LAST_TABLE = "events"
"""Written last: a message that stands in it is in all other tables too."""
_PIECE: Final = 256
"""Messages whose rows are made at a time: those of thousands would not fit the processor's cache, at half the speed."""
_MASTER = NodeId("master")
"""Who says what was observed."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is projected under."""

    router: str
    """Version of Leaseway that writes."""
    events_epoch: int = 1
    """Epoch of LW_EVENTS, which commits refer to."""
    chain: Chain = BEGINNING
    """End of the ledger before this batch; only the ledger's batches read and move it."""
    runs: folds.Runs = {}
    """Runs of decisions of this stream that may go on."""


class Projected(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a batch."""

    rows: Rows
    chain: Chain
    runs: folds.Runs = {}
    unreadable: tuple[int, ...] = ()
    """Sequences of messages that are no event this release knows; their raw bytes are kept."""
    void: tuple[int, ...] = ()
    """Sequences of commits that do not continue the ledger."""


def project(stream: str, epoch: int, messages: Sequence[StoredMessage], context: Context) -> Projected:
    """Return the rows of `messages`, which follow each other in `stream`."""
    draft = _Draft(context)
    runs, blocks = context.runs, dict[str, list[Block]]()
    for piece in pieces_of(messages, _PIECE):
        for message in piece:
            place = Place(stream, epoch, message.seq, message.stamp_ns)
            if stream == LEDGER:
                draft.take_commit(place, message)
            else:
                draft.take_event(place, message)
        rows = draft.taken()
        runs = folds.fold(rows["decisions"], runs)
        for table in RETAINED:
            if rows[table]:
                blocks.setdefault(table, []).append(block(table, rows[table]))
    return Projected(
        rows={table: joined(blocks[table]) for table in RETAINED if table in blocks},
        chain=draft.chain,
        runs=runs,
        unreadable=tuple(draft.unreadable),
        void=tuple(draft.void),
    )


def pieces_of(messages: Sequence[StoredMessage], size: int) -> Iterator[Sequence[StoredMessage]]:
    """Yield `messages` in pieces of `size`."""
    for first in range(0, len(messages), size):
        yield messages[first : first + size]


class _Draft:
    """Rows in the making."""

    def __init__(self, context: Context) -> None:
        self.context, self.chain = context, context.chain
        self.rows = _no_rows()
        self.unreadable: list[int] = []
        self.void: list[int] = []

    def taken(self) -> dict[str, list[Row]]:
        """Return the rows since the last time, and forget them."""
        rows, self.rows = self.rows, _no_rows()
        return rows

    def take_event(self, place: Place, message: StoredMessage) -> None:
        """Add the rows of a fact, an observation or a control event."""
        envelope = envelope_of(message)
        self.rows[LAST_TABLE].append(event_row(place, message, envelope, event=event_of(message.subject)))
        if place.stream != EVENTS:
            return
        kind, name = speaker(message.subject)
        try:
            if envelope is None:
                raise msgspec.DecodeError("not an envelope")  # noqa: TRY301  # both kinds of unreadable end the same way
            fact = decode_input(envelope.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unreadable.append(place.seq)
            return
        router = self.context.router
        if kind == "obs" and isinstance(fact, Observation):
            seen_by = decision_log.Speaker(_MASTER, envelope.incarnation, pseq_of(envelope))
            self.rows["health"] += health.fact_rows(place, fact, seen_by, router)
            self.rows["checkpoints"] += checkpoints.fact_rows(place, fact, router)
        if kind != "node" or envelope.producer != name:
            return  # a gateway's event, or a fact in another's name, which nobody believes
        said_by = decision_log.Speaker(NodeId(name), envelope.incarnation, pseq_of(envelope))
        self.rows["decisions"] += decision_log.fact_rows(place, fact, said_by, router)
        self.rows["requests"] += requests.fact_rows(place, fact, said_by, router)
        self.rows["loads"] += loads.fact_rows(place, fact, said_by, router)
        if not isinstance(fact, Observation):  # in a node's own subject it is nobody's word
            self.rows["health"] += health.fact_rows(place, fact, said_by, router)

    def take_commit(self, place: Place, message: StoredMessage) -> None:
        """Add the rows of a commit; only the raw ones if it does not count."""
        self.rows[LAST_TABLE].append(event_row(place, message, None, event=COMMIT))
        try:
            commit = decode_commit(message.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unreadable.append(place.seq)
            self.chain = Chain(seq=place.seq, digest="")
            return
        counts = ledger.continues(self.chain, place.seq, commit)
        self.rows["commits"].append(ledger.commit_row(place, commit, void=not counts))
        if counts:
            self._add_decisions(place, commit)
            self.chain = Chain(seq=place.seq, digest=commit.digest)
        else:
            self.void.append(place.seq)
            self.chain = Chain(seq=place.seq, digest=self.chain.digest)

    def _add_decisions(self, place: Place, commit: Commit) -> None:
        router = self.context.router
        self.rows["decisions"] += decision_log.commit_rows(place, commit, router)
        self.rows["requests"] += requests.commit_rows(place, commit, router)
        self.rows["health"] += health.commit_rows(place, commit, router)
        self.rows["rejected"] += ledger.rejected_rows(place, commit, self.context.events_epoch)


def _no_rows() -> dict[str, list[Row]]:
    return {table: [] for table in RETAINED}
