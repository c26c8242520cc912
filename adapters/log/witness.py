"""Keeps the newest commit seen in a file of the data directory, apart from the bus: a ledger behind it has lost its tail."""

import asyncio
import os
from pathlib import Path

import msgspec

from domain.errors import HistoryError
from domain.ports import Witnessed


class FileWitnessBook:
    """A WitnessBook (domain.ports) in one file, `<data>/checkpoint.json`; it never goes back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: Witnessed | None = None
        self._lock = asyncio.Lock()

    async def read(self) -> Witnessed | None:
        """Return the newest commit kept; None if there never was one.

        Raises:
            HistoryError: there is a checkpoint, but it cannot be read: nobody can say that the ledger is not behind it.
        """
        try:
            content = await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HistoryError(f"checkpoint {self._path}: cannot be read: {error}") from None
        try:
            self._newest = msgspec.json.decode(content, type=Witnessed)
        except msgspec.DecodeError as error:
            raise HistoryError(f"checkpoint {self._path}: must be a witnessed commit, is not: {error}") from None
        return self._newest

    async def put_aside(self) -> str:
        """Put a checkpoint that cannot be read aside, as `.unreadable`; return where it is, empty if there is none such.

        Raises:
            HistoryError: it cannot be put aside either.
        """
        try:
            await self.read()
        except HistoryError as unread:
            aside = self._path.with_suffix(".unreadable")
            try:
                await asyncio.to_thread(self._path.replace, aside)
            except OSError as error:
                raise HistoryError(f"{unread}; nor can it be put aside: {error}") from None
            return str(aside)
        return ""

    async def write(self, witnessed: Witnessed) -> None:
        """Keep `witnessed` unless a newer one is kept; it is on disk once this returns."""
        async with self._lock:
            newest = self._newest or await self.read()
            if newest is not None and (newest.generation, newest.version) > (witnessed.generation, witnessed.version):
                return
            await asyncio.to_thread(_replace, self._path, msgspec.json.encode(witnessed))
            self._newest = witnessed


def _replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`, whole or not at all, also over a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
