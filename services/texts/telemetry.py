"""The answers of /admin/v1/telemetry as tables: which columns a person wants to see, and what is to be said beside them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from adapters.times import utc
from projections.words import count
from services.texts import idle
from services.texts.plain import Row, signed

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
QUESTIONS: Final = {
    "requests": "requests that ended, by owner, model and outcome",
    "waits": "how long they waited",
    "service": "how long they were served, by the node that did",
    "tokens": "tokens read and written",
    "lending": "what was lent over each pair of nodes, and how it came back",
    "helpers": "how often each helper was granted or skipped, and why",
    "loads": "models loaded, driven out and brought back",
    "idle": "which nodes and models were idle; what nobody knows is unknown",
    "savings": "what lending saved against the owner alone",
}
"""Every question with what it is about."""
_WORDS: Final = {"out_per_service_s": "out per s", "home_us": "alone"}
_SAVED_IS: Final = (
    "measured against what plans had predicted for the owner alone; probes, and what came after those plans, are not in it: "
    "`leaseway audit what-if --policy none` runs every request on as if nothing had been lent"
)


class Table(NamedTuple):
    """One answer as a person reads it."""

    columns: Mapping[str, str]
    """Key -> heading."""
    rows: Sequence[Row]
    remarks: Sequence[str]


def table_of(question: str, answer: Mapping[str, Any], *, whole: bool) -> Table:
    """Return what a person wants to see of an answer; all of its rows if `whole`."""
    rows, step_s = answer[question], answer["step"]
    columns, told = dict(headings(question)), rows
    if question == "idle" and not whole:
        del columns["why"]
        columns["steps"] = "steps"
        told = idle.runs(rows)
    if question == "savings" and not whole:
        told = [row for row in rows if row["counted_in"] == row["t"]]
    shown = [dict(row) | {"t": time_of(row["t"], step_s)} | _in_words(question, row) for row in told]
    return Table(columns, shown, list(_remarks(question, rows, whole=whole)))


def _remarks(question: str, rows: Sequence[Row], *, whole: bool) -> Iterator[str]:
    if question == "idle" and not whole:
        yield from idle.unknown(rows)
    if question == "savings" and rows:
        saved = [row["saved_us"] for row in rows if row["saved_us"] is not None]
        yield f"saved {signed(sum(saved))} over {count(len(saved), 'backlog')} that can be measured"
        yield _SAVED_IS


def window_of(answer: Mapping[str, Any]) -> str:
    """Return the window of an answer: `<begin> to <end>`."""
    return " to ".join(utc(answer[edge] * 1_000_000_000, "seconds") for edge in ("from", "to"))


def cautions(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an answer lacks, and why."""
    if answer["truncated"]:
        yield "there is more than one answer holds: ask for longer steps, a shorter window, or one node"
    if answer["source"] == "minutes":
        yield "from counts by minute: the window has too many rows, or its rows are gone; there are no quantiles"


def _in_words(question: str, row: Row) -> dict[str, object]:
    """Return the cells of a row that a number alone would tell badly: time that was lost, and yes or no."""
    if question == "savings":
        return {"saved_us": signed(row["saved_us"])} if row["saved_us"] else {}
    return {"lent": bool(row["lent"])} if question == "requests" else {}


def headings(question: str) -> Mapping[str, str]:
    """Return the columns of a table with their headings."""
    return {"t": "from"} | {name: _WORDS.get(name, _plain(name)) for name in COLUMNS[question]}


def _plain(name: str) -> str:
    return name.removesuffix("_us").replace("_", " ")


def time_of(second: int, step_s: int) -> str:
    """Return when a step begins: the second, or the day of a step of days."""
    begins = utc(second * 1_000_000_000, "seconds")
    return begins[:10] if step_s >= 86_400 else begins
