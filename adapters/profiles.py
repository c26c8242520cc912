"""Keeps what a node measured of its models' traffic in a file of its data directory, so that a new process need not guess again.

Its loss is no harm: the node guesses then, as it did at its very first start.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from domain.catalogue.tokens import TOKENS_MAX, WINDOW
from domain.ids import ModelId

_LN_MAX = 32 << 32
"""No logarithm of bytes a token is farther from nothing (domain.catalogue.tokens.SIZE_MAX)."""
_Log = Annotated[int, msgspec.Meta(ge=-_LN_MAX, le=_LN_MAX)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]


class KeptProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A model's token profile (domain.catalogue.tokens), and of which model it is."""

    local_id: str
    hash: str
    """Of its weights, as stated; empty if it is not."""
    ratio_logs: Annotated[list[_Log], msgspec.Meta(max_length=WINDOW)]
    answers: Annotated[list[_Tokens], msgspec.Meta(max_length=WINDOW)]


_DECODER = msgspec.json.Decoder(dict[str, KeptProfile])


class FileProfiles:
    """The profiles of one node's models in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> dict[str, KeptProfile]:
        """Return what is kept, by the models' ids; nothing if nothing is.

        Raises:
            ValueError: the file holds something else.
            OSError: it cannot be read.
        """
        try:
            return _DECODER.decode(await asyncio.to_thread(self._path.read_bytes))
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"profiles {self._path}: must be what a node measured, is not: {error}") from None

    async def write(self, profiles: Mapping[ModelId, KeptProfile]) -> None:
        """Keep `profiles` in place of what was kept, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        await asyncio.to_thread(self._replace, msgspec.json.encode(profiles))

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        draft.write_bytes(content)
        draft.replace(self._path)
