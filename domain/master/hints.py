"""Which links have a helper that is measured and faster: their owners may wait for a decision before they fill a second slot."""

from collections.abc import Iterator
from typing import Final

from domain import fixed
from domain.events import LinkAdded, LinkPriced
from domain.ids import LinkId
from domain.master import fits, pricing
from domain.master.fits import FitRules, Measured, cost_us, unit_q64
from domain.master.links import Way, way_of
from domain.master.state import State

SAMPLES_LEAST: Final = 3
"""Measured runs on each side; one may be luck."""
MARGIN_Q32: Final = fixed.ln_q32(11, 10)
"""It has to be a tenth cheaper to be called faster, and no cheaper at all to lose the name."""


def words(state: State) -> Iterator[LinkPriced]:
    """Yield what is new about links of which something was measured; whoever takes one evolves it before asking for the next."""
    for link in _refitted(state):
        word = _word(state, way_of(state.control, state.control.links[link]))
        if word is not None:
            yield word


def _refitted(state: State) -> list[LinkId]:
    """Return the links that are new or of which something was measured."""
    control = state.control
    links = {link for link in control.added if link in control.links}
    for index in (control.by_owner, control.by_helper):
        for key in index.keys() & state.refit.keys():
            links.update(index[key])
    return sorted(links)


def _word(state: State, way: Way) -> LinkPriced | None:
    added = way.added
    known = added.link in state.hints
    rules = pricing.fit_rules(state, way.owner)
    own, other = _measured(state, way.owner, rules), _measured(state, way.helper, rules)
    if own is None or other is None:
        return _said(added, faster=False) if known else None
    work = (own.least + own.most) // 2  # the middle of what the owner has done
    mine = fits.compared(_usable(own, rules, work), None, rules)
    of_helper = pricing.fit_rules(state, way.helper)
    theirs = fits.compared(_usable(other, of_helper, work), _usable(own, of_helper, work), of_helper)
    if mine is None or theirs is None:
        return _said(added, faster=False) if known else None
    faster = theirs.log < mine.log if known else theirs.log <= mine.log - MARGIN_Q32
    if faster == known and not (faster and added.link in state.control.added):
        return None
    job_us, owner_job_us = (cost_us(unit_q64(each.log), work) for each in (theirs, mine))
    return _said(added, faster=faster, job_us=job_us, owner_job_us=owner_job_us, work=work)


def _measured(state: State, key: str, rules: FitRules) -> Measured | None:
    """Return what is measured of a model; None while that is too little."""
    fit = state.fits.get(key)
    if fit is None or len(fit.works) < SAMPLES_LEAST:
        return None
    measured = fit.measured(state.now_us, rules.window_us)
    return measured if measured is not None and measured.samples >= SAMPLES_LEAST else None


def _usable(measured: Measured, rules: FitRules, work: int) -> Measured | None:
    return measured if measured.prices(work, rules) else None


def _said(added: LinkAdded, *, faster: bool, job_us: int = 0, owner_job_us: int = 0, work: int = 0) -> LinkPriced:
    return LinkPriced(
        link=added.link,
        owner=added.owner,
        owner_model=added.owner_model,
        helper=added.helper,
        helper_model=added.helper_model,
        faster=faster,
        job_us=job_us,
        owner_job_us=owner_job_us,
        work=work,
    )


def evolve(state: State, decision: LinkPriced) -> None:
    """Remember what the owner was told: a link that is new is so no more."""
    state.control.added.pop(decision.link, None)
    if decision.faster:
        state.hints[decision.link] = decision.owner
    else:
        state.hints.pop(decision.link, None)
