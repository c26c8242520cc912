"""The report of a campaign: one HTML file that needs nothing beside it."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from services.simulator.campaign import Result
from services.simulator.drivers import known_policies
from services.simulator.plots import plot
from services.simulator.summary import PolicySummary, ScenarioSummary, Summary

_PLOTTED_MAX = 30
COLUMNS: Final = {
    "gmean_drain": "drain ratio",
    "mean_drain": "arithmetic",
    "worst_drain": "worst",
    "mean_s": "mean s",
    "p99_s": "p99 s",
    "load_s": "loading s",
    "helper_own_mean_s": "helpers' own mean s",
}
"""Key of a summary -> heading, here and on the terminal."""

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2733;--paper:#fff;--faint:#d8dee6;--held:#3465a4;--out:#c4741a;--slots:#7a7f87;
--busy:#5a9a68;--load:#b03a48;--restore:#8a63b3}
@media(prefers-color-scheme:dark){:root{--ink:#dde4ec;--paper:#14191f;--faint:#37414d;--held:#7fb0ee;--out:#f0a95c;
--slots:#9aa3ad;--busy:#7cc48c;--load:#ee7c88;--restore:#bf9ae6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1120px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}
th,td{padding:.2em .8em;border-bottom:1px solid var(--faint);text-align:right}
th:first-child,td:first-child{text-align:left}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1em 1.2em}dt{font-weight:600}dd{margin:0}
.wide,pre{overflow-x:auto}.best{font-weight:700}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(460px,100%),1fr));gap:1em}
svg{width:100%;height:auto}svg text{font:9px system-ui,sans-serif;fill:currentColor}svg .title{font-size:11px;font-weight:600}
.end{text-anchor:end}.middle{text-anchor:middle}path{fill:none;stroke-width:1.4}
path.rule{stroke:var(--faint);stroke-width:.6}path.held{stroke:var(--held)}path.out{stroke:var(--out)}
path.slots{stroke:var(--slots);stroke-dasharray:3 2;stroke-width:1}
rect.busy{fill:var(--busy)}rect.load{fill:var(--load)}rect.restore{fill:var(--restore)}
.key span{margin-right:1.4em}.key i{display:inline-block;width:1.2em;height:.5em;margin-right:.4em}
summary{cursor:pointer;font-weight:600;margin:.6em 0}
"""
_READ_ME: Final = """\
Drain ratio: time until the last answer, divided by what a clairvoyant scheduler could do; 1 is perfect.
Means and p99 are geometric means over scenarios, loading is summed."""
_KEY: Final = (
    ("held", "held by owners"),
    ("out", "lent out"),
    ("slots", "slots of leases (dashed)"),
    ("busy", "a node serves"),
    ("load", "it loads another's model"),
    ("restore", "it loads its own"),
)


def report(summary: Summary, results: Sequence[Result], abouts: dict[str, str]) -> str:
    """Return the page. `abouts` says what each scenario is; results with curves are plotted."""
    title = f"Leaseway simulation: {summary.suite}"
    seeds = f"seed {summary.seeds[0]}" if len(summary.seeds) == 1 else f"seeds {summary.seeds[0]}..{summary.seeds[-1]}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>leaseway {escape(summary.version)}, {escape(seeds)}. {_READ_ME}</p>",
        _policies(summary),
        _meanings(summary),
        "<h2>Drain ratio by scenario</h2>",
        _scenarios(summary),
        *_plots(summary, results, abouts),
    ]
    return page(title, body)


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole page of these parts."""
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    view = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f"{head}{view}<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"


def _policies(summary: Summary) -> str:
    heads = "".join(f"<th>{escape(heading)}</th>" for heading in ("policy", *COLUMNS.values()))
    rows = (_row(name, policy) for name, policy in summary.policies.items())
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def _meanings(summary: Summary) -> str:
    known = dict(known_policies())
    items = (f"<dt>{escape(name)}</dt><dd>{escape(known.get(name, ''))}</dd>" for name in summary.policies)
    return f"<dl>{''.join(items)}</dl>"


def _row(name: str, policy: PolicySummary) -> str:
    if not policy.scenarios:
        return f'<tr><td>{escape(name)}</td><td colspan="{len(COLUMNS)}">runs none of these scenarios</td></tr>'
    cells = "".join(f"<td>{number(key, getattr(policy, key))}</td>" for key in COLUMNS)
    return f"<tr><td>{escape(name + part(policy))}</td>{cells}</tr>"


def part(policy: PolicySummary) -> str:
    """Return how many of the scenarios the policy could run, if not all."""
    return f" ({len(policy.scenarios)} of {len(policy.scenarios) + len(policy.refused)})" if policy.refused else ""


def number(key: str, value: float) -> str:
    """Return a measure as people read it: ratios to the thousandth, seconds to the tenth; a dash where there is nothing."""
    if key == "helper_own_mean_s" and not value:
        return "-"
    if key.endswith("drain"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if key == "load_s" else f"{value:,.1f}"


def _scenarios(summary: Summary) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("scenario", *summary.policies))
    rows = "".join(f"<tr><td>{escape(name)}</td>{''.join(_drains(summary, name))}</tr>" for name in summary.scenarios)
    return f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'


def _drains(summary: Summary, scenario: str) -> Iterable[str]:
    found: list[ScenarioSummary | None] = [policy.scenarios.get(scenario) for policy in summary.policies.values()]
    best = min((one.mean_drain for one in found if one is not None), default=0.0)
    for one in found:
        if one is None:
            yield "<td>-</td>"
        else:
            mark = ' class="best"' if one.mean_drain == best else ""
            yield f"<td{mark}>{one.mean_drain:.3f}</td>"


def _plots(summary: Summary, results: Sequence[Result], abouts: dict[str, str]) -> Iterable[str]:
    drawn: dict[str, list[Result]] = {}
    for result in results:
        if result.curves is not None:
            drawn.setdefault(result.scenario, []).append(result)
    if not drawn:
        return
    yield f"<h2>Queue, leases and loads over time, seed {summary.seeds[0]}</h2>"
    if len(drawn) > _PLOTTED_MAX:
        yield f"<p>Of the first {_PLOTTED_MAX} of {len(drawn)} scenarios; run one of the others alone to see it.</p>"
    yield key()
    for place, (name, runs) in enumerate(drawn.items()):
        if place < _PLOTTED_MAX:
            yield f"<details{' open' if place == 0 else ''}><summary>{escape(name)}</summary>"
            yield f"<p>{escape(abouts.get(name, ''))}</p><div class=plots>"
            yield from (_plot(run) for run in runs)
            yield "</div></details>"


def key() -> str:
    """Return what the colours of a plot mean."""
    items = "".join(f'<span><i style="background:var(--{name})"></i>{text}</span>' for name, text in _KEY)
    return f'<p class="key">{items}</p>'


def _plot(run: Result) -> str:
    assert run.curves is not None
    return f"<div>{plot(f'{run.policy}: {run.drain:.3f}', run.curves)}</div>"
