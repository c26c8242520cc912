"""The folded state of the cluster as people and programs read it: queues, leases, measured costs, health, links, settings."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from domain.control.settings import PREFIX, SETTINGS, show_value
from domain.ids import ModelId, NodeId
from domain.master import breaker, slots
from domain.master.control import setting
from domain.master.fits import cost_us, unit_q64
from domain.master.leases import is_live, lease_life_us
from domain.master.state import Node, State, owner_key, split_key

TOKEN: Final = 1_000_000
"""One token of work, in micro-units."""


class NodeAt(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    node: str
    health: str
    """healthy, unhealthy, offline, or never_registered."""
    silent_us: int
    enrolled: bool
    retired: bool
    draining: bool
    incomplete: bool
    """A fact of it is missing."""
    late: bool
    """It spoke from its spool, and has stated no snapshot since."""
    incarnation: str
    pseq: int
    """Its newest fact in the state."""
    depth: int
    models: tuple[str, ...]
    not_accepting: dict[str, str]
    """By model why it takes no borrowed work."""


class QueueAt(msgspec.Struct, frozen=True, kw_only=True):
    """What one owner had open."""

    node: str
    model: str
    held: tuple[str, ...]
    """Requests, in order of id."""
    in_engine: tuple[str, ...]
    lent: dict[str, str]
    """Request -> helper."""
    lendable: int
    held_work: int
    """In micro-units."""


class LeaseAt(msgspec.Struct, frozen=True, kw_only=True):
    """A live lease."""

    lease: str
    link: str
    owner: str
    owner_model: str
    helper: str
    helper_model: str
    slots: int
    out: int
    age_us: int
    left_us: int
    """Until the master takes it for over; 0 or less: it is."""
    probe: bool
    reason: str
    job_us: int
    switch_us: int
    gain_us: int


class FitAt(msgspec.Struct, frozen=True, kw_only=True):
    """What one model's work was measured to cost."""

    node: str
    model: str
    samples: int
    token_us: int
    """One token (a millionth of it is a micro-unit of work)."""
    load_us: int
    """Median of the measured loads; -1 if there is none."""


