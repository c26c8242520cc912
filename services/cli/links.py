"""`leaseway links add | remove | list`: who may lend to whom."""

import argparse
import asyncio
from typing import Any

import msgspec

from domain.catalogue.eligibility import Catalogue, Weights, weights
from domain.errors import UnreachableError
from domain.events.control import LinkAdded
from domain.ids import ModelId, NodeId
from services.cli.desk import desk_of
from services.cli.reach import Here, here, sure_state
from services.cli.served import UNKNOWN_WEIGHTS, catalogue_if_known, label
from services.cli.show import Output, note
from services.ends import end
from services.lifecycle import EXIT_OK
from services.texts.plain import Row

_COLUMNS = {
    "owner": "owner", "owner_model": "its model", "helper": "helper", "helper_model": "its model ",
    "load_if_unloaded": "may load", "restore_after_borrow": "loads back", "different_weights": "different weights",
}  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked and print the link or the links."""
    out = Output(as_json=parsed.json)
    if parsed.action == "list":
        _list(here(parsed), out)
        return EXIT_OK
    owner, helper = end("owner", parsed.owner), end("helper", parsed.helper)
    if parsed.action == "add":
        _add(here(parsed), out, owner, helper, parsed)
    else:
        with desk_of(here(parsed)) as desk:
            desk.remove_link(*owner, *helper)
        out.say(f"link {_told(owner, helper)} is removed", {"removed": True, "owner": owner[0], "helper": helper[0]})
    return EXIT_OK


def _told(owner: tuple[str, str], helper: tuple[str, str]) -> str:
    return f"{'/'.join(owner)} -> {'/'.join(helper)}"


def _add(
    place: Here, out: Output, owner: tuple[NodeId, ModelId], helper: tuple[NodeId, ModelId], parsed: argparse.Namespace
) -> None:
    catalogue = asyncio.run(catalogue_if_known(place))
    with desk_of(place) as desk:
        added = desk.add_link(
            *owner,
            *helper,
            load_if_unloaded=parsed.load_if_unloaded,
            restore_after_borrow=parsed.restore_after_borrow,
            different_weights=parsed.different_weights,
            catalogue=catalogue,
        )
    compared = _compared(catalogue, owner, helper)
    row: dict[str, Any] = {"added": added is not None, "owner": owner[0], "owner_model": owner[1]}
    row |= {"helper": helper[0], "helper_model": helper[1]}
    row |= {"weights": compared, "label": label(compared)}
    done = "is made" if added is not None else "stands so already"
    out.say(f"link {_told(owner, helper)} {done} ({label(compared)})", row)
    if compared == "unknown" and catalogue is not None:
        note(UNKNOWN_WEIGHTS)


def _compared(catalogue: Catalogue | None, owner: tuple[NodeId, ModelId], helper: tuple[NodeId, ModelId]) -> Weights:
    """Return how the weights of the two compare; unknown if nobody could tell what is served."""
    if catalogue is None:
        return "unknown"
    return weights(catalogue[owner[0]][owner[1]], catalogue[helper[0]][helper[1]])


def _list(place: Here, out: Output) -> None:
    """Print the links from the master, or else from NATS, where they are kept."""
    rows: list[Row]
    try:
        rows = asyncio.run(sure_state(place))["links"]
    except UnreachableError as error:
        note(f"{error}\nread from NATS instead, where links are kept")
        with desk_of(place) as desk:
            rows = [_row(link) for link in desk.links()]
    out.rows("Links", rows, _COLUMNS, none="none; make one with `leaseway links add OWNER/MODEL HELPER/MODEL`")


def _row(link: LinkAdded) -> Row:
    row: Row = msgspec.to_builtins(link)
    return {name: value for name, value in row.items() if name != "event"}
