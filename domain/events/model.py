"""Facts about what a node's engine holds."""

from domain.events.base import EventBody
from domain.ids import ModelId


class LoadStarted(EventBody, frozen=True, kw_only=True, tag="model.load_started"):
    """The engine begins to load a model."""

    model: ModelId
    cause: str
    """own, borrowed, restore, guardian or operator."""


class Loaded(EventBody, frozen=True, kw_only=True, tag="model.loaded"):
    """A model is ready; every successful load is cost data."""

    model: ModelId
    load_us: int
    cause: str
    displaced: ModelId | None = None


class LoadFailed(EventBody, frozen=True, kw_only=True, tag="model.load_failed"):
    """A load ended without a ready model, or a ready engine is gone."""

    model: ModelId
    cause: str
    reason: str


class Unloaded(EventBody, frozen=True, kw_only=True, tag="model.unloaded"):
    """A model left the engine."""

    model: ModelId
    cause: str


class RestoreScheduled(EventBody, frozen=True, kw_only=True, tag="model.restore_scheduled"):
    """The displaced model will be loaded back after a quiet time."""

    model: ModelId
    delay_us: int


class Restored(EventBody, frozen=True, kw_only=True, tag="model.restored"):
    """The displaced model is back."""

    model: ModelId
    load_us: int


class RestoreCancelled(EventBody, frozen=True, kw_only=True, tag="model.restore_cancelled"):
    """What borrowed work drove out is not owed any more: the node's own work came first, or it is back another way."""

    model: ModelId
    reason: str


ModelFact = LoadStarted | Loaded | LoadFailed | Unloaded | RestoreScheduled | Restored | RestoreCancelled
"""Every fact about an engine's models."""
