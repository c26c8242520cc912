"""What must hold of a whole run: one end for each request, every commit decided again bit for bit, silence noticed in time."""

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from adapters.log.history import Cursors, History, Streams, stored_commit
from adapters.log.spool import BYTES_MAX
from domain.errors import HistoryError, HistoryGapError
from domain.events import (
    Cancelled,
    Expired,
    Failed,
    Finished,
    OwnerPlanned,
    Rejected,
    RequestOrphaned,
    RequestPresumedLost,
    codec,
)
from domain.events.commit import Commit
from domain.ids import ModelId, RequestId
from domain.master.health import is_live
from domain.master.inputs import FactInput
from domain.master.state import State, owner_key
from domain.master.step import after, check_chain, replay
from domain.subjects import CONTROL, DECISIONS, EVENTS, LEDGER
from tests.simulation.campaign.clients import Client

if TYPE_CHECKING:
    from tests.simulation.campaign.world import World

LOST_US = 15_000_000
KINDS = {Finished: "finished", Failed: "failed", Cancelled: "cancelled", Rejected: "rejected", Expired: "expired"}


def judge(world: "World") -> None:
    """Judge a run that has ended and come to rest."""
    commits = [stored_commit(message) for message in world.server.streams[LEDGER]._messages if message is not None]
    _replayed(world)
    _terms_rise(world, commits)
    _feed_is_ledger(world, commits)
    ends = _ends(world, commits)
    for client in world.clients.all.values():
        _one_end(world, client, ends.get(client.request, []))
    _presumed(world, commits)


def _one_end(world: "World", client: Client, ends: list[str]) -> None:
    """One terminal for each request that a node took, and it is what the client saw."""
    what, status = client.outcomes[0][1:]
    if not ends and (client.taken_us < 0 or (what == "cut" and not client.enrolled)):
        return  # a model in no link states only ends, and a killed process states none
    if ends in ([], ["orphaned"]) and world.nodes[client.node].spec.spool_bytes < BYTES_MAX:
        return  # of what a full spool has no room for, there are only counts; and none if the process is killed then
    if len(ends) != 1:
        world.violate(f"P3 {client.node}: {client.request} ({what}) has {len(ends)} ends: {ends}")
        return
    allowed = {
        "answered": ("finished",) if status < 500 else ("failed",),
        "refused": ("failed",) if status == 502 else ("expired",) if status == 504 else ("rejected", "failed"),
        "gone": ("cancelled", "finished", "failed", "expired", "rejected", "orphaned"),
        "cut": ("orphaned", "finished", "failed", "cancelled", "expired", "rejected"),
    }[what]
    if ends[0] not in allowed:
        world.violate(f"P3 {client.node}: {client.request} was {what} {status}, but ended {ends[0]}")


def _ends(world: "World", commits: list[Commit]) -> dict[RequestId, list[str]]:
    """Return every terminal of each request: facts as stored, each once however often it was stored, and orphans."""
    seen = set()
    ends: dict[RequestId, list[str]] = {}
    for message in world.server.streams[EVENTS]._messages:
        assert message is not None
        given = world.reader.fact(message)
        if not isinstance(given, FactInput):
            continue
        if not isinstance(given.fact, Finished | Failed | Cancelled | Rejected | Expired):
            continue
        name = (given.speaker, given.incarnation, given.pseq)
        if name not in seen:
            seen.add(name)
            kind = next(told for event, told in KINDS.items() if event in type(given.fact).__mro__)
            ends.setdefault(given.fact.request, []).append(kind)
    for made in commits:
        for decision in made.decisions:
            if isinstance(decision, RequestOrphaned):
                ends.setdefault(decision.request, []).append("orphaned")
    return ends


def _terms_rise(world: "World", commits: list[Commit]) -> None:
    for one, following in pairwise(commits):
        if following.term < one.term:
            world.violate(f"P4 ledger: term {following.term} decides at {following.version} after term {one.term}")


def _feed_is_ledger(world: "World", commits: list[Commit]) -> None:
    """The feed holds decisions of the ledger only, in its order, each once."""
    stored = [message.body for message in world.server.streams[DECISIONS]._messages if message is not None]
    told = [codec.decode_envelope(body) for body in stored]
    ids = [
        f"{made.generation}-{made.version}-{index}"
        for made in commits
        for index, decision in enumerate(made.decisions)
        if not isinstance(decision, OwnerPlanned)
    ]
    if [envelope.id for envelope in told] != ids[: len(told)]:
        world.violate("P4 feed: it is not what the ledger decided, in order and once")
    for envelope in told:
        generation, version, index = envelope.id.split("-")
        if bytes(envelope.data) != world.monitor.orders.get((generation, int(version), int(index))):
            world.violate(f"P4 feed: {envelope.id} is not what the ledger holds")


