"""Which links have a helper that is measured and faster: their owners may wait for a decision before they fill a second slot."""

from collections.abc import Iterator
from typing import Final

from domain import fixed
from domain.events import LinkAdded, LinkPriced
from domain.ids import LinkId
from domain.master import fits, pricing
from domain.master.fits import cost_us, unit_q64
from domain.master.state import State, owner_key

SAMPLES_LEAST: Final = 3
"""Measured runs on each side; one may be luck."""
MARGIN_Q32: Final = fixed.ln_q32(11, 10)
"""It has to be a tenth cheaper to be called faster, and no cheaper at all to lose the name."""


def words(state: State) -> Iterator[LinkPriced]:
    """Yield what is new about links of which something was measured; whoever takes one evolves it before asking for the next."""
    for link in _refitted(state):
        word = _word(state, state.control.links[link])
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


def _word(state: State, added: LinkAdded) -> LinkPriced | None:
    owner = owner_key(added.owner, added.owner_model)
    helper = owner_key(added.helper, added.helper_model)
    known = added.link in state.hints
    rules = pricing.fit_rules(state, owner)
    mine, theirs = state.fits.get(owner), state.fits.get(helper)
    measured = [each.measured(state.now_us, rules.window_us) if each is not None else None for each in (mine, theirs)]
    if any(each is None or each.samples < SAMPLES_LEAST for each in measured):
        return _said(added, faster=False) if known else None
    work = _work(measured[0])
    own, other = (
        fits.price(mine, None, rules, state.now_us, work),
        fits.price(theirs, mine, pricing.fit_rules(state, helper), state.now_us, work),
    )
    if own is None or other is None:
        return _said(added, faster=False) if known else None
    faster = other.log < own.log if known else other.log <= own.log - MARGIN_Q32
    if faster == known and not (faster and added.link in state.control.added):
        return None
    job_us, owner_job_us = (cost_us(unit_q64(each.log), work) for each in (other, own))
    return _said(added, faster=faster, job_us=job_us, owner_job_us=owner_job_us, work=work)


def _work(measured: fits.Measured | None) -> int:
    """Return the work that the two are compared for: the middle of what the owner has done."""
    return (measured.least + measured.most) // 2 if measured is not None else 0


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
