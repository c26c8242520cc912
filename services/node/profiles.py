"""Remembers what the node's models were measured at over a restart: the master's prices stay, so must the unit of work."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from adapters.profiles import FileProfiles, KeptProfile
from domain.catalogue.tokens import TokenProfile
from domain.ids import ModelId
from services.node.own_work import Served

_LOG: Final = logging.getLogger("leaseway.node")
_KEEP_S: Final = 30.0


class Profiles:
    """Reads the profiles at the start, and writes those that have changed from time to time."""

    def __init__(self, kept: FileProfiles, models: Mapping[ModelId, Served]) -> None:
        """Nothing is read or written yet."""
        self._kept, self._models = kept, models
        self._written = 0
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Let each model know what was measured of it, if it is the same model still; a file that is unreadable is none."""
        try:
            found = await self._kept.read()
        except (ValueError, OSError) as error:
            _LOG.warning("profiles_unreadable", extra={"why": str(error)[:200]})
            return
        for model, served in self._models.items():
            profile, stated = found.get(model), served.serving.model
            if profile is not None and (profile.local_id, profile.hash) == (stated.local_id, stated.hash):
                served.sizes.remember(TokenProfile(ratio_logs=profile.ratio_logs, answers=profile.answers))

    async def run(self) -> None:
        """Keep what is measured until cancelled."""
        while True:
            await asyncio.sleep(_KEEP_S)
            await self.keep()

    async def keep(self) -> None:
        """Write what was measured, if something was since it was last written."""
        async with self._lock:
            learned = sum(served.sizes.learned for served in self._models.values())
            if learned == self._written:
                return
            profiles = {model: _kept(served) for model, served in self._models.items()}
            try:
                await self._kept.write(profiles)
            except OSError as error:
                _LOG.warning("profiles_not_kept", extra={"why": str(error)[:200]})
                return
            self._written = learned


def _kept(served: Served) -> KeptProfile:
    model, profile = served.serving.model, served.sizes.profile
    return KeptProfile(local_id=model.local_id, hash=model.hash, ratio_logs=profile.ratio_logs, answers=profile.answers)
