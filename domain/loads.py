"""What loads of the models that share a runtime took and how often they failed: medians, and when to try again."""

from collections import deque

from domain.ids import ModelId

_SAMPLES = 16
_RETRY_US, _RETRY_US_MAX = 1_000_000, 30_000_000


class LoadBook:
    """Measured loads by model. Integers only."""

    def __init__(self) -> None:
        self._took: dict[ModelId, deque[int]] = {}
        self._failures: dict[ModelId, int] = {}
        self._retry_us: dict[ModelId, int] = {}

    def succeeded(self, model: ModelId, load_us: int) -> None:
        """Note a load that ended with a ready model."""
        self._took.setdefault(model, deque(maxlen=_SAMPLES)).append(load_us)
        self._failures.pop(model, None)
        self._retry_us.pop(model, None)

    def failed(self, model: ModelId, now_us: int) -> int:
        """Note a load that failed; return how many did in a row. The next try is 1 s later, doubling to 30 s."""
        failures = self._failures[model] = self._failures.get(model, 0) + 1
        self._retry_us[model] = now_us + min(_RETRY_US << min(failures - 1, 8), _RETRY_US_MAX)
        return failures

    def died(self, model: ModelId, now_us: int) -> None:
        """Note that a ready engine is gone: the next try is 1 s later."""
        self._retry_us[model] = now_us + _RETRY_US

    def came_up(self, model: ModelId) -> None:
        """Note that the engine is ready without a load of ours."""
        self._retry_us.pop(model, None)

    def pass_time(self, now_us: int) -> None:
        """Forget the waits that are over."""
        if self._retry_us:
            self._retry_us = {model: due_us for model, due_us in self._retry_us.items() if due_us > now_us}

    def may_try(self, model: ModelId) -> bool:
        """Tell whether `model` may be loaded now, as far as earlier failures go."""
        return model not in self._retry_us

    def next_try_us(self) -> int | None:
        """Return when the next model may be tried again; None if none waits."""
        return min(self._retry_us.values(), default=None)

    def median_us(self, model: ModelId | None) -> int:
        """Return the median (the lower of two) of the last 16 loads; 0 if none was measured."""
        took = sorted(self._took.get(model, ())) if model is not None else []
        return took[(len(took) - 1) // 2] if took else 0
