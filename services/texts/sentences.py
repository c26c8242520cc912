"""What a row of the decision log, of loads or of a fact says, in words: each kind has its sentence with the numbers behind it."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from projections.words import count, duration
from services.texts.plain import Row

_MICRO: Final = 1_000_000
_MICROSECONDS: Final = re.compile(r"\b([0-9]{1,18}) us\b")


def said(row: Row) -> str:
    """Return what a row of the decision log says, without when, who and about whom."""
    return _SAYINGS[row["kind"]](row)


def loaded(row: Row) -> str:
    """Return what a row of `loads` says."""
    model, cause = row["model"], f" ({row['cause']})" if row["cause"] else ""
    match row["kind"]:
        case "load_started":
            return f"begins to load {model}{cause}"
        case "loaded" | "restored":
            gone = f" in place of {row['displaced']}" if row["displaced"] else ""
            return f"loaded {model} in {duration(row['load_us'])}{gone}{cause}"
        case "load_failed":
            return f"could not load {model}: {row['reason']}{cause}"
        case "unloaded":
            return f"unloaded {model}{cause}"
        case "restore_scheduled":
            return f"will load {model} back after {duration(row['delay_us'])} of quiet"
        case _:
            return f"does not load {model} back now: {row['reason']}"


def _plan(row: Row) -> str:
    verdict = " ".join(filter(None, (row["outcome"], row["reason"])))
    if row["outcome"] == "left_out":
        return f"{verdict}: {row['repeats']} candidates beyond the first; {_backlog(row)}"
    return f"{verdict or 'none'}: " + "; ".join(
        filter(None, (_slots(row), _backlog(row), _price(row), _gain(row), _probe(row)))
    )


def _slots(row: Row) -> str:
    return count(row["slots"], "slot") + (f" of quota {row['quota']}" if row["quota"] else "") if row["slots"] else ""


def _backlog(row: Row) -> str:
    parts = [f"{row['held']} held", f"{row['lendable']} lendable", f"{row['in_engine']} in the engine"]
    if row["owner_out"]:
        parts.append(
            f"{row['owner_out']} lent, {row['out']} of them here" if row["out"] else f"{row['owner_out']} lent"
        )
    drain = f", alone {duration(row['drain_us'])}" if row["drain_us"] >= 0 else ", no price of its own"
    lent = f", with leases {duration(row['lent_drain_us'])}" if row["lent_drain_us"] >= 0 else ""
    return f"{row['trigger']}, {', '.join(parts)}{drain}{lent}"


def _price(row: Row) -> str:
    """Return what is known of a helper's time; nothing if nothing is."""
    if row["job_us"] <= 0:
        return ""
    source = f" ({row['source']}{_samples(row)})" if row["source"] else ""
    parts = [f"{duration(row['job_us'])} a job{source}"]
    if row["owner_job_us"] > 0:
        parts.append(f"{duration(row['owner_job_us'])} at the owner")
    parts += _times(row, first_answer_us="first answer in", ready_us="ready in", switch_us="switch", back_us="way back")
    return ", ".join(parts)


def _samples(row: Row) -> str:
    return f", {count(row['samples'], 'sample')}" if row["samples"] else ""


def _times(row: Row, **names: str) -> Iterator[str]:
    return (f"{name} {duration(row[key])}" for key, name in names.items() if row[key] > 0)


def _gain(row: Row) -> str:
    return f"saves {duration(row['gain_us'])} of waiting" if row["gain_us"] > 0 else ""


def _probe(row: Row) -> str:
    idle = f"idle for {duration(row['idle_us'])}" if row["idle_us"] >= 0 else ""
    soon = f"a probe in {duration(row['probe_in_us'])}" if row["probe_in_us"] >= 0 else ""
    return ", ".join(filter(None, (idle, soon)))


def _lease(row: Row) -> str:
    what = f"{count(row['slots'], 'slot')} for {duration(row['ttl_us'])}"
    if row["probe"]:
        what += " to learn"
    why = f" ({row['reason']})" if row["reason"] else ""
    return "; ".join(filter(None, (what + why, _price(row), _gain(row))))


