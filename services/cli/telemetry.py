"""`leaseway telemetry`: what the cluster did over a window, step by step, as the projector answers it."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from adapters.times import utc
from projections.words import count
from services.cli import idle_text
from services.cli.reach import get, here
from services.cli.show import Output, Row, duration, note
from services.lifecycle import EXIT_OK

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "requests": ("owner", "model", "outcome", "lent", "requests"),
    "waits": ("owner", "model", "requests", "wait_mean_us", "wait_p50_us", "wait_p95_us", "wait_p99_us", "wait_max_us"),
    "service": ("node", "model", "requests", "service_mean_us", "service_p50_us", "service_p99_us", "service_max_us"),
    "tokens": ("node", "model", "requests", "tokens_in", "tokens_out", "out_per_service_s"),
    "lending": ("owner", "model", "helper", "granted", "lent", "answered", "returned", "busy", "cut_off", "service_us"),
    "helpers": ("helper", "outcome", "reason", "candidates"),
    "loads": ("node", "loads", "loads_per_hour", "loading_us", "failed", "displaced", "restored", "ping_pong"),
    "idle": ("node", "model", "state", "served_us", "why"),
    "savings": ("owner", "model", "backlog", "lent", "home_us", "planned_us", "measured_us", "saved_us"),
}
"""What a table shows of each question, beside the time of the step."""
_WORDS: Final = {"out_per_service_s": "out per s", "home_us": "alone"}
_SAVED_IS: Final = (
    "measured against what plans had predicted for the owner alone; probes, and what came after those plans, are not in it: "
    "`leaseway audit what-if --policy none` runs every request on as if nothing had been lent"
)


def run(parsed: argparse.Namespace) -> int:
    """Print the answer to one question, a row for each step and group."""
    place, out = here(parsed), Output(as_json=parsed.json)
    said = {"from": parsed.since, "to": parsed.until, "step": parsed.step, "node": parsed.node, "model": parsed.model}
    query = {name: str(value) for name, value in said.items() if value not in {None, ""}}
    path = f"/admin/v1/telemetry/{parsed.question}"
    url, flags = place.endpoints.projector, {"from": "--since", "to": "--until"}
    answer: dict[str, Any] = asyncio.run(get(place, "projector", url, path, query, flags=flags))
    rows: Sequence[Row] = answer[parsed.question]
    if out.as_json:
        out.rows("", rows, {})
    else:
        print_table(out, parsed.question, rows, answer["step"], whole=parsed.all)
    if not rows:
        window = " to ".join(utc(answer[edge] * 1_000_000_000, "seconds") for edge in ("from", "to"))
        note(
            f"nothing of that from {window}; `--since 1d` looks further back, `leaseway nodes` shows what may be named"
        )
    if answer["truncated"]:
        note("there is more than one answer holds: ask for longer steps, a shorter window, or one node")
    if answer["source"] == "minutes":
        note("from counts by minute: the window has too many rows, or its rows are gone; there are no quantiles")
    return EXIT_OK


def print_table(out: Output, question: str, rows: Sequence[Row], step_s: int, *, whole: bool) -> None:
    """Print what a person wants to see of the rows; all of them if `whole`."""
    columns, told = dict(headings(question)), rows
    if question == "idle" and not whole:
        del columns["why"]
        columns["steps"] = "steps"
        told = idle_text.runs(rows)
    if question == "savings" and not whole:
        told = [row for row in rows if row["counted_in"] == row["t"]]
    shown = [dict(row) | {"t": time_of(row["t"], step_s)} | _in_words(question, row) for row in told]
    out.rows(f"{question}, steps of {step_s} s", shown, columns)
    if question == "idle" and not whole:
        for line in idle_text.unknown(rows):
            note(line)
    if question == "savings" and rows:
        saved = [row["saved_us"] for row in rows if row["saved_us"] is not None]
        note(f"saved {_signed(sum(saved))} over {count(len(saved), 'backlog')} that can be measured")
        note(_SAVED_IS)


def _in_words(question: str, row: Row) -> dict[str, object]:
    """Return the cells of a row that a number alone would tell badly: time that was lost, and yes or no."""
    if question == "savings":
        return {"saved_us": _signed(row["saved_us"])} if row["saved_us"] else {}
    return {"lent": bool(row["lent"])} if question == "requests" else {}


def _signed(us: int) -> str:
    return duration(us) if us >= 0 else f"-{duration(-us)}"


def headings(question: str) -> Mapping[str, str]:
    """Return the columns of a table with their headings."""
    return {"t": "from"} | {name: _WORDS.get(name, _plain(name)) for name in COLUMNS[question]}


def _plain(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")


def time_of(second: int, step_s: int) -> str:
    """Return when a step begins: the second, or the day of a step of days."""
    begins = utc(second * 1_000_000_000, "seconds")
    return begins[:10] if step_s >= 86_400 else begins
