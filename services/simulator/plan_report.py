"""The answer of a plan as one HTML file that needs nothing beside it, and the rows that the terminal shows as well."""

from collections.abc import Iterator, Sequence
from html import escape

from services.simulator.curves import Curves
from services.simulator.plan import Answer, Calibration
from services.simulator.plan_run import Figures, Runs
from services.simulator.plots import plot
from services.simulator.report import key, page

HEADINGS = (
    "",
    "mean s",
    "p50 s",
    "p99 s",
    "mean wait s",
    "p99 wait s",
    "longest backlog s",
    "loads",
    "loading s",
    "lent",
)
"""Of the table: the same here and on the terminal."""


def rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows as texts."""
    yield ("alone", *_cells(answer.alone))
    yield (f"with it ({answer.helped.policy})", *_cells(answer.helped))


def _cells(figures: Figures) -> Sequence[str]:
    seconds = (
        figures.mean_s,
        figures.p50_s,
        figures.p99_s,
        figures.wait_mean_s,
        figures.wait_p99_s,
        figures.longest_backlog_s,
    )
    return (
        *(f"{value:,.1f}" for value in seconds),
        str(figures.loads),
        f"{figures.load_s:,.0f}",
        f"{figures.lent_share:.0%}",
    )


def basis(answer: Answer) -> str:
    """Return what the answer rests on."""
    span_h = answer.span_s / 3600
    span = (
        f"{span_h / 24:.1f} days"
        if span_h >= 48
        else f"{span_h:.1f} hours"
        if span_h >= 2
        else f"{answer.span_s:.0f} s"
    )
    return f"{answer.requests:,} requests of {answer.traffic} in {span}, {answer.utilisation:.0%} of what the owner can do alone"


def trust(calibration: Calibration) -> str:
    """Return how the simulation compares with what happened."""
    return (
        f"checked against {calibration.requests:,} requests while nothing was lent: "
        f"the simulated mean is {calibration.simulated_mean_s:.3g} s where {calibration.happened_mean_s:.3g} s "
        f"happened ({calibration.mean_error:+.0%}), "
        f"p99 {calibration.simulated_p99_s:.3g} s for {calibration.happened_p99_s:.3g} s ({calibration.p99_error:+.0%})"
    )


def remarks(answer: Answer) -> Iterator[str]:
    """Yield what is to be kept in mind, the calibration first."""
    if answer.calibration is not None:
        yield trust(answer.calibration)
    yield from answer.notes


def plan_report(answer: Answer, runs: Runs) -> str:
    """Return the page."""
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(answer))
    said = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(answer))
    body = [
        "<h1>Leaseway plan</h1>",
        f"<p><strong>{escape(answer.sentence)}</strong></p>",
        f"<p>leaseway {escape(answer.version)}, {escape(basis(answer))}.</p>",
        f'<div class="wide"><table><tr>{heads}</tr>{table}</table></div>',
        f"<ul>{said}</ul>" if said else "",
        *_plots(runs),
    ]
    return page("Leaseway plan", body)


def _plots(runs: Runs) -> Iterator[str]:
    drawn: list[tuple[str, Curves]] = [
        (title, ran.curves)
        for title, ran in (("alone", runs.alone), ("with it", runs.helped))
        if ran.curves is not None
    ]
    if drawn:
        yield "<h2>The busiest time</h2>"
        yield key()
        yield f"<div class=plots>{''.join(f'<div>{plot(title, curves)}</div>' for title, curves in drawn)}</div>"