def _cleared(row: Row) -> str:
    return f"over: {row['reason'] or 'it does not pay any more'}"


def _priced(row: Row) -> str:
    if not row["faster"]:
        return "not known to be faster (any more): the owner waits for no decision"
    times = f"{duration(row['job_us'])} against {duration(row['owner_job_us'])} for the same work"
    return f"faster, {times}: the owner may wait for a decision"


def _breaker(row: Row) -> str:
    match row["outcome"]:
        case "opened":
            failed = count(row["failures"], "failure")
            return f"opened after {failed} without an answer: nothing goes there for {duration(row['quarantine_us'])}"
        case "half_open":
            return f"half open after {count(row['failures'], 'failure')}: one probe may go there"
        case _:
            return "closed: it serves again"


def _kept(row: Row) -> str:
    here = f"done here in {duration(row['owner_finish_us'])}{_each(row['owner_job_us'])}"
    there = f"there in {duration(row['helper_finish_us'])}{_each(row['job_us'])}"
    return f"kept for the helper: {here}, {there}; waits for {duration(row['wait_us'])}"


def _each(job_us: int) -> str:
    return f" ({duration(job_us)} a job)" if job_us > 0 else ""


def _out(row: Row) -> str:
    return f"{count(row['slots'], 'slot')}, {row['out']} out"


def _answered(row: Row) -> str:
    load = f" after loading for {duration(row['load_us'])}" if row["load_us"] > 0 else ""
    # a stream's answer does not say it
    served = f", served in {duration(row['service_us'])}" if row["service_us"] > 0 else ""
    return f"answered {row['status']}{served}{load}"


def _returned_by_helper(row: Row) -> str:
    when = "its own work came afterwards" if row["after_arrival"] else "it was busy already"
    return f"handed back unstarted: {row['reason']}, {when}"


def _native_waited(row: Row) -> str:
    return (
        f"its own request waited {duration(row['wait_us'])} behind {row['borrowed_in_engine']} borrowed in the engine"
    )


def _in_units(reason: str) -> str:
    """Return a stored reason with its microseconds in the unit that people would take."""
    return _MICROSECONDS.sub(lambda found: duration(int(found[1])), reason)


_SAYINGS: Final[dict[str, Callable[[Row], str]]] = {
    "plan": _plan,
    "granted": _lease,
    "changed": _lease,
    "cleared": _cleared,
    "priced": _priced,
    "checked": lambda row: f"nothing has changed for {duration(row['quiet_us'])}: the helper is asked what it runs",
    "stalled": lambda row: f"no sign of work for {duration(row['quiet_us'])}: the owner takes all back",
    "breaker": _breaker,
    "health": lambda row: f"{row['outcome']}: {_in_units(row['reason'])}",
    "presumed_lost": lambda _: "its owner is silent: the request may be lost",
    "orphaned": lambda _: "its owner's process ended with it: the request is over",
    "safe_mode_entered": lambda row: f"no leases from here on: {row['reason']}",
    "safe_mode_left": lambda row: f"leases again: {row['reason']}",
    "lease_updated": lambda row: f"took the lease: {_out(row)}",
    "lease_cleared": lambda row: f"the lease is over here, {row['out']} still out",
    "lease_refused": lambda row: f"did not take the lease: {row['reason']} (it would be {_out(row)})",
    "held_for_helper": _kept,
    "lent": lambda row: f"lent after {duration(row['wait_us'])}: {_out(row)}, work {row['work'] / _MICRO:g}",
    "answered": _answered,
    "returned": lambda row: f"came back unstarted: {row['reason']}; {_out(row)}; never lent again",
    "busy": lambda row: f"not taken: {row['reason']}; it stays lendable",
    "cut_off": lambda row: (
        f"taken back: {row['reason']}, {'it may have run' if row['may_have_run'] else 'it has not run'}"
    ),
    "relay_refused": lambda row: f"could not be passed on: {row['reason']}",
    "native_waited_behind_borrowed": _native_waited,
    "borrowed_returned": _returned_by_helper,
    "still_running": lambda row: f"still has it, running or waiting, for {duration(row['running_us'])} so far",
}
