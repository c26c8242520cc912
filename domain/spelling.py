"""What somebody may have meant who misspelt a name."""

import difflib
from collections.abc import Collection


def did_you_mean(got: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `known`; nothing if none is near."""
    near = difflib.get_close_matches(got[:80], [*known], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
