"""`decisions`: the decision log. Master rows from commits, dispatch and helper rows from facts, with every variable."""

from typing import Final, assert_never

import msgspec

from domain.events import (
    BorrowReturned,
    BreakerChanged,
    CutOff,
    Decision,
    Input,
    Kept,
    LeaseChanged,
    LeaseChecked,
    LeaseCleared,
    LeaseGranted,
    LeaseRefused,
    LeaseStalled,
    LeaseUpdated,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    LinkPriced,
    NativeWaited,
    NodeHealthChanged,
    OwnerPlanned,
    RelayRefused,
    RequestOrphaned,
    RequestPresumedLost,
    SafeModeEntered,
    SafeModeLeft,
    StillRunning,
    Verdict,
)
from domain.events.base import tag_of
from domain.events.commit import Commit
from domain.events.decision import LinkWord
from domain.ids import Incarnation, NodeId
from projections.rows import Place, Row, row

KINDS: Final[dict[str, str]] = {
    "plan": "master: one candidate of one plan; outcome and reason say why it did or did not get a lease",
    "granted": "master: a new lease",
    "changed": "master: the same lease with other slots, or renewed",
    "cleared": "master: the lease is over",
    "priced": "master: what is measured of a link lets its owner wait for a decision, or no longer does",
    "checked": "master: nothing changed for long in what is lent over a link; the helper is asked",
    "stalled": "master: the helper did not say that it works; its owner takes all back",
    "breaker": "master: a helper failed one request after another, or serves again; outcome is the state",
    "health": "master: a node's health changed; outcome is the state",
    "presumed_lost": "master: the owner of this request is silent",
    "orphaned": "master: the owner's process ended with this request open",
    "safe_mode_left": "master: an operator began a new generation",
    "lease_updated": "owner: it took a lease; slots and out as they are then",
    "lease_cleared": "owner: the lease is over here, cleared or run out; out is what is still lent over the link",
    "lease_refused": "owner: it did not take a lease",
    "held_for_helper": "owner: a held request is kept for a faster helper; both finishes, both times per job, its wait",
    "lent": "owner: a held request went to the helper",
    "answered": "owner: the helper's whole answer is back",
    "returned": "owner: handed back unstarted; it is never lent again",
    "busy": "owner: the helper's desk was full; the request stays lendable",
    "cut_off": "owner: it fenced the helper and took the request back",
    "relay_refused": "owner: the request could not be passed on",
    "native_waited_behind_borrowed": "helper: a request of its own waited behind borrowed work inside the engine",
    "borrowed_returned": "helper: it handed a borrowed request back unstarted",
    "still_running": "helper: its answer to a check, one row for each borrowed request of the link that runs or waits there",
}
"""Every kind of row with what it says."""


class Speaker(msgspec.Struct, frozen=True):
    """Whose fact it is: a node, its life, and the fact's place in it."""

    node: NodeId
    incarnation: Incarnation
    pseq: int


def commit_rows(place: Place, commit: Commit, router: str) -> list[Row]:
    """Return the rows of a commit: at least one for each decision, and one for each verdict of a plan."""
    head: dict[str, object] = {
        "side": "master",
        "router": router,
        "generation": str(commit.generation),
        "version": commit.version,
        "term": commit.term,
        "policy": commit.policy,
    }
    head |= {"stream": place.stream, "epoch": place.epoch, "seq": place.seq, "at_ns": place.at_ns}
    rows: list[Row] = []
    for index, decision in enumerate(commit.decisions):
        for said in _decided(decision):
            said["decision"], said["item"] = index, len(rows)
            said.update(head)
            rows.append(said)
    return rows


def fact_rows(place: Place, fact: Input, speaker: Speaker, router: str) -> list[Row]:
    """Return the rows of a fact; none for a fact that is not about lending."""
    said = _dispatched(fact, speaker.node) or _helped(fact, speaker.node)
    if said is None:
        return []
    head: dict[str, object] = {
        "router": router,
        "producer": str(speaker.node),
        "incarnation": str(speaker.incarnation),
        "pseq": speaker.pseq,
    }
    return [row(place, head | said)]


