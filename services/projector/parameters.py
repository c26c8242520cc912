"""Parameters of a query string: taken one by one, each checked, none left over without a word."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from adapters.clickhouse import queries
from adapters.clickhouse.pages import PAGE_ROWS_MAX, BadQueryError
from adapters.clickhouse.telemetry import POINTS_MAX
from adapters.http.server import Call
from adapters.times import BadMomentError, moment_of
from domain.errors import BadIdError
from domain.ids import model_id, node_id, request_id

ROWS: Final = 100
"""Rows of an answer unless `limit` says otherwise."""
NS_MAX: Final = (1 << 63) - 1
_WORD: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_HEX: Final = re.compile(r"[0-9a-f-]{1,64}")

Parameters = dict[str, str]
"""What is not taken yet, by name."""


def parameters_of(call: Call) -> Parameters:
    """Return the parameters of a call's query string.

    Raises:
        BadQueryError: one is given twice.
    """
    said: Parameters = {}
    for name, value in call.request.rel_url.query.items():
        if name in said:
            raise BadQueryError(name[:80], f"{name[:80]}: must be given once")
        said[name] = value
    return said


def take_asked(said: Parameters, names: tuple[str, ...], kinds: Mapping[str, str]) -> queries.Asked:
    """Take which rows are asked for; `names` are the columns to filter by, `kinds` what the filter `kind` may name.

    Raises:
        BadQueryError: a value breaks its rule.
    """
    checks = CHECKS | {"kind": one_of(tuple(kinds))}
    return queries.Asked(
        filters={name: checks[name](name, said.pop(name)) for name in names if name in said},
        limit=take_number(said, "limit", ROWS, PAGE_ROWS_MAX),
        after=said.pop("after", None),
        since_ns=take_number(said, "since_ns", 0, NS_MAX, least=0),
        until_ns=take_number(said, "until_ns", 0, NS_MAX, least=0),
    )


def take_number(said: Parameters, name: str, default: int, maximum: int, *, least: int = 1) -> int:
    """Take a whole number from `least` to `maximum`.

    Raises:
        BadQueryError: it is none.
    """
    text = said.pop(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= maximum):
        raise BadQueryError(name, f"{name}: must be a whole number from {least} to {maximum}, got {text[:80]!r}")
    return int(text)


def take_time(said: Parameters, name: str, now_ns: int, default_ns: int) -> int:
    """Take a time as people write it, in nanoseconds since the epoch.

    Raises:
        BadQueryError: it is none.
    """
    text = said.pop(name, "")
    if not text:
        return default_ns
    try:
        return min(moment_of(text).stamp_ns(now_ns), NS_MAX)
    except BadMomentError as error:
        raise BadQueryError(name, f"{name}: {error.rule}") from None


def take_switch(said: Parameters, name: str) -> bool:
    """Take true or false; false if it is not given.

    Raises:
        BadQueryError: it is neither.
    """
    text = said.pop(name, "false")
    if text not in {"true", "false"}:
        raise BadQueryError(name, f"{name}: must be true or false, got {text[:80]!r}")
    return text == "true"


def none_left(said: Mapping[str, str]) -> None:
    """Return if every parameter was taken.

    Raises:
        BadQueryError: one was not.
    """
    if said:
        name = min(said)[:80]
        raise BadQueryError(name, f"{name}: is no parameter of this query")


def a_node(name: str, text: str) -> str:
    """Return `text` if it is the id of a node.

    Raises:
        BadQueryError: it is none.
    """
    try:
        return node_id(text)
    except BadIdError as error:
        raise BadQueryError(name, str(error)) from None


def matching(pattern: re.Pattern[str]) -> Callable[[str, str], str]:
    """Return a check for texts that match `pattern`."""

    def check(name: str, text: str) -> str:
        if not pattern.fullmatch(text):
            raise BadQueryError(name, f"{name}: must match {pattern.pattern}, got {text[:80]!r}")
        return text

    return check


def one_of(words: tuple[str, ...]) -> Callable[[str, str], str]:
    """Return a check for the texts in `words`."""

    def check(name: str, text: str) -> str:
        if text not in words:
            raise BadQueryError(name, f"{name}: must be one of {', '.join(words)}; got {text[:80]!r}")
        return text

    return check


CHECKS: Final[dict[str, Callable[[str, str], str]]] = {
    "owner": a_node,
    "helper": a_node,
    "producer": a_node,
    "node": a_node,
    "side": one_of(("master", "owner", "helper")),
    "reason": matching(_WORD),
    "outcome": matching(_WORD),
    "code": matching(_WORD),
    "cause": matching(_WORD),
    "event": matching(_WORD),
    "link": matching(_HEX),
    "lease": matching(_HEX),
    "request": lambda _, text: request_id(text),
    "model": lambda _, text: model_id(text),
}
"""By column, what a caller may ask it to be."""

ABOUT: Final[dict[str, tuple[str, str]]] = {
    "owner": ("a node's id", "rows about this owner"),
    "helper": ("a node's id", "rows about this helper"),
    "node": ("a node's id", "what is about this node, as owner or as helper"),
    "model": ("a model's id", "what is about this model, at the owner or at the helper"),
    "kind": ("a word of [tables](tables.md)", "rows of this kind"),
    "code": ("a code of [reasons](reasons.md)", "rows with this reason"),
    "outcome": ("a word", "rows with this outcome"),
    "request": ("`req_` and 32 hex digits", "rows about this request"),
    "link": ("hex digits", "rows about this link"),
    "lease": ("a lease's id", "rows about this lease"),
    "side": ("master, owner or helper", "rows that this side says"),
    "from": ("a time", "not before it"),
    "to": ("a time", "before it"),
    "step": ("seconds", f"whole minutes; at most {POINTS_MAX} steps in a window"),
    "limit": ("a number", f"rows of an answer, at most {PAGE_ROWS_MAX}"),
    "after": ("`next` of an earlier answer", "what follows it, the oldest first; nothing for the beginning"),
    "folded": ("true or false", "one row for each run of rows that say the same; the newest only, without `after`"),
}
"""By name, what a caller may give and what it does."""
DEFAULTS: Final = {"limit": str(ROWS), "folded": "false"}
"""Defaults by name; what is left out asks for any."""
