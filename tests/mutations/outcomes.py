"""What came of changes of stored history: each by itself, and the figures by kind."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

_CHECKPOINT = re.compile(r"a checkpoint |checkpoints? .* was signed|was signed for|checkpoint of version")
_WITNESS = re.compile(r"has seen version")
_START = re.compile(
    r"ends at \d+, but commit|is newer than commit|not there, though|a stream is not there|not found \(10059\)|"
    r"must reach version"
)
_SERVER = re.compile(r"nats-server")
_FEED = re.compile(r"LW_DECISIONS|decision header")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one change."""

    number: int
    family: str
    kind: str
    what: str
    changed: bool = True
    """What is served is no more what it was: the server neither mended it, nor was it of no use, nor refused."""
    refused: bool = False
    """The server itself did not come up on what was changed."""
    audit: str = ""
    """What the audit named first; empty: nothing."""
    doubt: str = ""
    """Why the master was in safe mode; empty: it was not."""
    process: bool = False
    """The master was a process of its own, started as operators start it."""
    commits: int = 0
    """That it stored all the same; a claim of the ledger is one."""
    decisions: int = 0
    """In them."""
    believed: int = 0
    """Of the feed: messages that are not what the master published, and that a node would still believe."""
    lost: str = ""
    """Why nothing came of it, after several tries: not the history's doing."""
    took_ms: int = 0

    @property
    def of_feed(self) -> bool:
        """Whether the feed was changed, on which no decision rests."""
        return self.family == "feed"

    @property
    def counts(self) -> bool:
        """Whether it is a mutation: something of what is served is another."""
        return self.changed and not self.lost

    @property
    def found(self) -> bool:
        """Whether the audit names it, and the master doubts before it decides; of the feed, whether it is named and believed
        by nobody."""
        if self.of_feed:
            return bool(self.audit) and not self.believed
        return bool(self.audit) and bool(self.doubt) and not self.commits


def found_by(text: str) -> str:
    """Return which check said so, by its words."""
    for name, words in (
        ("server", _SERVER),
        ("checkpoint", _CHECKPOINT),
        ("witness", _WITNESS),
        ("start check", _START),
        ("feed", _FEED),
    ):
        if words.search(text):
            return name
    return "scan" if text else "nobody"


def line(outcomes: Sequence[Outcome]) -> str:
    """Return the figures of some outcomes in one line."""
    counted = [each for each in outcomes if each.counts]
    found = sum(each.found for each in counted)
    share = f"{found / len(counted):.2%}" if counted else "-"
    told = f"{len(counted)} mutations, {found} found ({share})"
    without = sum(not each.changed and not each.lost for each in outcomes)
    told += f", {without} more without effect" if without else ""
    lost = sum(bool(each.lost) for each in outcomes)
    told += f", {lost} tries lost" if lost else ""
    return told


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table in Markdown with a row for each kind of change."""
    rows = [
        "| kind | mutations | without effect | found | audit, by what | safe mode, by what | decisions | as a process |",
        "|---|--:|--:|--:|---|---|--:|--:|",
    ]
    for family, kind in sorted({(each.family, each.kind) for each in outcomes}):
        rows.append(
            _row(f"{family}: {kind}", [each for each in outcomes if (each.family, each.kind) == (family, kind)])
        )
    rows.append(_row("**history**", [each for each in outcomes if not each.of_feed]))
    if any(each.of_feed for each in outcomes):
        rows.append(_row("**feed**", [each for each in outcomes if each.of_feed]))
    return rows


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    counted = [each for each in outcomes if each.counts]
    cells = [
        name,
        str(len(counted)),
        str(sum(not each.changed and not each.lost for each in outcomes)),
        str(sum(each.found for each in counted)),
        _by(Counter("verify" if found_by(each.audit) == "scan" else found_by(each.audit) for each in counted)),
        _by(Counter(found_by(each.doubt) for each in counted)),
        str(sum(each.decisions for each in counted if not each.of_feed)),
        str(sum(each.process for each in counted)),
    ]
    return f"| {' | '.join(cells)} |"


def _by(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
