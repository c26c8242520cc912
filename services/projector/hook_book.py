"""Where each webhook stands, kept in the data directory: one small file a hook, written whole or not at all."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from adapters.log.public import PUBLIC, Place

_LOG: Final = logging.getLogger("leaseway.webhooks")
FOLDER: Final = "webhooks"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a webhook is."""

    place: Place
    """Everything up to here was taken by the endpoint, or is not wanted by it."""
    delivered: int = 0
    """Events that the endpoint has taken, ever."""
    created_ns: tuple[int, ...] = ()
    """When the streams were made of which `place` speaks, in the order of PUBLIC; empty if that was not noted."""

    def among(self, created_ns: tuple[int, ...]) -> "Standing":
        """Return this standing among streams that were made at `created_ns`: of one that was made anew nothing was taken."""
        place = self.place
        for name, noted, now in zip(PUBLIC, self.created_ns, created_ns, strict=False):
            if noted != now:
                place = place.at(name, 0)
        return msgspec.structs.replace(self, place=place, created_ns=created_ns)


class HookBook:
    """The standing of one webhook."""

    def __init__(self, data: Path, name: str) -> None:
        self.path = data / FOLDER / f"{name}.json"

    def read(self) -> Standing | None:
        """Return what is kept; None if nothing is. Of what cannot be read it is only known that there was a place.

        Then the hook begins with the oldest event: its endpoint may get events again, and misses none.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Standing)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:
            _LOG.error("webhook_place_lost", extra={"file": str(self.path)})
            return Standing(place=Place())

    def write(self, standing: Standing) -> None:
        """Keep `standing`; it survives a kill of this process, and a power cut may bring an older one back."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(standing))
        draft.replace(self.path)
