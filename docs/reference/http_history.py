# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes the part of http.md about history from the tables of its parameters, or with --check tells whether it is current.

Run `.venv/bin/python docs/reference/http_history.py` after changing a parameter or a question.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from adapters.clickhouse import telemetry
from adapters.clickhouse.queries import DECISION_FILTERS
from adapters.clickhouse.store import READ_BYTES_MAX, READ_SECONDS_MAX
from services.projector.api_telemetry import NAMES
from services.projector.parameters import ABOUT, DEFAULTS

PAGE = Path(__file__).with_name("http.md")
BEGIN, END = "<!-- from docs/reference/http_history.py -->\n", "<!-- to here -->\n"
HEAD = f"""\
## What was decided, and what the cluster did

The projector answers at its own port (8200, loopback), JSON only. A query runs for at most {READ_SECONDS_MAX} s and takes at
most {READ_BYTES_MAX // 1024**2} MiB; two run at once. While ClickHouse starts, restarts or is away the answer is 503 with
`Retry-After`; a wrong parameter is 400 with its name in `param`. Times are written as `2026-11-30T01:20:00Z` (RFC 3339; without a
zone it is UTC, a day alone begins at midnight), as seconds since 1970, as how long ago (`90s`, `5m`, `3h`, `2d`), or as `now`.
All that are answered are in UTC.

"""
DECISIONS = """\
### `GET /admin/v1/decisions`

Rows of [the decision log](tables.md) with every column, in order of time: the newest ones, or with `after` those that follow. A
cursor holds a place (epoch, sequence, item) in each stream, so that following it misses nothing, however late a row comes in.

"""
TELEMETRY = f"""\
### `GET /admin/v1/telemetry/<question>`

The answer has `from`, `to`, `step` (seconds), `source`, `truncated` and the rows under the question's name; `t` of a row is the
second at which its step begins. At most {telemetry.ROWS_MAX:,} rows. With `source` `rows` it was made from rows: what was
sent twice counts once, what the master did not believe does not count. With more than {telemetry.EXACT_ROWS_MAX:,} rows in
the window, or where rows are gone, it is made from counts by minute (`minutes`), which hold every row as it came, for 400 days,
and have no quantiles.

Steps of `savings` are as short as the window allows unless `step` says otherwise. A backlog that lasts over several steps is
saved once: `saved_us` is null where `counted_in` names another step, so that it may be added up; it is below zero where lending
lost time, 0 where nothing was lent, and null where nobody knows: [what the counterfactual is, and what it does not
know](../how-to/look-after-history.md). `idle` refuses a window of which it could see a part only; `why` says of an unknown step
what was heard of the node: nothing (`not_heard_of`), or the first word that was not good; `messages_gone` is said of
a gap of the tables (`/health` has them), `not_stored_yet` of what is still to come, and where the tables are behind the streams.

"""
OF_TELEMETRY = {"model": ("a model's id", "the model that clients asked for; of `loads` and `idle`, the node's own")}
REST = """\
### The projections themselves

| path | says |
|---|---|
| `GET /admin/v1/projections` | schema and migrations, position and lag of each stream, sizes of the tables, counts by \
minute, rebuild |
| `POST /admin/v1/projections/rebuild?from=archive` | begins to make all rows again beside the live ones (or `from=stream`); \
needs `Content-Type: application/json`; 409 while one is under way |
"""


def main() -> int:
    """Write or check the page; return the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    made = with_history(page)
    if "--check" in sys.argv[1:]:
        if page != made:
            sys.stderr.write(
                "docs/reference/http.md is not current; run: .venv/bin/python docs/reference/http_history.py\n"
            )
            return 1
    else:
        PAGE.write_text(made, encoding="utf-8")
    return 0


def with_history(page: str) -> str:
    """Return `page` with its part about history as it is now."""
    part = f"{BEGIN}{HEAD}{DECISIONS}{_parameters(_of_decisions(), DEFAULTS)}\n{TELEMETRY}"
    window = {"from": "an hour before `to`", "to": "now", "step": "fitting"}
    part += _parameters(("from", "to", "step", "node", "model"), window, ABOUT | OF_TELEMETRY)
    part += "\n| question | answers | of each row |\n|---|---|---|\n"
    part += "".join(f"| `{name}` | {about} | {_columns(name)} |\n" for name, about in NAMES.items())
    part += f"\n{REST}{END}"
    if BEGIN not in page:
        return f"{page.rstrip()}\n\n{part}"
    before, _, rest = page.partition(BEGIN)
    return before + part + rest.partition(END)[2]


def _of_decisions() -> Sequence[str]:
    filters = ["code" if name == "reason" else name for name in DECISION_FILTERS]
    return (*filters, "from", "to", "limit", "after", "folded")


def _parameters(names: Sequence[str], defaults: Mapping[str, str], about: Mapping[str, tuple[str, str]] = ABOUT) -> str:
    rows = "".join(f"| `{name}` | {about[name][0]} | {defaults.get(name, '')} | {about[name][1]} |\n" for name in names)
    return f"| parameter | is | default | asks for |\n|---|---|---|---|\n{rows}"


def _columns(question: str) -> str:
    if question == "idle":
        return "node, model, state (busy, idle, unknown), served_us, why"
    if question == "savings":
        backlog = "owner, model, backlog, home_us, planned_us, measured_us, saved_us, saved_share"
        return f"{backlog}, ended, ended_at_helpers, lent, unfinished, home_job_us, owner_service_us, counted_in"
    text = re.sub(
        r"\{quantiles:(\w+)_us\}",
        r", AS \1_p50_us, AS \1_p95_us, AS \1_p99_us, AS \1_max_us",
        telemetry.SERIES[question].columns,
    )
    named = [
        found.rpartition(" ")[2]
        for found in re.findall(r"(?:^|, )([a-z]+(?=,|$)|[^,]*?AS \w+)", re.sub(r"\([^()]*\)", "", text))
    ]
    by = telemetry.SERIES[question].by
    extra = ["ping_pong"] if question == "loads" else []
    return ", ".join(dict.fromkeys([*by, *(name for name in named if name.isidentifier()), *extra]))


if __name__ == "__main__":
    sys.exit(main())