def _decided(decision: Decision) -> list[Row]:
    """Return what each of its rows states, in dicts that are the caller's to complete."""
    match decision:
        case OwnerPlanned():
            return _planned(decision)
        case LeaseGranted() | LeaseChanged() | LeaseCleared():
            return [_leased(decision)]
        case LinkPriced() | LeaseChecked() | LeaseStalled():
            return [_said_of_link(decision)]
        case BreakerChanged():
            return [_broken(decision)]
        case NodeHealthChanged():
            # whose health it is stands in `helper`, where one looks for why a node got no lease
            return [{"kind": "health", "helper": decision.node, "outcome": decision.state, "reason": decision.reason}]
        case RequestPresumedLost():
            return [{"kind": "presumed_lost"} | _request(decision)]
        case RequestOrphaned():
            return [{"kind": "orphaned"} | _request(decision)]
        case SafeModeEntered() | SafeModeLeft():
            return [{"kind": tag_of(decision).replace(".", "_"), "reason": decision.reason}]
        case _:
            assert_never(decision)


def _broken(decision: BreakerChanged) -> dict[str, object]:
    return {
        "kind": "breaker",
        "helper": decision.helper,
        "helper_model": decision.model,
        "outcome": decision.state,
        "failures": decision.failures,
        "quarantine_us": decision.quarantine_us,
    }


def _said_of_link(decision: LinkWord) -> dict[str, object]:
    said: dict[str, object]
    match decision:
        case LinkPriced():
            said = {"kind": "priced", "faster": decision.faster, "job_us": decision.job_us, "work": decision.work}
            said |= {"owner_job_us": decision.owner_job_us}
        case LeaseChecked():
            said = {"kind": "checked", "quiet_us": decision.quiet_us}
        case LeaseStalled():
            said = {"kind": "stalled", "quiet_us": decision.quiet_us}
    return said | {
        "link": decision.link,
        "owner": decision.owner,
        "owner_model": decision.owner_model,
        "helper": decision.helper,
        "helper_model": decision.helper_model,
    }


def _planned(plan: OwnerPlanned) -> list[Row]:
    head: Row = {
        "kind": "plan",
        "owner": plan.owner,
        "owner_model": plan.model,
        "trigger": plan.trigger,
        "held": plan.held,
        "lendable": plan.lendable,
        "in_engine": plan.in_engine,
        "owner_out": plan.out,
        "drain_us": plan.drain_us,
        "lent_drain_us": plan.lent_drain_us,
        "owner_job_us": plan.owner_job_us,
        "more": plan.more,
    }
    rows = [head | _verdict(verdict) for verdict in plan.verdicts]
    rows += [head | {"outcome": "left_out", "reason": code, "repeats": count} for code, count in plan.left_out]
    return rows or [head | {"outcome": "none"}]


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "helper": verdict.helper,
        "link": verdict.link,
        "outcome": verdict.outcome,
        "reason": verdict.code,
        "source": verdict.source,
        "repeats": 1,
        "slots": verdict.slots,
        "out": verdict.out,
        "quota": verdict.quota,
        "first_answer_us": verdict.first_answer_us,
        "job_us": verdict.job_us,
        "switch_us": verdict.switch_us,
        "back_us": verdict.back_us,
        "gain_us": verdict.gain_us,
        "idle_us": verdict.idle_us,
        "ready_us": verdict.ready_us,
        "samples": verdict.samples,
        "probe_in_us": verdict.probe_in_us,
        "probe": verdict.outcome == "probe",
    }


def _leased(lease: LeaseGranted | LeaseChanged | LeaseCleared) -> dict[str, object]:
    return {
        "kind": tag_of(lease).removeprefix("lease."),
        "owner": lease.owner,
        "owner_model": lease.owner_model,
        "helper": lease.helper,
        "helper_model": lease.helper_model,
        "link": lease.link,
        "lease": lease.lease,
        "reason": lease.reason,
        "source": lease.source,
        "slots": lease.slots,
        "job_us": lease.job_us,
        "switch_us": lease.switch_us,
        "gain_us": lease.gain_us,
        "owner_job_us": lease.owner_job_us or -1,
        "work": lease.work,
        "ready_us": lease.ready_us,
        "context": lease.context,
        "vision": lease.vision,
        "probe": lease.probe,
        "ttl_us": lease.ttl_us,
        "basis_incarnation": str(lease.basis.incarnation),
        "basis_pseq": lease.basis.pseq,
    }


