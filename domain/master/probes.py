"""Probes: one request for a helper that was not chosen and is not measured yet, so that it will have a price of its own.

A probe has to teach something and may not hurt: the helper is idle of its own work for long, and its answer is predicted to come
before the owner's drain ends anyway.
"""

from typing import Final

from domain.master import breaker, fits, pricing, reasons
from domain.master.candidates import Candidate
from domain.master.control import setting
from domain.master.state import State

ENOUGH: Final = 3
"""Measured requests from which on there is nothing more to be learned by probes; `scheduling_min_samples`, if that is less."""
SWITCH_FACTOR: Final = 12
"""So much longer a helper has to have idled that must load the model: a probe has no price to weigh against its own traffic."""
BLIND_END_US: Final = 60_000_000
"""How far away the drain's end has to be where nobody knows what the load takes."""


def consider(state: State, candidate: Candidate, owner: str, end_us: int | None) -> None:
    """Give the candidate a probe, or say how long it has to idle yet.

    Args:
        state: what is known.
        candidate: it has no slots.
        owner: the owner's key.
        end_us: when the owner's drain ends with the leases of this plan; None where it has no price.
    """
    if candidate.code not in reasons.PRICED_OUT or not candidate.lendable or _is_measured(state, candidate):
        return
    if not _in_time(state, candidate, owner, end_us) or _is_barred(state, candidate):
        return
    wanted_us = setting(state.control, "offload_probe_idle") * (SWITCH_FACTOR if candidate.cold else 1)
    if candidate.idle_us < wanted_us:
        candidate.probe_in_us = wanted_us - max(0, candidate.idle_us)
        return
    candidate.slots, candidate.probe = 1, True


def _is_measured(state: State, candidate: Candidate) -> bool:
    fit = state.fits.get(candidate.way.helper)
    measured = (
        fit.measured(state.now_us, setting(state.control, "scheduling_sample_window")) if fit is not None else None
    )
    enough = min(setting(state.control, "scheduling_min_samples"), ENOUGH, fits.WINDOW)
    return measured is not None and measured.samples >= enough


def _is_barred(state: State, candidate: Candidate) -> bool:
    """Tell whether lends over this very link failed so often lately that it rests, whoever else fares well there."""
    traffic = state.traffic.get(candidate.way.over)
    return traffic is not None and state.now_us < traffic.failed_us + breaker.quarantine_us(traffic.failures)


def _in_time(state: State, candidate: Candidate, owner: str, end_us: int | None) -> bool:
    """Tell whether the answer is predicted to come before the drain ends; without a price only a loaded model may try."""
    if end_us is None:
        return not candidate.cold
    if not candidate.cold or candidate.code != reasons.SWITCH_UNPRICED:
        return candidate.first_answer_us <= end_us
    load_us = pricing.likely_load_us(
        state, candidate.way.helper, owner, setting(state.control, "scheduling_sample_window")
    )
    if load_us is None:
        return end_us >= BLIND_END_US
    return candidate.first_answer_us + load_us <= end_us
