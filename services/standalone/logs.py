"""What the processes write to their logs, as it comes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.2
_CHUNK_BYTES: Final = 1 << 20


class Tail:
    """Reads the lines that are added to the `*.log` files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at = {path: path.stat().st_size for path in folder.glob("*.log")}

    def more(self) -> str:
        """Return the whole lines added since the last call, file by file in order of name."""
        return "".join(self._more_of(path) for path in sorted(self._folder.glob("*.log")))

    def _more_of(self, path: Path) -> str:
        start = self._at.get(path, 0)
        if start > path.stat().st_size:  # a new log under the old name
            start = 0
        with path.open("rb") as log:
            log.seek(start)
            read = log.read(_CHUNK_BYTES)
        whole = read[: read.rfind(b"\n") + 1]
        self._at[path] = start + len(whole)
        return whole.decode(errors="replace")


async def follow(tail: Tail, out: Callable[[str], object]) -> None:
    """Pass on what comes, until cancelled."""
    while True:
        if text := tail.more():
            out(text)
        await asyncio.sleep(_POLL_S)
