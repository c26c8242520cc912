"""`leaseway telemetry`: what the cluster did over a window, step by step, as the projector answers it."""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from services.cli.reach import get, here
from services.cli.show import Output, note
from services.lifecycle import EXIT_OK
from services.texts.telemetry import cautions, table_of, window_of


def run(parsed: argparse.Namespace) -> int:
    """Print the answer to one question, a row for each step and group."""
    place, out = here(parsed), Output(as_json=parsed.json)
    said = {"from": parsed.since, "to": parsed.until, "step": parsed.step, "node": parsed.node, "model": parsed.model}
    query = {name: str(value) for name, value in said.items() if value not in {None, ""}}
    path = f"/admin/v1/telemetry/{parsed.question}"
    url, flags = place.endpoints.projector, {"from": "--since", "to": "--until"}
    answer: dict[str, Any] = asyncio.run(get(place, "projector", url, path, query, flags=flags))
    if out.as_json:
        out.rows("", answer[parsed.question], {})
    else:
        print_table(out, parsed.question, answer, whole=parsed.all)
    if not answer[parsed.question]:
        note(
            f"nothing of that from {window_of(answer)}; `--since 1d` looks further back, `leaseway nodes` shows what may be named"
        )
    for caution in cautions(answer):
        note(caution)
    return EXIT_OK


def print_table(out: Output, question: str, answer: Mapping[str, Any], *, whole: bool) -> None:
    """Print what a person wants to see of an answer; all of its rows if `whole`."""
    table = table_of(question, answer, whole=whole)
    out.rows(f"{question}, steps of {answer['step']} s", table.rows, table.columns)
    for remark in table.remarks:
        note(remark)
