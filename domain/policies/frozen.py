"""The frozen copies, oldest first: (module of the state, module of the step) of each. `freeze_policy.py` adds a line."""

from typing import Any, Final

FROZEN: Final[tuple[tuple[Any, Any], ...]] = ()
