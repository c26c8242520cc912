"""A verification's report as text, JSON, or one HTML page without anything from outside, to be kept."""

import html
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from adapters.log.chains import Chain
from adapters.log.report import Report
from adapters.times import utc
from domain.errors import BadConfigError

_STYLE: Final = """\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--faint:#d9dde2;--good:#e3f4e6;--bad:#fbe4e2}
@media(prefers-color-scheme:dark){:root{--ink:#dde4ec;--paper:#14191f;--faint:#37414d;--good:#1d3a26;--bad:#4a2323}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--paper)}
h1{font-size:1.4rem}h2{font-size:1.05rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--faint);
vertical-align:top;overflow-wrap:anywhere}th{font-weight:600;width:14rem}
@media(max-width:40rem){th{width:30%}}
.verdict{padding:.75rem 1rem;border-radius:.4rem;font-weight:600}.good{background:var(--good)}.bad{background:var(--bad)}
code{font-family:ui-monospace,monospace;font-size:.9em}
"""


def rows_of(report: Report) -> dict[str, Any]:
    """Return the report as JSON has it."""
    row: dict[str, Any] = msgspec.to_builtins(report)
    return {**row, "clean": report.clean, "line": report.line()}


def write(report: Report, path: Path) -> None:
    """Write the report in the form that the file's name asks for.

    Raises:
        BadConfigError: it cannot be written there.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = msgspec.json.format(msgspec.json.encode(rows_of(report)), indent=1).decode() + "\n"
    elif suffix in {".html", ".htm"}:
        content = page(report)
    else:
        content = "\n".join(text(report)) + "\n"
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise BadConfigError(f"report {path}: cannot be written: {error.strerror}") from None


def sections(report: Report) -> dict[str, list[tuple[str, str]]]:
    """Return all there is to say, by heading: (what, value)."""
    told = {
        "What was verified": [
            ("cluster", report.cluster),
            ("read from", report.source),
            ("versions", f"{report.first_version} to {report.last_version}"),
            ("stored", f"{at(report.first_ns)} to {at(report.last_ns)}"),
            ("began in", report.begin),
            ("generation", report.generation),
            ("last digest", report.digest),
            ("verified by", f"Leaseway {report.software}"),
        ],
        "Counts": [
            ("commits decided again", str(report.commits)),
            ("commits applied before them", str(report.followed)),
            ("facts", str(report.facts)),
            ("control events", str(report.control)),
            ("parts", str(report.segments)),
            ("messages of the feed compared", str(report.feed)),
        ],
        "Policies met": _counts(report.policies),
        "Versions that nodes said": _counts(report.versions),
        "Decisions": _counts(report.decisions),
        "Facts refused": _counts(report.rejected),
        "Producers": [(name, _chain(chain)) for name, chain in report.producers.items()],
        f"Signed checkpoints met: {report.checkpoints_met}": [
            (
                f"version {met.version}",
                f"{met.digest} signed {at(met.at_us * 1000)} by {met.fingerprint} ({met.source})",
            )
            for met in report.checkpoints
        ],
        "Keys": list(report.keys.items()),
        "Generations begun": [
            (name, report.begun.get(name, "nobody can tell by whom"))
            for name in sorted({*report.generations, *report.begun})
        ],
        "Not checked here": [("", why) for why in report.unchecked],
        "Stopped": [("", report.stopped)] if report.stopped else [],
    }
    return {heading: rows for heading, rows in told.items() if rows}


def _chain(chain: Chain) -> str:
    told = f"{chain.facts} facts in {chain.incarnations} lives, {chain.again} sent again, {chain.jumped} in snapshots"
    return f"{told}, {chain.missing} missing, {chain.unreadable} unreadable"


def _counts(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(name, str(count)) for name, count in sorted(counts.items())]


def _differences(report: Report) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    for number, one in enumerate(report.differences, start=1):
        where = f"version {one.version}, {one.place}" if one.version else one.place
        rows = [("where", where), ("what", one.detail)]
        if one.stored or one.decided:
            rows += [("stored", one.stored), ("decided again", one.decided)]
        yield f"Difference {number}", rows


def at(stamp_ns: int) -> str:
    """Return a stamp as people read it; a dash of none."""
    return utc(stamp_ns) if stamp_ns else "-"


def text(report: Report) -> list[str]:
    """Return the report in lines of text."""
    lines = [report.line(), ""]
    for heading, rows in (*_differences(report), *sections(report).items()):
        lines.append(heading)
        lines += [f"  {name + ': ' if name else ''}{value}" for name, value in rows]
        lines.append("")
    return lines[:-1]


def page(report: Report) -> str:
    """Return the report as one HTML page; names and reasons in it come from outside and are escaped."""
    verdict = "good" if report.clean else "bad"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{_safe(report.line())}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Leaseway: audit of cluster {_safe(report.cluster)}</h1>",
        f'<p class="verdict {verdict}">{_safe(report.line())}</p>',
    ]
    for heading, rows in (*_differences(report), *sections(report).items()):
        parts.append(f"<h2>{_safe(heading)}</h2><table>")
        parts += [f"<tr><th>{_safe(name)}</th><td><code>{_safe(value)}</code></td></tr>" for name, value in rows]
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _safe(value: str) -> str:
    return html.escape(value, quote=True)
