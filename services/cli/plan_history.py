"""What a plan takes from the projector: how requests were served in a time, and how long a node's loads took."""

import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

from domain.errors import BadConfigError, NotYetError
from services.cli.reach import Here, get

_PAGE: Final = "1000"
Rows = list[dict[str, Any]]


class Whose(NamedTuple):
    """An owner and its model; empty where nobody said."""

    owner: str
    model: str

    def __str__(self) -> str:
        """Return it as links are written."""
        return f"{self.owner}/{self.model}"


class History(NamedTuple):
    """Rows of `requests` of a time."""

    rows: Rows
    since_ns: int

    def of(self, whose: Whose) -> tuple[Whose, Rows]:
        """Return the one owner and model that is meant, and its rows.

        Raises:
            NotYetError: there is no request at all.
            BadConfigError: there is none, or more than one.
        """
        counts = Counter(Whose(row["owner"], row["model"]) for row in self.rows)
        fitting = {one: count for one, count in counts.items() if _fits(one, whose)}
        if len(fitting) == 1:
            [found] = fitting
            return found, [row for row in self.rows if (row["owner"], row["model"]) == found]
        if not counts:
            raise NotYetError(
                "history: holds no request that ended in that time; ask for a longer one, or once there are some"
            )
        if not fitting:
            raise BadConfigError(f"history: must have a request of {_shown(whose)} in that time, has {_listed(counts)}")
        raise BadConfigError(f"history: say --owner and --model, there are requests of {_listed(fitting)}")

    def served_by(self, node: str, model: str) -> Rows:
        """Return the requests for `model` that `node` served, its own or borrowed ones."""
        served = (row for row in self.rows if row["model"] == model and row["service_us"] > 0)
        return [row for row in served if (row["helper"] or row["owner"]) == node]


def _fits(one: Whose, whose: Whose) -> bool:
    return (not whose.owner or one.owner == whose.owner) and (not whose.model or one.model == whose.model)


def _shown(whose: Whose) -> str:
    return " ".join(filter(None, (whose.owner or "any owner", whose.model and f"for {whose.model}")))


def _listed(counts: "dict[Whose, int]") -> str:
    return ", ".join(f"{one} ({count})" for one, count in sorted(counts.items())) or "none"


async def requests_since(place: Here, since_ns: int, say: Callable[[str], None]) -> History:
    """Return how every request since then ended, oldest first; `say` is told how many were read."""
    rows: Rows = []
    async for page in _pages(place, "requests", {"since_ns": str(since_ns)}):
        rows += page
        say(f"reading history: {len(rows)} requests")
    return History(rows, since_ns)


async def load_s_of(place: Here, node: str, model: str, since_ns: int) -> float:
    """Return the median of what loading `model` took at `node`.

    Raises:
        BadConfigError: it loaded none in that time.
    """
    query = {"node": node, "model": model, "since_ns": str(since_ns)}
    took: list[float] = [
        row["load_us"] / 1e6 async for page in _pages(place, "loads", query) for row in page if row["ok"]
    ]
    if not took:
        raise BadConfigError(f"--like {node}: has loaded {model} never in that time; say --load-s")
    return statistics.median(took)


async def _pages(place: Here, table: str, query: dict[str, str]) -> AsyncIterator[Rows]:
    after = ""
    while True:
        asked = {**query, "limit": _PAGE, "after": after}
        answer = await get(place, "projector", place.endpoints.projector, f"/v1/{table}", asked)
        if not answer[table]:
            return
        yield answer[table]
        after = answer["next"]
