"""Stories as text: what matters most in the first line, then tables of aligned columns; predicted and measured apart."""

import textwrap
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any, Final

from adapters.times import utc
from projections.why.commit import CommitStory
from projections.why.lease import LeaseStory
from projections.why.model import HelperSeen, ModelStory
from projections.why.plans import Candidate, LeaseLine, PlanSeen
from projections.why.request import Compared, RequestStory
from projections.words import count, duration
from services.texts.plain import printable

WIDTH: Final = 100
_MICRO: Final = 1_000_000


@singledispatch
def _lines(story: Any) -> Iterator[str]:
    raise TypeError(f"{type(story).__name__}: has no text")


def lines_of(story: Any) -> Iterator[str]:
    """Yield a story as lines of text."""
    yield from (printable(line) for line in _lines(story))
    for name in ("source", "incomplete"):
        said = getattr(story, name)
        if said:
            yield from ("", printable({"source": "from ", "incomplete": "not all: "}[name] + said))


@_lines.register
def _of_request(story: RequestStory) -> Iterator[str]:
    yield from _wrapped(f"{story.request}: {story.headline}")
    size = f"{story.work / _MICRO:g} tokens of work" if story.work else "no known size"
    yield f"  {story.owner}/{story.model}, arrived {utc(story.arrived_ns)}, {size}"
    yield from _section("Life (since its arrival; measured)")
    rows = [(_since(each.t_us), each.who, each.what, each.text) for each in story.moments]
    yield from _table(rows, right=1)
    if story.waits:
        yield from _section("Waited (measured)")
        rows = [(duration(each.us), f"from {_since(each.from_us)}", each.reason, each.text) for each in story.waits]
        yield from _table(rows, right=1)
    led = story.lease.version if story.lease is not None else 0
    if story.plans:
        yield from _section(
            f"Decided while it was held ({count(len(story.plans) + story.plans_left_out, 'run')} of plans)"
        )
        for plan in story.plans:
            yield from _plan(plan, since_ns=story.arrived_ns, led=plan.version <= led <= plan.last_version)
        if story.plans_left_out:
            yield f"  {story.plans_left_out} more runs of plans are left out"
    if story.lease is not None and not any(plan.version == led for plan in story.plans):
        yield from _section("Its lease, decided before it came")
        yield f"  {_lease(story.lease)}"
    yield from _section(_row("What it came to", "predicted", "measured"))
    yield from _figures(story.compared, story.helper)


def _figures(figures: Compared, helper: str) -> Iterator[str]:
    home = f" (version {figures.home_version})" if figures.home_version else ""
    rows: list[tuple[str, int, int]] = [
        (f"until its end, had nothing been lent{home}", figures.home_finish_us, -1),
        ("until its end, as it was", -1, figures.measured_finish_us),
    ]
    if figures.job_us >= 0 or figures.measured_job_us >= 0:
        rows += [
            (f"its service at {helper}", figures.job_us, figures.measured_job_us),
            ("its service at its owner", figures.owner_job_us, -1),
            ("model switch before it", figures.switch_us, figures.measured_load_us),
        ]
    for name, predicted, measured in rows:
        yield _row(f"  {name}", duration(predicted), duration(measured))
    if figures.home_finish_us >= 0 and figures.measured_finish_us >= 0:
        word, us = ("won", figures.won_us) if figures.won_us >= 0 else ("lost", -figures.won_us)
        yield f"  {word} {duration(us)} against the prediction"
    if figures.next_best:
        why = f", {figures.next_best_code}" if figures.next_best_code else ""
        yield from _wrapped(
            f"  next best: {figures.next_best}{why}, first answer in {duration(figures.next_best_first_answer_us)} (predicted)"
        )


