"""Why ClickHouse takes no rows just now, in one word: for /health, for the metric and for the log."""

from typing import Final

from domain.errors import StoreAwayError, StoreError, StoreSlowError, StoreTakenError

CAUSES: Final[dict[str, str]] = {
    "away": "it cannot be reached, or something else answers in its place",
    "slow": "it is reached, and does not answer in time",
    "read_only": "it, its user or a table of it takes no writes",
    "disk_full": "it has no room left on its disk",
    "too_many_parts": "a table has more parts than it merges, or than it may have",
    "memory": "its memory limit is reached",
    "busy": "it runs as many queries as it may",
    "no_keeper": "the keeper of its replicated tables cannot be reached",
    "taken": "another projector writes to it; this one waits until that one has ended",
    "not_allowed": "user or password is wrong, or the user may not do this",
    "no_table": "a table, or the database, is not there",
    "refused": "anything else; the error says it in ClickHouse's words",
}
"""Each with what it means."""

_CODES: Final = {
    "slow": (159, 160, 209, 1019),
    "read_only": (164, 242, 472, 774),
    "disk_full": (243,),
    "too_many_parts": (252,),
    "memory": (173, 241, 777, 778),
    "busy": (202, 364, 700, 745, 749, 762),
    "no_keeper": (225, 244, 999),
    "not_allowed": (192, 193, 194, 291, 497, 516),
    "no_table": (60, 81),
}
_BY_CODE: Final = {code: cause for cause, codes in _CODES.items() for code in codes}
_NO_ROOM: Final = "No space left on device"
"""What the operating system says comes through under several codes."""


def cause_of(error: StoreError) -> str:
    """Return one of CAUSES."""
    if isinstance(error, StoreTakenError):
        return "taken"
    if isinstance(error, StoreSlowError):
        return "slow"
    if isinstance(error, StoreAwayError):
        return "away"
    if _NO_ROOM in str(error):
        return "disk_full"
    return _BY_CODE.get(error.code, "refused")