def _request(decision: RequestPresumedLost | RequestOrphaned) -> dict[str, object]:
    return {"owner": decision.node, "owner_model": decision.model, "request": decision.request}


_Dispatch = Lent | LendAnswered | LendReturned | LendBusy | CutOff | RelayRefused


def _dispatched(fact: Input, node: NodeId) -> dict[str, object] | None:
    """Return what an owner's fact about lending states; None for any other fact."""
    said: dict[str, object]
    match fact:
        case Lent():
            said = {"kind": "lent", "work": fact.work, "wait_us": fact.waited_us}
            said |= {"slots": fact.slots, "out": fact.out}
        case LendAnswered():
            said = {"kind": "answered"}
            said |= {"status": fact.status, "service_us": fact.service_us, "load_us": fact.load_us}
        case LendReturned():
            said = {"kind": "returned", "reason": fact.reason, "slots": fact.slots, "out": fact.out}
        case LendBusy():
            said = {"kind": "busy", "reason": fact.reason}
        case CutOff():
            said = {"kind": "cut_off", "reason": fact.reason, "may_have_run": fact.may_have_run}
        case RelayRefused():
            said = {"kind": "relay_refused", "reason": fact.reason}
        case _:
            return _kept_or_leased(fact, node)
    return _owners(node) | _sent(fact) | said


def _kept_or_leased(fact: Input, node: NodeId) -> dict[str, object] | None:
    said: dict[str, object]
    match fact:
        case Kept():
            said = {"kind": "held_for_helper", "request": fact.request, "owner_model": fact.model}
            said |= {"helper": fact.helper, "owner_finish_us": fact.owner_finish_us, "wait_us": fact.waited_us}
            said |= {"helper_finish_us": fact.helper_finish_us, "job_us": fact.helper_job_us}
            said |= {"owner_job_us": fact.owner_job_us or -1}
        case LeaseUpdated():
            kind = "lease_updated" if fact.slots else "lease_cleared"
            said = {"kind": kind, "lease": fact.lease, "owner_model": fact.model, "helper": fact.helper}
            said |= {"slots": fact.slots, "out": fact.out}
        case LeaseRefused():
            said = {"kind": "lease_refused", "lease": fact.lease, "reason": fact.reason}
            said |= {"owner_model": fact.model, "helper": fact.helper, "slots": fact.slots, "out": fact.out}
        case _:
            return None
    return _owners(node) | {"link": fact.link} | said


def _helped(fact: Input, node: NodeId) -> dict[str, object] | None:
    """Return what a helper's fact for the decision log states; None for any other fact."""
    said: dict[str, object] = {"side": "helper", "helper": node}
    match fact:
        case NativeWaited():
            said |= {"kind": "native_waited_behind_borrowed", "borrowed_in_engine": fact.borrowed_in_engine}
            said |= {"wait_us": fact.wait_us}
        case BorrowReturned():
            said |= {"kind": "borrowed_returned", "reason": fact.reason, "after_arrival": fact.after_arrival}
            said |= {"owner": fact.owner, "link": fact.link, "lease": fact.lease}
        case StillRunning():
            said |= {"kind": "still_running", "running_us": fact.running_us}
            said |= {"owner": fact.owner, "link": fact.link, "lease": fact.lease}
        case _:
            return None
    return said | {"helper_model": fact.model, "request": fact.request}


def _owners(node: NodeId) -> dict[str, object]:
    return {"side": "owner", "owner": node}


def _sent(fact: _Dispatch) -> dict[str, object]:
    return {
        "owner_model": fact.model,
        "helper": fact.helper,
        "link": fact.link,
        "lease": fact.lease,
        "request": fact.request,
    }