def _presumed(world: "World", commits: list[Commit]) -> None:
    """What a killed owner had open is presumed lost within 15 s, where bus and master were well."""
    monitor = world.monitor
    for killed in monitor.kills:
        from_us, until_us = killed.at_us - 3_000_000, killed.at_us + LOST_US
        bad = [
            span for span in (*monitor.bus_bad_us, *monitor.master_bad_us) if span[0] < until_us and span[1] > from_us
        ]
        if (
            killed.down_us < LOST_US + 1_000_000
            or bad
            or until_us > monitor.healed_us
            or _stormy(world, from_us, until_us)
        ):
            continue
        told = {
            decision.request
            for made in commits
            if killed.at_us <= monitor.stored_us[made.version] <= until_us
            for decision in made.decisions
            if isinstance(decision, RequestPresumedLost | RequestOrphaned) and decision.node == killed.node
        }
        for client in world.clients.all.values():
            opened = client.enrolled and client.node == killed.node and 0 <= client.taken_us < killed.at_us - 1_000_000
            if opened and client.outcomes[0][:2] == (killed.at_us, "cut") and client.request not in told:
                world.violate(
                    f"P3 {killed.node}: {client.request} is not presumed lost {LOST_US // 10**6} s after the kill"
                )


def _stormy(world: "World", from_us: int, until_us: int) -> bool:
    return any(
        fault.kind in {"bus_storm", "bus_stop", "cut_node", "clock_step", "relink"}
        and fault.at_us < until_us
        and fault.at_us + fault.for_us > from_us - 25_000_000
        for fault in world.scenario.faults
    )


# ---- the ledger again ------------------------------------------------------------------------------------------------


def _replayed(world: "World") -> None:
    """Decide every commit again from the stored inputs, and look at the state after each."""
    try:
        world.loop.call_now(_again(world))
    except (HistoryError, HistoryGapError) as error:
        world.violate(f"P5 ledger: {error}")


async def _again(world: "World") -> None:
    events, control, ledger = (world.server.streams[name] for name in (EVENTS, CONTROL, LEDGER))
    streams = Streams(events, control, ledger)
    history = History(streams, world.reader, fold_max=1 + world.seed % 50)
    cursors = Cursors(streams, history.position)
    for message in list(ledger._messages):
        assert message is not None
        made = stored_commit(message)
        check_chain(history.position, made)
        span = await history.fold(made, cursors)
        replay(history.state, history.position, made, span)
        history.position = after(made)
        _grants_fit(world, history.state, made)
        _claims_hold(world, history.state, made)
    await cursors.close()
    await asyncio.sleep(0)


def _grants_fit(world: "World", state: State, made: Commit) -> None:
    """No helper's model is leased more than its depth, over all owners."""
    for key, links in sorted(state.control.by_helper.items()):
        node = state.nodes.get(key.partition("/")[0])  # type: ignore[call-overload]
        granted = sum(
            lease.event.slots
            for link in links
            if (lease := state.leases.get(link)) is not None
            and is_live(state, lease)
            and owner_key(lease.event.helper, lease.event.helper_model) == key
        )
        if node is not None and granted > node.depth:
            world.violate(
                f"SLOTS ledger: commit {made.version} leaves {granted} slots leased at {key}, depth {node.depth}"
            )


def _claims_hold(world: "World", state: State, made: Commit) -> None:
    """No two models of one runtime are leased at once: they would drive each other out."""
    leased: dict[tuple[str, str], ModelId] = {}
    for _, lease in sorted(state.leases.items()):
        event = lease.event
        node = state.nodes.get(event.helper)
        info = node.models.get(event.helper_model) if node is not None else None
        if info is None or not info.runtime or not is_live(state, lease):
            continue
        first = leased.setdefault((event.helper, info.runtime), event.helper_model)
        if first != event.helper_model:
            world.violate(
                f"CLAIM ledger: commit {made.version} leaves {first} and {event.helper_model} of {event.helper} leased"
            )
