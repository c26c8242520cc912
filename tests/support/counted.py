"""What telemetry should say, counted from the stored events in plain Python: no tables, no SQL, no projections.

counted = Counted(stored)
counted.requests(window)      # the rows that the view `requests` should have, with the columns that are compared
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from adapters.clickhouse.telemetry import PING_PONG_S, Window
from domain.events import (
    BorrowFinished,
    BorrowStarted,
    Cancelled,
    CutOff,
    Draining,
    Expired,
    Failed,
    Finished,
    HeartbeatMissed,
    HeartbeatSeen,
    Held,
    LeaseCleared,
    LeaseGranted,
    LendAnswered,
    LendBusy,
    LendReturned,
    Lent,
    Loaded,
    LoadFailed,
    NodeHealthChanged,
    OwnerPlanned,
    Registered,
    Rejected,
    RelayRefused,
    RequestOrphaned,
    RestoreCancelled,
    Restored,
    Started,
    Stopped,
    Unloaded,
)
from domain.events.codec import decode_envelope, decode_input
from domain.events.commit import Commit, decode_commit
from tests.replay.million.virtual import Streamed

Row = dict[str, Any]
ENDS: Final = (Finished, Failed, Cancelled, Rejected, Expired)
_NS: Final = 1_000_000_000
_KINDS: Final[Mapping[type, str]] = {
    Lent: "lent",
    LendAnswered: "answered",
    LendReturned: "returned",
    LendBusy: "busy",
    CutOff: "cut_off",
    RelayRefused: "relay_refused",
    LeaseGranted: "granted",
    LeaseCleared: "cleared",
}
_FRESH: Final = ("healthy", "recovered")


class Said(msgspec.Struct, frozen=True):
    """One believed fact, the first time that it was stored."""

    seq: int
    at_ns: int
    who: str
    fact: Any


class Decided(msgspec.Struct, frozen=True):
    """One decision and the commit that it stands in."""

    at_ns: int
    commit: Commit
    decision: Any


class Counted:
    """A history, read once."""

    def __init__(self, stored: Streamed, *, as_it_came: bool = False) -> None:
        """`as_it_came`: what was sent twice or not believed counts as well."""
        commits = [(message.stamp_ns, decode_commit(message.body)) for message in stored.ledger]
        self.decided = [Decided(at, commit, one) for at, commit in commits for one in commit.decisions]
        self.disbelieved = {seq for _, commit in commits for seq, _ in commit.rejected}
        self.said: list[Said] = []
        self.repeated = 0
        known: set[tuple[str, str]] = set()
        for message in stored.facts:
            if message.seq in self.disbelieved and not as_it_came:
                continue
            envelope = decode_envelope(message.body)
            fact = decode_input(envelope.data)
            # a fact is known by its place among its producer's; an end by its request, which has but one
            place = fact.request if isinstance(fact, ENDS) else f"{envelope.incarnation}/{envelope.pseq}"
            told = (envelope.producer, place)
            self.repeated += told in known
            if told not in known or as_it_came:
                known.add(told)
                self.said.append(Said(message.seq, message.stamp_ns, envelope.producer, fact))

    # -- views

    def requests(self, window: Window) -> list[Row]:
        """owner, model, outcome, lent, requests."""
        ended = [(s.at_ns, s.who, s.fact.model, type(s.fact).__name__.lower(), s.fact.helper) for s in self._ends()]
        ended += [
            (d.at_ns, d.decision.node, d.decision.model, "orphaned", "")
            for d in self.decided
            if isinstance(d.decision, RequestOrphaned)
        ]
        counts = Counter(
            (_step(at, window), who, model, how, bool(helper))
            for at, who, model, how, helper in ended
            if _in(at, window)
        )
        return _rows(counts, ("t", "owner", "model", "outcome", "lent"), "requests")

    def waits(self, window: Window) -> list[Row]:
        """owner, model, requests, wait_mean_us, wait_max_us, and all waits as `values`."""
        waited = (
            (s.at_ns, (s.who, s.fact.model), s.fact.wait_us) for s in self._ends() if not isinstance(s.fact, Rejected)
        )
        return [
            {"t": t, "owner": owner, "model": model} | _times("wait", values)
            for (t, owner, model), values in _grouped(waited, window)
        ]

    def service(self, window: Window) -> list[Row]:
        """node, model, requests, service_mean_us, service_max_us, and all times as `values`."""
        served = ((s.at_ns, (s.fact.helper or s.who, s.fact.model), s.fact.service_us) for s in self._finished())
        return [
            {"t": t, "node": node, "model": model} | _times("service", values)
            for (t, node, model), values in _grouped(served, window)
        ]

    def tokens(self, window: Window) -> list[Row]:
        """node, model, requests, tokens_in, tokens_out, out_per_service_s."""
        served = ((s.at_ns, (s.fact.helper or s.who, s.fact.model), s.fact) for s in self._finished())
        rows: list[Row] = []
        for (t, node, model), facts in _grouped(served, window):
            out, service_us = sum(f.tokens_out for f in facts), sum(f.service_us for f in facts)
            row = {"t": t, "node": node, "model": model, "requests": len(facts), "tokens_out": out}
            row |= {"tokens_in": sum(f.tokens_in for f in facts), "out_per_service_s": out / max(1, service_us) * 1e6}
            rows.append(row)
        return rows

    def lending(self, window: Window) -> list[Row]:
        """owner, model, helper, and how often each kind of thing happened."""
        happened = [(s.at_ns, s.who, s.fact.model, s.fact) for s in self.said if type(s.fact) in _KINDS]
        happened += [
            (d.at_ns, d.decision.owner, d.decision.owner_model, d.decision)
            for d in self.decided
            if type(d.decision) in _KINDS
        ]
        found: dict[tuple[Any, ...], Row] = {}
        for at, owner, model, event in happened:
            if _in(at, window):
                key = (_step(at, window), owner, model, event.helper)
                row = found.setdefault(key, dict.fromkeys((*_KINDS.values(), "gain_us", "service_us"), 0))
                row[_KINDS[type(event)]] += 1
                row["gain_us"] += event.gain_us if isinstance(event, LeaseGranted) else 0
                row["service_us"] += event.service_us if isinstance(event, LendAnswered) else 0
        return [
            dict(zip(("t", "owner", "model", "helper"), key, strict=True)) | row for key, row in sorted(found.items())
        ]

    def helpers(self, window: Window) -> list[Row]:
        """helper, outcome, reason, candidates."""
        counts: Counter[tuple[Any, ...]] = Counter()
        for each in self.decided:
            if isinstance(each.decision, OwnerPlanned) and _in(each.at_ns, window):
                t = _step(each.at_ns, window)
                counts.update((t, verdict.helper, verdict.outcome, verdict.code) for verdict in each.decision.verdicts)
                for code, number in each.decision.left_out:
                    counts[t, "", "left_out", code] += number
        return _rows(counts, ("t", "helper", "outcome", "reason"), "candidates")

    def loads(self, window: Window) -> list[Row]:
        """node, loads, loads_per_hour, loading_us, failed, displaced, restored, restore_cancelled, for_borrowed, ping_pong."""
        kinds = Loaded | LoadFailed | Restored | RestoreCancelled | Unloaded
        all_of_loads = [s for s in self.said if isinstance(s.fact, kinds) or type(s.fact).__name__ in _ALSO_LOADS]
        groups = _grouped(((s.at_ns, (s.who,), s) for s in all_of_loads), window)
        return [
            {"t": t, "node": node} | self._loads_of([(s.at_ns, s.fact) for s in found], t, window, node)
            for (t, node), found in groups
        ]

    def _loads_of(self, said: list[tuple[int, Any]], t: int, window: Window, node: str) -> Row:
        loaded = [(at, fact) for at, fact in said if isinstance(fact, Loaded)]
        long_s = min(t + window.step_s, window.until_s) - max(t, window.since_s)
        left = [(s.at_ns, s.fact.model) for s in self.said if s.who == node and isinstance(s.fact, Unloaded)]
        soon_ns = PING_PONG_S * _NS
        return {
            "loads": len(loaded),
            "loads_per_hour": len(loaded) * 3600 / long_s,
            "loading_us": sum(fact.load_us for _, fact in loaded),
            "failed": _count(said, LoadFailed),
            "displaced": sum(isinstance(fact, Unloaded) and fact.cause == "borrowed" for _, fact in said),
            "restored": _count(said, Restored),
            "restore_cancelled": _count(said, RestoreCancelled),
            "for_borrowed": sum(fact.cause == "borrowed" for _, fact in loaded),
            "ping_pong": sum(
                any(model == fact.model and 0 < at - gone <= soon_ns for gone, model in left) for at, fact in loaded
            ),
        }

    def idle(self, window: Window) -> list[Row]:
        """node, model, state, served_us."""
        registered = {s.who: s.fact.models for s in self.said if isinstance(s.fact, Registered)}
        runs = list(self._runs())
        pairs = {(who, info.id) for who, infos in registered.items() for info in infos} | {run[:2] for run in runs}
        rows: list[Row] = []
        for t in range(window.since_s - window.since_s % window.step_s, window.until_s, window.step_s):
            begin, end = max(t, window.since_s) * _NS, min(t + window.step_s, window.until_s) * _NS
            for node, model in sorted(pairs):
                busy = _union((max(b, begin), min(e, end)) for who, what, b, e in runs if (who, what) == (node, model))
                words = self._words(node)
                before = [good for at, good in words if at <= begin][-1:]
                well = before == [True] and all(good for at, good in words if begin < at < end)
                state = "busy" if busy else "idle" if well else "unknown"
                rows.append({"t": t, "node": node, "model": model, "state": state, "served_us": busy // 1000})
        return rows

    def backlogs(self, window: Window) -> dict[tuple[int, str, str], Row]:
        """(t, owner, model) -> home_us, backlog, measured_us (None: not known), of the plan with leases that had most to do.

        Which requests a backlog is: those that the commit had read of, and of which it had not read the end.
        """
        chosen: dict[tuple[int, str, str], tuple[int, int, Decided]] = {}
        for each in self.decided:
            plan = each.decision
            if (
                isinstance(plan, OwnerPlanned)
                and plan.lent_drain_us >= 0
                and plan.drain_us > 0
                and _in(each.at_ns, window)
            ):
                key = (_step(each.at_ns, window), str(plan.owner), str(plan.model))
                home_us = plan.drain_us + plan.out * max(0, plan.owner_job_us)
                chosen[key] = max(chosen.get(key, (0, 0, each)), (home_us, each.at_ns, each), key=lambda one: one[:2])
        return {key: self._backlog(key, home_us, each) for key, (home_us, _, each) in chosen.items()}

    def _backlog(self, key: tuple[int, str, str], home_us: int, each: Decided) -> Row:
        _, owner, model = key
        plan, hi = each.decision, each.commit.hi
        mine = [s for s in self.said if s.who == owner and getattr(s.fact, "model", "") == model]
        ended = {s.fact.request: s for s in mine if isinstance(s.fact, ENDS)}
        came = {s.fact.request for s in mine if s.seq <= hi and isinstance(s.fact, Held | Started)}
        still = {request for request in came if request not in ended or ended[request].seq > hi} - self._given_up(each)
        backlog = plan.held + plan.in_engine + plan.out
        known = len(still) == backlog and still <= ended.keys()
        last_ns = max((ended[request].at_ns for request in still if request in ended), default=0)
        lent = {s.fact.request for s in mine if isinstance(s.fact, Lent)} & still
        again = any(
            s.who == owner and isinstance(s.fact, Registered) and each.at_ns < s.at_ns <= last_ns for s in self.said
        )
        unfinished = sum(not isinstance(ended[request].fact, Finished) for request in still if request in ended)
        return {
            "home_us": home_us,
            "backlog": backlog,
            "lent": len(lent),
            "unfinished": unfinished,
            "measured_us": max(0, last_ns - each.at_ns) // 1000 if known and not again else None,
        }

    def _given_up(self, each: Decided) -> set[str]:
        """Return the requests that the master had taken for orphaned by a commit."""
        versions = {
            d.decision.request: d.commit.version for d in self.decided if isinstance(d.decision, RequestOrphaned)
        }
        return {request for request, version in versions.items() if version <= each.commit.version}

    # -- parts

    def _ends(self) -> Iterator[Said]:
        return (s for s in self.said if isinstance(s.fact, ENDS))

    def _finished(self) -> Iterator[Said]:
        return (s for s in self.said if isinstance(s.fact, Finished))

    def _words(self, node: str) -> list[tuple[int, bool]]:
        """Return when something was said of a node's health, and whether it was good."""
        words: list[tuple[int, bool]] = []
        for each in self.said:
            fact = each.fact
            if isinstance(fact, HeartbeatMissed | HeartbeatSeen):
                words += [(each.at_ns, isinstance(fact, HeartbeatSeen))] if fact.node == node else []
            elif each.who == node and type(fact).__name__ in _OF_HEALTH:
                words.append((each.at_ns, not isinstance(fact, Draining | Stopped)))
        for one in self.decided:
            if isinstance(one.decision, NodeHealthChanged) and one.decision.node == node:
                words.append((one.at_ns, one.decision.state in _FRESH))
        return sorted(words)

    def _runs(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield node, model, begin and end of everything that ran, as far as anybody knows that it did."""
        own = {(s.who, s.fact.request) for s in self._ends()}
        left = {(s.who, s.fact.request) for s in self.said if isinstance(s.fact, BorrowFinished)}
        for s in self.said:
            fact = s.fact
            served = isinstance(fact, ENDS) and not fact.helper and fact.service_us > 0
            if served or isinstance(fact, BorrowFinished):
                yield s.who, fact.model, s.at_ns - 1000 * fact.service_us, s.at_ns
            elif (isinstance(fact, Started) and (s.who, fact.request) not in own) or (
                isinstance(fact, BorrowStarted) and (s.who, fact.request) not in left
            ):
                yield from ((s.who, fact.model, begin, end) for begin, end in self._while_well(s.who, s.at_ns))

    def _while_well(self, node: str, begin: int) -> Iterator[tuple[int, int]]:
        lives = [s.at_ns for s in self.said if s.who == node and isinstance(s.fact, Registered | Stopped)]
        end = min((at for at in lives if at > begin), default=1 << 63)
        edges = [(begin, True)] + [word for word in self._words(node) if begin < word[0] < end] + [(end, False)]
        for (at, good), (following, _) in pairwise(edges):
            if good:
                yield at, following


_ALSO_LOADS: Final = ("LoadStarted", "RestoreScheduled")
_OF_HEALTH: Final = ("Registered", "Accepting", "NotAccepting", "Draining", "Stopped", "FactsSummarised")


def _in(at_ns: int, window: Window) -> bool:
    return window.since_s * _NS <= at_ns < window.until_s * _NS


def _step(at_ns: int, window: Window) -> int:
    return at_ns // _NS // window.step_s * window.step_s


def _grouped(
    happened: Iterable[tuple[int, tuple[str, ...], Any]], window: Window
) -> list[tuple[tuple[Any, ...], list[Any]]]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for at, key, value in happened:
        if _in(at, window):
            groups.setdefault((_step(at, window), *map(str, key)), []).append(value)
    return sorted(groups.items(), key=lambda item: item[0])


def _times(name: str, values: list[int]) -> Row:
    mean = sum(values) // len(values)
    return {"requests": len(values), f"{name}_mean_us": mean, f"{name}_max_us": max(values), "values": sorted(values)}


def _rows(counts: Mapping[tuple[Any, ...], int], names: tuple[str, ...], of: str) -> list[Row]:
    return [dict(zip(names, key, strict=True)) | {of: number} for key, number in sorted(counts.items())]


def _count(said: list[tuple[int, Any]], kind: type) -> int:
    return sum(isinstance(fact, kind) for _, fact in said)


def _union(spans: Iterable[tuple[int, int]]) -> int:
    """Return how long any of them lasts."""
    total = reached = 0
    for begin, end in sorted(spans):
        if end > max(begin, reached):
            total += end - max(begin, reached)
            reached = end
    return total


VIEWS: Final[Mapping[str, Callable[[Counted, Window], list[Row]]]] = {
    "requests": Counted.requests,
    "waits": Counted.waits,
    "service": Counted.service,
    "tokens": Counted.tokens,
    "lending": Counted.lending,
    "helpers": Counted.helpers,
    "loads": Counted.loads,
    "idle": Counted.idle,
}
