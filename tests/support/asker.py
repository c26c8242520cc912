"""A tool that asks the mirrors without end, as a process: `python -m tests.support.asker URL CREDENTIALS`."""

import asyncio
import itertools
import sys
from pathlib import Path

from adapters.keys import load_credentials
from adapters.nats.connection import connect
from domain.subjects import EVENTS

AT_ONCE, PAUSE_S = 200, 0.005


async def ask_without_end(url: str, credentials: Path) -> None:
    """Ask some tens of thousands of times a second, until killed."""
    tool = await connect(url, load_credentials(credentials), name="asker")
    numbers = itertools.count()
    while True:
        for number in itertools.islice(numbers, AT_ONCE):
            asked = f"$JS.mirror.API.STREAM.INFO.{EVENTS}".encode()
            tool.send(asked, b'{"subjects_filter":">"}', b"_INBOX_obs-rogue.%d" % number)
        await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(ask_without_end(sys.argv[1], Path(sys.argv[2])))
