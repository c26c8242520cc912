"""Why is nothing lent now: the answer for one model of one node, from the state that the master's rules see."""

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.control.settings import SETTINGS, show_value
from domain.ids import LinkId, ModelId, NodeId
from domain.master import slots
from domain.master.control import setting
from domain.master.leases import is_live
from domain.master.planner import plan
from domain.master.queue import Queue
from domain.master.reasons import HELPER_NOT_ACCEPTING, NODE_SILENT, QUARANTINED, RANK, REASONS
from domain.master.state import State, owner_key
from projections.codes import CODES
from projections.why.plans import Candidate, PlanSeen, candidate_of, seen_now
from projections.words import count, duration

_SHOWN: Final = ("offload_streams", "offload_hold_for_faster_helper", "offload_probe_idle", "scheduling_hard_switch")
"""Settings that may keep something from being lent."""


class HelperSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One linked helper: what stands against lending to it, as the rules see it now."""

    helper: str
    model: str
    link: str
    load_if_unloaded: bool
    slots: int
    """Of its live lease; 0 without one."""
    out: int
    """Requests that are lent over the link now."""
    code: str
    """Of the verdict that a plan would give now; empty if it would get a lease."""
    sentence: str
    detail: str
    """What is known besides: why it does not accept, for how long it was silent, until when it is shut out."""
    verdict: Candidate | None
    """With its prices; None if there is nothing to plan."""


class ModelStory(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model lends nothing now, or what it lends."""

    node: str
    model: str
    headline: str
    """The answer in one sentence."""
    code: str
    """lending, leased, tick (a lease follows), nothing_held, not_linked, safe_mode, bus_away, no_master, or the code of
    reasons.md that keeps it from lending. A node or model that is not known (unknown_node, unknown_model) is an error instead."""
    version: int
    """Newest commit in the state."""
    at_ns: int
    """Stamp of the newest fact in it."""
    held: int
    lendable: int
    in_engine: int
    lent: int
    drain_us: int
    """Predicted: what the node alone needs for all it has; -1 without a price."""
    helpers: tuple[HelperSeen, ...]
    last_plan: PlanSeen | None
    """The newest plan that the master made of it, where one was found."""
    settings: dict[str, str]
    """Those that bear on it."""
    notes: tuple[str, ...]
    """What else is worth knowing."""
    source: str = ""
    incomplete: str = ""


class Alarm(msgspec.Struct, frozen=True):
    """What keeps everything from being lent."""

    code: str
    """safe_mode, bus_away or no_master; empty if nothing does."""
    text: str = ""


_ALARMS: Final = {
    "no_master": "no master answers, so nobody grants a lease",
    "safe_mode": "the master is in safe mode, since stored history is in doubt, and grants nothing to anybody",
    "bus_away": "the bus does not answer: without it there are no leases, and every node serves its own requests",
}


def model_story(
    state: State, node: NodeId, model: ModelId, *, version: int, last_plan: PlanSeen | None = None
) -> ModelStory:
    """Return the answer for `model` of `node` from a state as of now; `last_plan` is the newest of its queue that is stored."""
    key = owner_key(node, model)
    queue = state.queues.get(key) or Queue()
    planned = plan(state, key, "tick").row
    seen = seen_now(planned, version, state.stamp_us * 1000)
    verdicts = {each.link: candidate_of(each) for each in planned.verdicts}
    helpers = [_helper(state, link, verdicts.get(link), queue) for link in state.control.by_owner.get(key, ())]
    code, headline = _answer(state, (node, model), queue, helpers)
    return ModelStory(
        node=node,
        model=model,
        headline=headline,
        code=code,
        version=version,
        at_ns=state.stamp_us * 1000,
        held=len(queue.held),
        lendable=queue.lendable,
        in_engine=len(queue.engine),
        lent=len(queue.lent),
        drain_us=seen.drain_us,
        helpers=tuple(sorted(helpers, key=lambda one: (-RANK.get(one.code, 99), one.helper, one.link))),
        last_plan=last_plan,
        settings={name: show_value(SETTINGS[name], setting(state.control, name)) for name in _SHOWN},
        notes=tuple(_notes(state, key, queue)),
    )


def alarmed(story: ModelStory, alarm: Alarm) -> ModelStory:
    """Return the story where something keeps everything from being lent that its state cannot know."""
    more = f" ({alarm.text})" if alarm.text else ""
    headline = f"{story.node}/{story.model} lends nothing: {_ALARMS[alarm.code]}{more}"
    return msgspec.structs.replace(story, code=alarm.code, headline=headline)


def _helper(state: State, link: LinkId, verdict: Candidate | None, queue: Queue) -> HelperSeen:
    added = state.control.links[link]
    lease = state.leases.get(link)
    live = lease is not None and is_live(state, lease)
    code = verdict.code if verdict is not None else ""
    nothing = not queue.held and code == "nothing_lendable"
    return HelperSeen(
        helper=added.helper,
        model=added.helper_model,
        link=link,
        load_if_unloaded=added.load_if_unloaded,
        slots=lease.event.slots if lease is not None and live else 0,
        out=slots.count_open(state, slots.key_of(added)),
        code="" if nothing else code,
        sentence="" if nothing else verdict.sentence if verdict is not None else "",
        detail=_detail(state, added.helper, added.helper_model, code),
        verdict=verdict,
    )