@_lines.register
def _of_lease(story: LeaseStory) -> Iterator[str]:
    yield from _wrapped(f"lease {story.lease}: {story.headline}")
    ends = f"{story.owner}/{story.owner_model} > {story.helper}/{story.helper_model}"
    yield f"  {ends}, link {story.link}, granted {utc(story.granted_ns)} by version {story.version}"
    if story.ended_sentence:
        yield from _wrapped(f"  ended: {story.ended_sentence}")
    yield from _section("Steps (since the grant)")
    rows = []
    for step in story.steps:
        times = f" ({step.times} times until {_since(step.last_t_us)})" if step.times > 1 else ""
        rows.append((_since(step.t_us), step.who, step.text + times))
    yield from _table(rows, right=1)
    if story.plan is not None:
        yield from _section("Decided with it")
        yield from _plan(story.plan, since_ns=story.granted_ns)
    if story.requests:
        yield from _section("Lent under it (a job: predicted; served: measured)")
        yield from _table(
            [
                (
                    _since(each.t_us),
                    each.request,
                    each.outcome or "out",
                    f"a job {duration(each.job_us)}",
                    f"served {duration(each.service_us)}",
                    each.reason,
                )
                for each in story.requests
            ],
            right=1,
        )
        if story.requests_left_out:
            yield f"  {count(story.requests_left_out, 'more request')}"
    gain = story.gain
    yield from _section(_row("What it came to", "predicted", "measured"))
    saved = _signed(gain.measured_gain_us) if gain.measured_over else "-"
    yield _row("  waiting saved, in job-time", duration(gain.gain_us), saved)
    yield _row("  one job there (mean)", duration(gain.job_us), duration(gain.measured_job_us))
    yield _row("  model switch", duration(gain.switch_us), duration(gain.measured_load_us))
    if gain.measured_over:
        others = f"; {count(gain.shared_with, 'other lease')} had a part in it" if gain.shared_with else ""
        yield f"  measured: over {count(gain.measured_over, 'request')} held at the grant, against the owner alone{others}"


def _row(name: str, predicted: str, measured: str) -> str:
    return f"{name:<52} {predicted:>10}  {measured:>10}"


def _signed(us: int) -> str:
    return duration(us) if us >= 0 else f"-{duration(-us)}"


@_lines.register
def _of_commit(story: CommitStory) -> Iterator[str]:
    yield from _wrapped(story.headline)
    yield f"  stored {utc(story.at_ns)} in term {story.term} under the rules {story.policy}"
    ranges = f"LW_EVENTS ({story.lo}, {story.hi}], LW_CONTROL ({story.clo}, {story.chi}]"
    yield f"  read {ranges}; {count(story.owners, 'owner')} decided"
    if story.inputs:
        yield from _wrapped("  " + ", ".join(f"{number} {tag}" for tag, number in story.inputs.items()))
    for seq, code in story.rejected:
        yield f"  message {seq} was not believed: {code}"
    yield from _wrapped(f"  digest {story.digest}, after {story.prev}{f', state {story.state}' if story.state else ''}")
    if story.plans:
        yield from _section("Plans")
        for plan in story.plans:
            yield from _plan(plan, since_ns=story.at_ns, name=f"{plan.owner}/{plan.model}")
    if story.others:
        yield from _section("Other decisions")
        yield from _table([(str(each.index), each.kind, each.about, each.text) for each in story.others], right=1)
    if story.leases:
        yield from _section("Leases, before and after")
        yield from _table(
            [
                (
                    f"{each.owner} > {each.helper}",
                    each.lease,
                    f"{each.slots_before} -> {count(each.slots_after, 'slot')}",
                    each.reason,
                )
                for each in story.leases
            ]
        )


@_lines.register
def _of_model(story: ModelStory) -> Iterator[str]:
    yield from _wrapped(story.headline)
    drain = f", alone for {duration(story.drain_us)}" if story.drain_us >= 0 else ""
    yield f"  {story.held} held ({story.lendable} may be lent), {story.in_engine} in its engine, {story.lent} lent{drain}"
    if story.version:
        yield f"  as of version {story.version} and {utc(story.at_ns)}"
    if story.helpers:
        yield from _section("Helpers, the nearest to a lease first (prices are predicted)")
        for helper in story.helpers:
            yield from _helper(helper)
    if story.last_plan is not None:
        yield from _section("The newest plan that the master made")
        yield from _plan(story.last_plan, since_ns=story.at_ns)
    if story.notes:
        yield from _section("Besides")
        for each in story.notes:
            yield from _wrapped(f"  {each}")
    yield from _wrapped("  settings: " + ", ".join(f"{name} {value}" for name, value in story.settings.items()))


