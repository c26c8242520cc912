"""On the command line, what is so long ago counts back by the clock that stamped it, whatever this machine's says."""

from adapters.clock import SystemClock
from adapters.log.history import Streams
from adapters.memory.stream import MemoryStream
from domain.subjects import CONTROL, EVENTS, LEDGER
from services.cli.moments import end_of, now_ns

HOUR_NS = 3_600_000_000_000


class HourAhead(SystemClock):
    def wall_us(self) -> int:
        return super().wall_us() + HOUR_NS // 1000


async def test_in_a_running_cluster_it_counts_back_from_what_time_the_bus_says_it_is() -> None:
    streams = Streams(*(MemoryStream(name, HourAhead()) for name in (EVENTS, CONTROL, LEDGER)))
    assert abs(await end_of(streams, copied=False) - now_ns() - HOUR_NS) < HOUR_NS // 60


async def test_in_a_copy_it_counts_back_from_the_newest_message() -> None:
    streams = Streams(*(MemoryStream(name, HourAhead()) for name in (EVENTS, CONTROL, LEDGER)))
    assert await end_of(streams, copied=True) == 0
    await streams.control.publish("lw.local.control.settings.cluster", b"{}")
    newest = await streams.control.last()
    assert newest is not None
    assert await end_of(streams, copied=True) == newest.stamp_ns
