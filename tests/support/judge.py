"""What must hold after a burst, said by parts that are none of ours: clients, taps, stored bytes. Each check returns findings."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from adapters.keys import load_credentials
from adapters.nats.connection import connect
from domain.events import LeaseChanged, LeaseCleared, LeaseGranted, OwnerPlanned, RequestOrphaned
from domain.events.commit import Commit, decode_commit
from domain.subjects import LEDGER
from tests.support.burst import Outcome
from tests.support.processes import Cluster
from tests.support.tap import Line

PLAN = "plan"
TERMINAL = {"queue.finished", "queue.failed", "queue.cancelled", "queue.rejected", "queue.expired"}
_PAGE = 1000
_BEGINNING = "l0.0.0"
"""Cursor before the first row of the ledger: without one, pages begin at the newest rows."""


def second_starts(lines: Sequence[Line], outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Find requests that were started when they may not: streams twice; others a third time, or beside their first start."""
    for ask in (outcome.ask for outcome in outcomes):
        own = [line for line in lines if line.key == ask.mark and line.what != "FIRST"]
        started = [line for line in own if line.what == "START"]
        if len(started) > (1 if ask.stream else 2):
            yield f"{ask.mark} ({'stream' if ask.stream else 'plain'}) started {len(started)} times: {own}"
        for before, after in itertools.pairwise(started):
            ended = [line for line in own if line.exchange == before.exchange and line.what not in {"START", "REFUSED"}]
            if not any(line.at_us <= after.at_us for line in ended):
                yield f"{ask.mark} started again before its first start was over: {own}"


def bad_outcomes(outcomes: Iterable[Outcome], excused: Iterable[str] = ()) -> Iterator[str]:
    """Find clients that did not get what they asked for, but those whose mark is excused: these must have been told the truth."""
    marks = set(excused)
    for outcome in outcomes:
        ask = outcome.ask
        if outcome.good:
            if outcome.models != (ask.model,):
                yield f"{ask.mark} asked for {ask.model} and was answered by {outcome.models}"
        elif ask.mark not in marks:
            yield f"{ask.mark} ({'stream' if ask.stream else 'plain'}) got {outcome.status} {outcome.error}"
        elif outcome.status == 200 and not outcome.error:
            yield f"{ask.mark} was cut, but nothing says so"


def without_one_end(facts: Iterable[dict[str, Any]], outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Find requests of which the facts do not say exactly one end."""
    ends = ends_of(facts, ())
    for outcome in outcomes:
        if outcome.request and ends[outcome.request] != 1:
            yield f"{outcome.ask.mark} ({outcome.request}) has {ends[outcome.request]} ends in the facts"


def accepted(facts: Iterable[dict[str, Any]], owner: str) -> set[str]:
    """Return the requests that `owner` says it took."""
    taken = {"queue.held", "queue.started"}
    return {
        fact["event"]["data"]["request"]
        for fact in facts
        if fact["event"]["producer"] == owner and fact["event"]["type"] in taken
    }


def ends_of(facts: Iterable[dict[str, Any]], commits: Iterable[Commit]) -> Counter[str]:
    """Return how often each request came to an end: by a fact, or by the master's word that its owner is gone.

    A fact that was sent again counts once.
    """
    events = {fact["event"]["id"]: fact["event"] for fact in facts}.values()
    ends = Counter(event["data"]["request"] for event in events if event["type"] in TERMINAL)
    ends.update(d.request for commit in commits for d in commit.decisions if isinstance(d, RequestOrphaned))
    return ends


class Decided(msgspec.Struct, frozen=True, order=True):
    """One row of the master in the decision log, by what identifies it and what it says."""

    version: int
    decision: int
    kind: str
    helper: str
    outcome: str
    slots: int


async def ledger(cluster: Cluster) -> list[Commit]:
    """Return every commit, read from the bus with the operator's key."""
    credentials = load_credentials(cluster.data / "keys" / "operator.json")
    bus = await connect(cluster.endpoints.nats, credentials, name="operator")
    try:
        stream = bus.stream(LEDGER)
        bounds, commits = await stream.bounds(), []
        if bounds.last >= bounds.first:
            async for batch in stream.read(after=bounds.first - 1, until=bounds.last):
                commits += [decode_commit(message.body) for message in batch]
        return commits
    finally:
        await bus.close()


def rows_of(commits: Iterable[Commit]) -> Counter[Decided]:
    """Return the rows about plans and leases that the ledger asks for; the projection is not asked about itself."""
    rows: Counter[Decided] = Counter()
    for commit in commits:
        for index, decision in enumerate(commit.decisions):
            match decision:
                case OwnerPlanned():
                    for verdict in decision.verdicts:
                        rows[Decided(commit.version, index, PLAN, verdict.helper, verdict.outcome, verdict.slots)] += 1
                case LeaseGranted() | LeaseChanged() | LeaseCleared():
                    kind = decision.__struct_config__.tag
                    name = str(kind).partition(".")[2]
                    rows[Decided(commit.version, index, name, decision.helper, "", decision.slots)] += 1
                case _:
                    pass
    return rows


async def stored_rows(cluster: Cluster) -> Counter[Decided]:
    """Return the rows about plans and leases that ClickHouse holds, page by page through the projector."""
    rows: Counter[Decided] = Counter()
    after: str | None = _BEGINNING
    while after is not None:
        query = f"side=master&limit={_PAGE}&after={after}"
        status, body = await cluster.get(f"{cluster.endpoints.projector}/v1/decisions?{query}")
        if status != 200:
            raise ConnectionError(f"the projector answers {status} {body}")
        for row in body["decisions"]:
            lease = row["kind"] in {"granted", "changed", "cleared"}
            if lease or (row["kind"] == PLAN and row["outcome"] not in {"left_out", "none"}):
                outcome = "" if lease else row["outcome"]
                key = Decided(row["version"], row["decision"], row["kind"], row["helper"], outcome, row["slots"])
                rows[key] += 1
        after = (
            body["next"] if len(body["decisions"]) == _PAGE else None
        )  # the last page names what comes after it, too
    return rows


async def settled(cluster: Cluster) -> str:
    """Return what is not yet as it must be at rest; empty if `audit verify` is clean and the rows are those of the ledger."""
    told = await cluster.cli("audit", "verify")
    if told.code != 0 or not told.out.rstrip().endswith("0 differences"):
        return f"audit verify: {told.out} {told.err}"
    wanted = rows_of(await ledger(cluster))
    try:
        found = await stored_rows(cluster)
    except ConnectionError as error:
        return str(error)
    missing, doubled = wanted - found, found - wanted
    if missing or doubled:
        return f"{missing.total()} rows missing, {doubled.total()} too many: {[*missing, *doubled][:3]}"
    return ""