def _helper(helper: HelperSeen) -> Iterator[str]:
    lease = f", {count(helper.slots, 'slot')} leased, {helper.out} out" if helper.slots or helper.out else ""
    code = helper.code or ("would get a lease now" if helper.verdict is not None and helper.verdict.slots else "ready")
    yield f"  {helper.helper}/{helper.model}  {code}{lease}"
    for text in (helper.sentence, helper.detail, _price(helper.verdict) if helper.verdict is not None else ""):
        if text:
            yield from _wrapped(f"      {text}")


def _plan(plan: PlanSeen, *, since_ns: int, led: bool = False, name: str = "") -> Iterator[str]:
    run = f" to {plan.last_version} ({plan.times} alike)" if plan.times > 1 else ""
    t_us = (plan.at_ns - since_ns) // 1000
    after = f" at {_since(t_us)}" if t_us >= 0 else f" {duration(-t_us)} before"
    alone = f", alone {duration(plan.drain_us)}" if plan.drain_us >= 0 else ", no price of its own"
    lent = f", with leases {duration(plan.lent_drain_us)}" if plan.lent_drain_us >= 0 else ""
    what = f"{plan.held} held, {plan.lendable} lendable, {plan.in_engine} in the engine, {plan.out} lent"
    mark = "  <- its lease" if led else ""
    yield f"  version {plan.version}{run}{after}: {name + ' ' if name else ''}{plan.trigger}{mark}"
    yield from _wrapped(f"      {what}{alone}{lent}")
    yield from _table(
        [
            (each.helper, each.outcome, count(each.slots, "slot") if each.slots else "", each.code, _price(each))
            for each in plan.candidates
        ],
        indent=6,
    )
    for code, sentence in sorted({(each.code, each.sentence) for each in plan.candidates if each.code}):
        yield from _wrapped(f"        {code}: {sentence}")
    for code, number in plan.left_out:
        yield f"      {count(number, 'other')}: {code}"
    for lease in plan.leases:
        yield f"      -> {_lease(lease)}"


def _lease(line: LeaseLine) -> str:
    if line.kind == "cleared":
        return f"lease {line.lease} at {line.helper} is over: {line.reason or 'it does not pay any more'}"
    why = f" ({line.reason})" if line.reason else ""
    return (
        f"lease {line.lease} {line.kind}: {count(line.slots, 'slot')} at {line.helper} for {duration(line.ttl_us)}{why}"
    )


def _price(candidate: Candidate) -> str:
    """Return what is predicted of a helper's time; nothing if nothing is known of it."""
    parts = []
    if candidate.job_us > 0:
        by = f" ({candidate.source}, {count(candidate.samples, 'sample')})" if candidate.source else ""
        parts += [f"first answer {duration(candidate.first_answer_us)}", f"a job {duration(candidate.job_us)}{by}"]
    parts += [
        f"{name} {duration(us)}"
        for name, us in (("switch", candidate.switch_us), ("way back", candidate.back_us), ("saves", candidate.gain_us))
        if us > 0
    ]
    if candidate.probe_in_us >= 0:
        parts.append(f"a probe in {duration(candidate.probe_in_us)}")
    return ", ".join(parts)


def _since(us: int) -> str:
    """Return a time from a beginning, with its sign."""
    return f"+{duration(us)}" if us >= 0 else _signed(us)


def _section(title: str) -> Iterator[str]:
    yield ""
    yield title


def _table(rows: Sequence[Sequence[str]], *, indent: int = 2, right: int = 0) -> Iterator[str]:
    """Yield rows in aligned columns, the first `right` of them to the right; a last column that is too long is wrapped."""
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(len(rows[0]) - 1)] if rows else []
    for row in rows:
        cells = [
            cell.rjust(width) if at < right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        begin = " " * indent + "  ".join(cell for cell, width in zip(cells, widths, strict=True) if width)
        room = max(30, WIDTH - len(begin) - 2)
        first, *more = textwrap.wrap(row[-1], room) or [""]
        yield f"{begin}  {first}"
        yield from (" " * (len(begin) + 2) + line for line in more)


def _wrapped(text: str) -> Iterator[str]:
    """Yield a text as lines of at most WIDTH characters, those after the first a little further in."""
    indent = len(text) - len(text.lstrip())
    yield from textwrap.wrap(text, WIDTH, subsequent_indent=" " * (indent + 2), drop_whitespace=True) or [""]
