"""The state of the cluster as text: one table for each kind of thing, in order of id."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from adapters.times import utc
from projections.why.cluster import ClusterAt, QueueAt
from projections.words import count
from services.texts.plain import cell, printable

_LEFT_OUT: Final = frozenset({"incarnation", "pseq"})
_OF_ENDS: Final = frozenset({"owner_model", "helper_model", "link", "probe"})


def lines_of(then: ClusterAt) -> Iterator[str]:
    """Yield the state as lines of text."""
    yield from (printable(line) for line in _lines(then))


def _lines(then: ClusterAt) -> Iterator[str]:
    more = f" and {count(then.facts, 'fact')} after it" if then.facts else ""
    more += f", {count(then.control, 'control event')}" if then.control else ""
    yield f"version {then.version} of {then.head}{more}, stored {utc(then.at_ns)}, generation {then.generation}"
    if then.source != "NATS":
        yield f"  read from {then.source}"
    yield f"  domain time {cell('now_us', then.now_us)}, term {then.term}, rules {then.policy}, LW_EVENTS up to {then.hi}"
    if then.only:
        yield f"  only what concerns {then.only}"
    yield from _queues(then.queues)
    for title, rows in (
        ("Leases", then.leases),
        ("Nodes", then.nodes),
        ("Links", then.links),
        ("Measured", then.fits),
        ("Runtimes", then.runtimes),
        ("Breakers that are not closed", then.breakers),
    ):
        yield from _table(title, [_short(msgspec.to_builtins(row)) for row in rows])
    yield ""
    settings = ", ".join(f"{name} {value}" for name, value in then.settings.items())
    yield f"Settings that are not at their default: {settings or 'none'}"


def _short(row: dict[str, object]) -> dict[str, object]:
    """Return a row with its two ends in a column each; ids of links are for programs."""
    if "helper_model" not in row:
        return row
    ends = {side: f"{row[side]}/{row[side + '_model']}" for side in ("owner", "helper")}
    return {name: ends.get(name, value) for name, value in row.items() if name not in _OF_ENDS}


def _queues(queues: Sequence[QueueAt]) -> Iterator[str]:
    rows = [
        {
            "queue": f"{queue.node}/{queue.model}",
            "held": len(queue.held),
            "lendable": queue.lendable,
            "in engine": len(queue.in_engine),
            "lent": ", ".join(f"{helper or '?'}" for helper in sorted(queue.lent.values())),
        }
        for queue in queues
    ]
    yield from _table("Queues", rows)


def _table(title: str, rows: Sequence[dict[str, object]]) -> Iterator[str]:
    yield ""
    if not rows:
        yield f"{title}: none"
        return
    names = [name for name in rows[0] if name not in _LEFT_OUT]
    cells = [[cell(name, _plain(row[name])) for name in names] for row in rows]
    heads = [name.removesuffix("_us").replace("_", " ") for name in names]
    widths = [max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads)]
    yield title
    yield "  " + "  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True))
    for row in cells:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))


def _plain(value: object) -> object:
    return ", ".join(f"{key}: {said}" for key, said in value.items()) if isinstance(value, dict) else value
