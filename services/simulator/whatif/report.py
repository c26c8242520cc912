"""The answer of a what-if as rows and remarks, for the terminal and for the report: one HTML file with nothing beside it."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Final

from adapters.times import utc
from services.simulator.report import page
from services.simulator.whatif.answer import RECORDED, Answer, Column
from services.simulator.whatif.figures import ALL, Figures
from services.simulator.whatif.redecide import Count
from services.simulator.whatif.times import GUESSED, UNPRICED

HEADINGS: Final = ("", "", "requests", "drain s", "longest backlog s", "mean s", "p99 s", "loading s", "lent")
COUNTED: Final = ("", "", "then", "now")
LIMIT: Final = (
    "Facts that only follow from the old decisions (lent, borrowed, answered, loads for borrowed work) are what they were: "
    "this says what each decision would have been, the run on says what would have come of them."
)
_GROUNDS: Final = {"fits": "by arrivals and fits", RECORDED: "by recorded times"}


def heading(answer: Answer) -> str:
    """Return what is asked, of what."""
    asked = "; ".join(answer.changes) or "nothing is changed"
    span_s = (answer.end_us - answer.begin_us) / 1e6
    return f"What if: {asked}. {answer.requests:,} requests in {span_s:,.1f} s from {moment(answer.begin_us)}."


def moment(at_us: int) -> str:
    """Return a moment of the stream's clock."""
    return utc(at_us * 1000)


# -- decided again


def decided(answer: Answer) -> Iterator[str]:
    """Yield how the decisions differ, down to the first difference."""
    again = answer.redecided
    differ = f"{again.differing} differ" if again.differing else "none differs"
    rules = f" by the product's own rules (policy {answer.policy} is only run on)" if answer.policy else ""
    yield f"Decided again{rules}: {again.commits} commits, {differ}."
    if again.first is None:
        return
    yield f"First at version {again.first.version}, {moment(again.first.at_us)}:"
    for side, lines in (("then", again.first.then), ("now ", again.first.now)):
        yield from (f"  {side}  {line}" for line in lines or ("nothing",))


def counted(answer: Answer) -> Iterator[tuple[str, ...]]:
    """Yield what was decided how often, then and now: by kind, then by owner and helper."""
    for count in (*answer.redecided.kinds, *answer.redecided.links):
        yield _count(count)


def _count(count: Count) -> tuple[str, ...]:
    return count.link, count.what, str(count.then), str(count.now)


# -- run on


def rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    """Yield the table of what happened and what is predicted, by owner."""
    for key, happened in answer.happened.items():
        if key == ALL and len(answer.happened) == 2:
            continue  # it is the same as the one owner's
        yield (key, "happened", *_cells(happened))
        for what, columns in (("as it was", answer.unchanged), ("changed", answer.changed)):
            for column in columns:
                yield ("", f"{what}, {_GROUNDS[column.ground]}", *_cells(column.figures.get(key)))


def _cells(figures: Figures | None) -> tuple[str, ...]:
    if figures is None:
        return ("-",) * (len(HEADINGS) - 2)
    seconds = (figures.drain_s, figures.backlog_s, figures.mean_s, figures.p99_s, figures.load_s)
    return f"{figures.requests:,}", *(f"{value:,.2f}" for value in seconds), f"{figures.lent:.0%}"


def remarks(answer: Answer) -> Iterator[str]:
    """Yield what it comes to, how far to trust it, and what it rests on."""
    if answer.changed:
        yield sentence(answer)
    for column in answer.unchanged:
        least, most = column.drain_s
        spread = (
            f"; {column.draws} draws of the samples' spread, {least:,.2f} to {most:,.2f} s" if column.draws > 1 else ""
        )
        yield (
            f"calibration {_GROUNDS[column.ground]}: as it was, the predicted drain of all is {answer.error(column):+.1%} "
            f"from what happened{spread}{_untested(column)}"
        )
    for what, columns in (("as it was", answer.unchanged), ("changed", answer.changed)):
        for column in columns:
            yield f"service times {_GROUNDS[column.ground]}, {what}: {_sources(column.sources)}"
            if column.refused:
                yield f"{what}, {_GROUNDS[column.ground]}: {column.refused} requests were refused"
    yield from answer.notes


def _untested(column: Column) -> str:
    """Return what the error of a prediction does not say, where it knew what happened though it should not."""
    known = column.sources.get(UNPRICED, 0) + column.sources.get(GUESSED, 0)
    if column.ground == RECORDED or not known:
        return ""
    share = f"{known / sum(column.sources.values()):.0%} of its service times"
    return f"; this says little of the fits: {share} were taken from what happened, since no fit priced them"


def sentence(answer: Answer) -> str:
    """Return what the changes would have brought, on the ground that knows most."""
    before, after = _known_best(answer.unchanged), _known_best(answer.changed)
    parts = (
        f"{name} {getattr(after, field):,.1f} s instead of {getattr(before, field):,.1f} s{_relative(before, after, field)}"
        for name, field in (("drain", "drain_s"), ("mean", "mean_s"), ("p99", "p99_s"), ("loading", "load_s"))
        if getattr(before, field) or getattr(after, field)
    )
    return f"by recorded times, changed against as it was: {', '.join(parts)}"


def _known_best(columns: tuple[Column, ...]) -> Figures:
    return next(column.figures[ALL] for column in columns if column.ground == RECORDED)


def _relative(before: Figures, after: Figures, field: str) -> str:
    was, is_ = getattr(before, field), getattr(after, field)
    return f" ({is_ / was - 1:+.0%})" if was else ""


def _sources(sources: Mapping[str, int]) -> str:
    total = sum(sources.values())
    return "; ".join(f"{count / total:.0%} {source}" for source, count in sources.items()) or "none"


# -- the page


def what_if_report(answer: Answer, version: str) -> str:
    """Return the page."""
    body = [
        "<h1>Leaseway what-if</h1>",
        f"<p><strong>{escape(heading(answer))}</strong></p>",
        f"<p>leaseway {escape(version)}</p>",
        "<h2>Run on</h2>",
        _table(HEADINGS, rows(answer)),
        f"<ul>{''.join(f'<li>{escape(remark)}</li>' for remark in remarks(answer))}</ul>",
        "<h2>Decided again</h2>",
        f"<pre>{escape(chr(10).join(decided(answer)))}</pre>",
        _table(COUNTED, counted(answer)),
        f"<p>{escape(LIMIT)}</p>",
    ]
    return page("Leaseway what-if", body)


def _table(headings: tuple[str, ...], cells: Iterator[tuple[str, ...]]) -> str:
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f'<div class="wide"><table><tr>{heads}</tr>{lines}</table></div>'
