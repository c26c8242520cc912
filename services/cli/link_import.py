"""`leaseway links import`: symmetric routing groups as links, all of them or none."""

import argparse
import asyncio
import tomllib
from pathlib import Path

import msgspec

from domain.catalogue.groups import Groups, Import, Planned, SameNode, plan_import
from domain.errors import BadConfigError, BadLinkError
from services.cli.desk import desk_of
from services.cli.reach import here
from services.cli.served import catalogue_if_known
from services.cli.show import Output, note
from services.lifecycle import EXIT_OK
from services.texts.plain import Row

_BYTES_MAX = 1 << 20
_COLUMNS = {
    "owner": "owner", "owner_model": "its model", "helper": "helper", "helper_model": "its model ",
    "restore_after_borrow": "loads back", "outcome": "outcome", "why": "why",
}  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    """Make the links and print one row for each, and for each pair that is none."""
    groups = read_groups(parsed.file)
    out, place = Output(as_json=parsed.json), here(parsed)
    catalogue = asyncio.run(catalogue_if_known(place))
    with desk_of(place) as desk:
        standing = {link.link: link for link in desk.links()}
        plan = plan_import(groups.groups, standing, catalogue, different_weights=parsed.different_weights)
        rows = [_same_row(pair) for pair in plan.same_node] + [_row(planned) for planned in plan.links]
        out.rows("Links of groups", rows, _COLUMNS, none="no group has two members")
        if plan.refused and not parsed.skip_ineligible:
            none = "none would be made" if parsed.dry_run else "none is made"
            raise BadLinkError(
                f"{parsed.file}: {len(plan.refused)} of {len(plan.links)} links may not be, so {none}: mend what the rows "
                "above say of each that is refused (or take it out of its group), or make the others with --skip-ineligible"
            )
        if not parsed.dry_run:
            desk.add_links(plan.commands)
    note(_told(plan, dry_run=parsed.dry_run))
    return EXIT_OK


def read_groups(path: Path) -> Groups:
    """Return the groups of a file, TOML or (ending in .json) JSON.

    Raises:
        BadConfigError: it cannot be read, or is something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX + 1)
        if len(text) > _BYTES_MAX:
            raise BadConfigError(f"{path}: must have at most {_BYTES_MAX} bytes")
        said = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text.decode())
        return msgspec.convert(said, Groups)
    except OSError as error:
        raise BadConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise BadConfigError(
            f"{path}: is no file of groups: {error}; `leaseway links import --help` shows the form of one"
        ) from None
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfigError(f"{path}: is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from None


def _row(planned: Planned) -> Row:
    command = planned.command
    return {
        "owner": command.owner,
        "owner_model": command.owner_model,
        "helper": command.helper,
        "helper_model": command.helper_model,
        "load_if_unloaded": command.load_if_unloaded,
        "restore_after_borrow": command.restore_after_borrow,
        "outcome": planned.outcome,
        "why": planned.why,
    }


def _same_row(pair: SameNode) -> Row:
    return {
        "owner": pair.node,
        "owner_model": pair.model,
        "helper": pair.node,
        "helper_model": pair.other,
        "outcome": "left_out",
        "why": "both run on one node, which lends to other nodes only",
    }


def _told(plan: Import, *, dry_run: bool) -> str:
    counts = [sum(planned.outcome == outcome for planned in plan.links) for outcome in ("made", "changed", "stands")]
    made = "would be made, {} changed" if dry_run else "made, {} changed"
    text = f"links: {counts[0]} {made.format(counts[1])}, {counts[2]} stand so already"
    return text + (f", {len(plan.refused)} refused" if plan.refused else "")
