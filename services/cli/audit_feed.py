"""The last step of an audit of a bus: the public feed of decisions against the ledger from which it is derived."""

from pathlib import Path
from typing import Final

from adapters.clock import SystemClock
from adapters.decisions import DecisionReader
from adapters.keys import load_credentials
from adapters.log.fed import PLACE, compare_feed
from adapters.log.report import Difference, Report
from adapters.nats.layout import LEDGER_AGE_S
from domain.errors import BusError, HistoryError
from services.cli.audit_source import Opened, Source

_AGE_NS: Final = int(LEDGER_AGE_S * 1e9)


async def check_feed(source: Source, place: Opened, report: Report, *, ranged: bool) -> None:
    """Add to `report` what of the feed is not what the ledger decided; where the ledger itself is in doubt, nothing."""
    if place.feed is None or not report.clean:
        return
    if ranged:
        report.unchecked.append("the feed: it is compared where neither --from nor --to is given")
        return
    reader = DecisionReader(source.cluster, load_credentials(Path(source.key)).master_public)
    try:
        found = await compare_feed(
            place.feed,
            place.streams.ledger,
            reader,
            source.cluster,
            dropped_before_ns=SystemClock().wall_us() * 1000 - _AGE_NS,
        )
    except BusError as error:
        report.differences.append(Difference(0, PLACE, f"{place.feed.name}: cannot be read: {error}"))
        return
    except HistoryError as error:  # of an older generation, which has ended for being in doubt: the newest one is clean
        report.unchecked.append(f"the feed: {error}")
        return
    report.feed = found.messages
    report.differences += found.differences
    if found.more:
        report.differences.append(Difference(0, PLACE, f"{found.more} more messages of the feed are not as decided"))
    if found.behind:
        report.unchecked.append(
            f"the feed: {found.behind} decisions are not in it yet; the active master publishes them"
        )
    if found.unchecked:
        report.unchecked.append(f"the feed: {found.unchecked} messages are older than what the ledger still holds")