class RuntimeAt(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime of a node held, and what it was loading."""

    node: str
    runtime: str
    models: tuple[str, ...]
    resident: str
    loading: str
    cause: str
    """For whom it was loading."""
    displaced: str
    """What is loaded back after borrowed work."""


class LinkAt(msgspec.Struct, frozen=True, kw_only=True):
    """A link."""

    link: str
    owner: str
    owner_model: str
    helper: str
    helper_model: str
    load_if_unloaded: bool
    restore_after_borrow: bool
    failures: int
    """Failed lends since the last that was answered."""


class BreakerAt(msgspec.Struct, frozen=True, kw_only=True):
    """A helper model that is not closed."""

    node: str
    model: str
    state: str
    failures: int
    left_us: int
    """Until the next may be tried; -1: it is."""


class ClusterAt(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state at a moment."""

    version: int
    generation: str
    at_ns: int
    """Stamp of that commit."""
    stamp_ns: int
    """Stamp of the newest fact in the state."""
    now_us: int
    """Domain time."""
    term: int
    policy: str
    digest: str
    state: str
    """Digest of the state, where the commit states one and nothing was folded since; else empty."""
    hi: int
    chi: int
    facts: int
    """Facts folded after that commit."""
    control: int
    """Control events folded after it."""
    head: int
    """Newest version of the ledger."""
    source: str = "NATS"
    """Where it was read: NATS, ClickHouse (where the bus no longer reaches back), or a copy."""
    only: str
    """The node, or node/model, to which all below is narrowed; empty: all."""
    nodes: tuple[NodeAt, ...]
    queues: tuple[QueueAt, ...]
    leases: tuple[LeaseAt, ...]
    fits: tuple[FitAt, ...]
    runtimes: tuple[RuntimeAt, ...]
    links: tuple[LinkAt, ...]
    breakers: tuple[BreakerAt, ...]
    settings: dict[str, str]
    """Those that are not at their default."""


def cluster_at(state: State, /, *, only: str = "", **place: Any) -> ClusterAt:
    """Return the state as people read it; `place` are the fields that say where it is, `only` a node or `node/model`."""
    name, _, model = only.partition("/")

    def wanted(node: str, of: str = "") -> bool:
        return not name or (node == name and (not model or not of or of == model))

    return ClusterAt(
        only=only,
        now_us=state.now_us,
        stamp_ns=state.stamp_us * 1000,
        hi=state.hi,
        chi=state.chi,
        term=state.term,
        nodes=tuple(_node(state, each) for each in sorted({*state.nodes, *state.control.roster}) if wanted(each)),
        queues=tuple(_queues(state, wanted)),
        leases=tuple(_leases(state, wanted)),
        fits=tuple(_fits(state, wanted)),
        runtimes=tuple(_runtimes(state, wanted)),
        links=tuple(_links(state, wanted)),
        breakers=tuple(_breakers(state, wanted)),
        settings=_settings(state),
        **place,
    )


_Wanted = Callable[..., bool]


def _node(state: State, name: NodeId) -> NodeAt:
    node, enrolled = state.nodes.get(name, Node()), state.control.roster.get(name)
    return NodeAt(
        node=name,
        health=node.health if node.incarnation else "never_registered",
        silent_us=node.silent_us,
        enrolled=enrolled is not None,
        retired=enrolled is not None and enrolled.retired,
        draining=node.draining,
        incomplete=node.incomplete,
        late=node.late,
        incarnation=node.incarnation,
        pseq=node.pseq,
        depth=node.depth,
        models=tuple(sorted(node.models)),
        not_accepting={each: node.not_accepting[each] for each in sorted(node.not_accepting)},
    )


def _queues(state: State, wanted: _Wanted) -> list[QueueAt]:
    found = []
    for key in sorted(state.queues):
        queue, (node, model) = state.queues[key], split_key(key)
        if not wanted(node, model) or not (queue.held or queue.engine or queue.lent):
            continue
        found.append(
            QueueAt(
                node=node,
                model=model,
                held=tuple(sorted(queue.held)),
                in_engine=tuple(sorted(queue.engine)),
                lent={each: slots.sides(over)[1] if over else "" for each, over in sorted(queue.lent.items())},
                lendable=queue.lendable,
                held_work=queue.held_work,
            )
        )
    return found


def _leases(state: State, wanted: _Wanted) -> list[LeaseAt]:
    found = []
    for link in sorted(state.leases):
        lease = state.leases[link]
        event = lease.event
        if not is_live(state, lease) or not (
            wanted(event.owner, event.owner_model) or wanted(event.helper, event.helper_model)
        ):
            continue
        age_us = state.now_us - lease.granted_us
        found.append(
            LeaseAt(
                lease=event.lease,
                link=link,
                owner=event.owner,
                owner_model=event.owner_model,
                helper=event.helper,
                helper_model=event.helper_model,
                slots=event.slots,
                out=slots.count_open(state, slots.use_key(link, event.owner, event.helper)),
                age_us=age_us,
                left_us=lease_life_us(event.ttl_us) - age_us,
                probe=event.probe,
                reason=event.reason,
                job_us=event.job_us,
                switch_us=event.switch_us,
                gain_us=event.gain_us,
            )
        )
    return found


def _fits(state: State, wanted: _Wanted) -> list[FitAt]:
    window_us = setting(state.control, "scheduling_sample_window")
    found = []
    for key in sorted(state.fits):
        node, model = split_key(key)
        measured = state.fits[key].measured(state.now_us, window_us)
        load_us = state.fits[key].load_us(state.now_us, window_us)
        if wanted(node, model) and (measured is not None or load_us is not None):
            found.append(
                FitAt(
                    node=node,
                    model=model,
                    samples=measured.samples if measured is not None else 0,
                    token_us=cost_us(unit_q64(measured.level), TOKEN) if measured is not None else -1,
                    load_us=-1 if load_us is None else load_us,
                )
            )
    return found


def _runtimes(state: State, wanted: _Wanted) -> list[RuntimeAt]:
    return [
        RuntimeAt(
            node=name,
            runtime=room.removeprefix("="),
            models=tuple(each.models),
            resident=each.resident,
            loading=each.loading,
            cause=each.cause if each.loading else "",
            displaced=each.displaced,
        )
        for name in sorted(state.nodes)
        if wanted(name)
        for room, each in sorted(state.nodes[name].rooms.items())
    ]


def _links(state: State, wanted: _Wanted) -> list[LinkAt]:
    found = []
    for link in sorted(state.control.links):
        added = state.control.links[link]
        if wanted(added.owner, added.owner_model) or wanted(added.helper, added.helper_model):
            traffic = state.traffic.get(slots.key_of(added))
            found.append(
                LinkAt(
                    link=link,
                    owner=added.owner,
                    owner_model=added.owner_model,
                    helper=added.helper,
                    helper_model=added.helper_model,
                    load_if_unloaded=added.load_if_unloaded,
                    restore_after_borrow=added.restore_after_borrow,
                    failures=traffic.failures if traffic is not None else 0,
                )
            )
    return found


def _breakers(state: State, wanted: _Wanted) -> list[BreakerAt]:
    found = []
    for key in sorted(state.breakers):
        (node, model), each = split_key(key), state.breakers[key]
        ends_us = breaker.ends_us(each)
        left_us = -1 if ends_us is None else ends_us - state.now_us
        if wanted(node, model):
            found.append(BreakerAt(node=node, model=model, state=each.state, failures=each.failures, left_us=left_us))
    return found


def _settings(state: State) -> dict[str, str]:
    shown = {}
    for name, each in sorted(SETTINGS.items()):
        value = setting(state.control, name)
        if value != each.default:
            shown[PREFIX + name] = show_value(each, value)
    return shown


def knows(state: State, only: str) -> bool:
    """Tell whether the state has heard of a node, or of `node/model`; an empty text is known."""
    name, slash, model = only.partition("/")
    node = state.nodes.get(NodeId(name))
    if not only:
        return True
    if not slash:
        return node is not None or NodeId(name) in state.control.roster
    key = owner_key(NodeId(name), ModelId(model))
    return (node is not None and ModelId(model) in node.models) or key in state.queues or key in state.control.by_owner