def _detail(state: State, name: NodeId, model: ModelId, code: str) -> str:
    node = state.nodes.get(name)
    if node is None:
        return "it never registered"
    if code == NODE_SILENT:
        return f"silent for {duration(node.silent_us)}"
    if code == HELPER_NOT_ACCEPTING:
        reason = node.not_accepting.get(model, "draining" if node.draining else "")
        words = CODES["not_accepting"].get(reason, "It has work of its own inside.")
        return f"{reason}: {words}" if reason else words
    if code == QUARANTINED:
        breaker = state.breakers.get(owner_key(name, model))
        if breaker is not None:
            return f"{breaker.state} after {count(breaker.failures, 'failure')}, shut for {duration(breaker.quarantine_us)}"
    return ""


def _answer(state: State, of: tuple[NodeId, ModelId], queue: Queue, helpers: Sequence[HelperSeen]) -> tuple[str, str]:
    """Return (code, the one sentence)."""
    node, model = of
    name = f"{node}/{model}"
    out = [each for each in helpers if each.out]
    if out:
        where = ", ".join(f"{count(each.out, 'request')} at {each.helper}" for each in out)
        return "lending", f"{name} lends now: {where}; {len(queue.held)} held"
    if not helpers:
        return _unlinked(state, node, model)
    known = state.nodes.get(node)
    if known is not None and known.silent_us:
        return NODE_SILENT, f"{name} lends nothing: the node's heartbeats stopped {duration(known.silent_us)} ago"
    if known is not None and (known.incomplete or known.late):
        return "history_incomplete", f"{name} lends nothing: {_lower(REASONS['history_incomplete'])}"
    return _of_queue(name, queue, helpers)


def _of_queue(name: str, queue: Queue, helpers: Sequence[HelperSeen]) -> tuple[str, str]:
    """Return the answer where nothing but the queue and its helpers can stand in the way."""
    if not queue.held:
        inside = f"{count(len(queue.engine), 'request')} in its engine" if queue.engine else "its engine is idle"
        return "nothing_held", f"{name} lends nothing: nothing is held there ({inside})"
    if not queue.lendable:
        return "nothing_lendable", (
            f"{name} lends nothing: {count(len(queue.held), 'request')} held, none of which may be lent "
            "(handed back once, not replayable, or a stream while offload_streams is off)"
        )
    leased = [each for each in helpers if each.slots]
    if leased:
        where = ", ".join(f"{count(each.slots, 'slot')} at {each.helper}" for each in leased)
        return "leased", f"{name} may lend now ({where}), and nothing is out yet"
    return _refused(name, queue, helpers)


def _refused(name: str, queue: Queue, helpers: Sequence[HelperSeen]) -> tuple[str, str]:
    """Return the answer where every helper is refused: the one that came nearest to a lease speaks for all."""
    nearest = max(helpers, key=lambda one: (RANK.get(one.code, len(RANK)), one.helper))
    if not nearest.code:
        return "tick", f"{name} lends nothing yet: {nearest.helper} gets a lease with the next decision"
    why = f"{nearest.helper} gets nothing, {nearest.code}: {nearest.sentence.rstrip('.')}"
    detail = f" ({nearest.detail.rstrip('.')})" if nearest.detail else ""
    others = len(helpers) - 1
    more = f"; {count(others, 'other helper')} further off" if others else ""
    return nearest.code, f"{name} lends nothing of {count(len(queue.held), 'request')} held: {why}{detail}{more}"


def _unlinked(state: State, node: NodeId, model: ModelId) -> tuple[str, str]:
    name = f"{node}/{model}"
    known = state.nodes.get(node)
    if known is None and node not in state.control.roster:
        names = ", ".join(sorted({*state.nodes, *state.control.roster})) or "none"
        return "unknown_node", f"{name} lends nothing: no node {node} ever registered (known: {names})"
    if known is not None and model not in known.models:
        models = ", ".join(sorted(known.models)) or "none"
        return "unknown_model", f"{name} lends nothing: {node} serves no model {model} (it serves {models})"
    return "not_linked", f"{name} lends nothing: no link lets it (`leaseway links add {name} HELPER/MODEL` makes one)"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _notes(state: State, key: str, queue: Queue) -> list[str]:
    notes = []
    if queue.held and queue.lendable < len(queue.held):
        notes.append(f"{len(queue.held) - queue.lendable} of the held may not be lent (handed back, or not replayable)")
    if not setting(state.control, "offload_streams"):
        notes.append("offload_streams is off: streams are never lent")
    fit = state.fits.get(key)
    window_us = setting(state.control, "scheduling_sample_window")
    if fit is None or fit.measured(state.now_us, window_us) is None:
        notes.append("no request of it was measured yet, so its backlog has no price")
    return notes
