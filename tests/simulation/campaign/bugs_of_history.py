"""Bugs of the master, and of whatever stores facts, commits and decisions."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec

from adapters.log.feed import Feed
from adapters.log.ledger import Ledger
from adapters.log.producer import Producer
from domain.errors import PublishUnknownError
from domain.events import HeartbeatMissed, HeartbeatSeen
from domain.master import breaker, fold, pricing, registration, slots, step
from services.master.outbox import Outbox
from tests.simulation.campaign.loop import pass_time
from tests.simulation.campaign.planting import Change, Swap, always, bug, nothing

# ---- the master ------------------------------------------------------------------------------------------------------


def _gaps(original: Callable[..., Any]) -> Callable[..., Any]:
    def in_turn(state: Any, given: Any, node: Any) -> Any:
        if given.incarnation == node.incarnation and given.pseq > node.pseq + 1:
            node.pseq = given.pseq - 1
        return original(state, given, node)

    return in_turn


def _twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def in_turn(state: Any, given: Any, node: Any) -> Any:
        last = node.pseq
        if given.incarnation == node.incarnation and 1 < given.pseq <= last:
            node.pseq = given.pseq - 1
            taken = original(state, given, node)
            node.pseq = last
            return taken
        return original(state, given, node)

    return in_turn


def _no_orphans(original: Callable[..., Any]) -> Callable[..., Any]:
    def orphan_all(state: Any, key: str) -> None:
        known = dict(state.orphans)
        original(state, key)
        state.orphans.clear()
        state.orphans.update(known)

    return orphan_all


def _others_ignored(_original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _state, _added, _at, depth: depth


def _deaf_to(kind: type) -> Change:
    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def fold_fact(state: Any, given: Any) -> None:
            deaf = isinstance(getattr(given, "fact", None), kind)
            original(state, msgspec.structs.replace(given, term=-1) if deaf else given)

        return fold_fact

    return change


def _only_opens(original: Callable[..., Any]) -> Callable[..., Any]:
    def changes(state: Any) -> Any:
        for change in original(state):
            if change.state == breaker.OPENED:
                yield change

    return changes


bug("fold_takes_gaps", "a fact is folded though the one before it is missing", Swap(fold, "_in_turn", _gaps))
bug("fold_takes_twice", "a fact that is stored twice is folded twice", Swap(fold, "_in_turn", _twice))
bug("fold_forgets_orphans", "what a dead process had open is forgotten", Swap(registration, "_orphan_all", _no_orphans))
bug("fold_never_closes_slots", "the owner's end of a lend closes no slot", Swap(slots, "closed_by_owner", nothing))
bug("fold_keeps_dead_slots", "what a dead process had borrowed keeps its slots", Swap(slots, "began_anew", nothing))
bug("fold_keeps_slots_of_snapshots", "a snapshot closes no slots", Swap(registration, "_replace_slots", nothing))
bug(
    "master_never_offline",
    "a silent node is waited for without end",
    Swap(step, "fold_fact", _deaf_to(HeartbeatMissed)),
)
bug("master_never_back", "a node that beats again stays silent", Swap(step, "fold_fact", _deaf_to(HeartbeatSeen)))
bug(
    "master_grants_all_to_each",
    "what others have of a helper is not counted",
    Swap(pricing, "free_slots", _others_ignored),
)
bug("master_ignores_claims", "two models of one runtime are leased at once", Swap(pricing, "is_claimed", always(False)))
bug("breaker_stays_open", "a breaker that opened never closes", Swap(breaker, "changes", _only_opens))


# ---- what is stored ---------------------------------------------------------------------------------------------------


def _unknown_is_stored(original: Callable[..., Any]) -> Callable[..., Any]:
    def failed(self: Producer, entry: Any, error: Any) -> None:
        if isinstance(error, PublishUnknownError):
            entry.seq, entry.duplicate = self._last_seq + 1, False
            self._advance()
        else:
            original(self, entry, error)

    return failed


def _any_duplicate(original: Callable[..., Any]) -> Callable[..., Any]:
    def advance(self: Producer) -> None:
        for entry in self._window:
            entry.duplicate = False
        original(self)

    return advance


def _no_backlog(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Producer, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._spool.take(1_000_000)

    return init


def _no_expectation(_original: Callable[..., Any]) -> Callable[..., Any]:
    async def append(self: Ledger, version: int, body: bytes, digest: str) -> bool:
        while True:
            try:
                await self._stream.publish(self.subject, body, message_id=f"{version}-{digest}")
            except PublishUnknownError:
                await pass_time(0.1)
            else:
                return True

    return append


def _timeouts_are_yes(original: Callable[..., Any]) -> Callable[..., Any]:
    async def resolve(self: Ledger, version: int, body: bytes, *, refused: bool) -> Any:
        return True if not refused else await original(self, version, body, refused=refused)

    return resolve


def _any_duplicate_is_ours(_original: Callable[..., Any]) -> Callable[..., Any]:
    async def append(self: Ledger, version: int, body: bytes, digest: str) -> bool:
        while True:
            try:
                await self._stream.publish(self.subject, body, message_id=f"{version}", expected_last=version - 1)
            except PublishUnknownError:
                await pass_time(0.1)
            except Exception:  # noqa: BLE001  # a planted bug is not choosy
                return False
            else:
                return True

    return append


def _feed_unordered(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Feed, generation: Any, order: Any, decision: Any, expected: int) -> Any:
        plain = self._stream.publish_soon

        def publish_soon(*arguments: Any, **options: Any) -> Any:
            return plain(*arguments, **{**options, "expected_last": None})

        with patch.object(self._stream, "publish_soon", publish_soon):
            return original(self, generation, order, decision, expected)

    return send


def _rest_forgotten(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Outbox, *arguments: Any) -> None:
        original(self, *arguments)
        self._behind = False

    return init


bug(
    "producer_unknown_is_stored",
    "a publish without an answer counts as stored",
    Swap(Producer, "_failed", _unknown_is_stored),
)
bug("producer_any_duplicate", "a duplicate counts wherever it is stored", Swap(Producer, "_advance", _any_duplicate))
bug(
    "producer_forgets_spool",
    "what the last process could not say is never said",
    Swap(Producer, "__init__", _no_backlog),
)
bug(
    "ledger_without_expectation",
    "a commit is stored whatever stands before it",
    Swap(Ledger, "append", _no_expectation),
)
bug(
    "ledger_timeouts_are_yes",
    "a commit without an answer counts as stored",
    Swap(Ledger, "_resolve", _timeouts_are_yes),
)
bug("ledger_any_duplicate_is_ours", "a commit is told from another by its version alone",
     Swap(Ledger, "append", _any_duplicate_is_ours))  # fmt: skip
bug("feed_unordered", "decisions go to the feed whatever stands there", Swap(Feed, "_send", _feed_unordered))
bug(
    "outbox_forgets_rest",
    "what a dead master did not publish is never published",
    Swap(Outbox, "__init__", _rest_forgotten),
)
