"""`leaseway audit what-if`: what other settings, links or rules would have decided and brought, from stored history."""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from importlib.metadata import version

import msgspec
from rich.console import Console
from rich.table import Table

from domain.control.links import AddLink, decide
from domain.errors import BadConfigError, BadLinkError, LeasewayError
from domain.events import LinkAdded
from domain.ids import ModelId, NodeId, link_id
from domain.policies import CURRENT
from services.cli.audit import source_of
from services.cli.audit_copies import require_whole
from services.cli.audit_source import opened
from services.cli.moments import end_of
from services.cli.reach import Here, here
from services.cli.settings import changes_of
from services.cli.show import Waiting, note
from services.cli.simulate import check_writable
from services.cli.what_if_history import read
from services.ends import end
from services.lifecycle import EXIT_OK
from services.simulator.drivers import OURS
from services.simulator.model.policies.registry import POLICIES
from services.simulator.whatif import report
from services.simulator.whatif.answer import Answer, what_if
from services.simulator.whatif.changes import FLAGS, NONE, Changes
from services.simulator.whatif.recorded import Recorded
from services.texts.plain import printable

_PIPED_WIDTH = 130


def run(parsed: argparse.Namespace) -> int:
    """Read the range, ask, print the answer, write the report."""
    # what is wrong with the words is told before anything is read
    changes = changes_asked(parsed)
    check_writable(parsed.report)
    waiting = Waiting()
    try:
        recorded = asyncio.run(_recorded(here(parsed), parsed, waiting))
        runs = iter(range(1, 1 << 30))
        answer = what_if(recorded, changes, step=lambda: waiting(f"running on: {next(runs)}"))
    finally:
        waiting.done()
    if parsed.json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        _print(answer)
    if parsed.report is not None:
        parsed.report.write_text(report.what_if_report(answer, version("leaseway")))
        note(f"report: {parsed.report}")
    return EXIT_OK


# -- what is asked


def changes_asked(parsed: argparse.Namespace) -> Changes:
    """Return the changes that the command line asks for.

    Raises:
        BadLinkError: a link is not written as one, or may not be.
        BadSettingError: a setting is unknown or out of its range.
        BadConfigError: there is no such policy.
    """
    ours = parsed.policy in {"", NONE, OURS, CURRENT.name}
    if not ours and parsed.policy not in POLICIES:
        raise BadConfigError(f"--policy {parsed.policy!r}: there are {', '.join(POLICIES)}, {OURS} ({CURRENT.name})")
    if parsed.policy == NONE and parsed.links:
        raise BadConfigError(f"--policy {NONE} lends over no link, so that --link would say nothing")
    return Changes(
        settings=changes_of(parsed.settings),
        added=tuple(_added(text) for text in parsed.links),
        removed=tuple(_named(text) for text in parsed.without),
        lends=parsed.policy != NONE,
        policy="" if ours else parsed.policy,
    )


def _added(text: str) -> LinkAdded:
    words, flags = text, set[str]()
    while (last := words.rpartition(","))[1] and last[2].replace("-", "_") in FLAGS:
        words = last[0]
        flags.add(last[2].replace("-", "_"))
    (owner, owner_model), (helper, helper_model) = _ends(words, "--link")
    command = AddLink(
        owner=owner,
        owner_model=owner_model,
        helper=helper,
        helper_model=helper_model,
        load_if_unloaded="load_if_unloaded" in flags,
        restore_after_borrow="restore_after_borrow" in flags,
        different_weights="different_weights" in flags,
    )
    (event,) = decide(command, None)
    assert isinstance(event, LinkAdded), f"link {text}: a new link is added"
    return event


def _named(text: str) -> LinkAdded:
    owner, helper = _ends(text, "--without-link")
    return LinkAdded(
        link=link_id(*owner, *helper), owner=owner[0], owner_model=owner[1], helper=helper[0], helper_model=helper[1]
    )


def _ends(text: str, flag: str) -> tuple[tuple[NodeId, ModelId], tuple[NodeId, ModelId]]:
    """Return both ends of OWNER/MODEL=HELPER/MODEL; a model's id may hold `=` itself."""
    found = [*_readings(text)]
    if len(found) != 1:
        rule = "must be OWNER/MODEL=HELPER/MODEL, such as studio/chat=attic/chat"
        raise BadLinkError(f"{flag} {text[:200]!r}: {rule}" + ("; this can be read in several ways" if found else ""))
    return found[0]


def _readings(text: str) -> Iterator[tuple[tuple[NodeId, ModelId], tuple[NodeId, ModelId]]]:
    for place, char in enumerate(text):
        if char == "=":
            try:
                yield end("owner", text[:place]), end("helper", text[place + 1 :])
            except LeasewayError:
                continue


# -- what is read


async def _recorded(place: Here, parsed: argparse.Namespace, waiting: Waiting) -> Recorded:
    source = source_of(place, parsed.against, parsed.copy)
    async with opened(source) as at:
        if at.copy is not None:
            waiting("what-if: checking the copy")
            await asyncio.to_thread(require_whole, at.copy)
        asked, end_ns = (parsed.since, parsed.until), await end_of(at.streams, copied=at.copy is not None)
        return await read(
            at.streams, source.reader(), source.cluster, *asked, waiting, find=at.find, end_us=end_ns // 1000
        )


# -- what is said


def _print(answer: Answer) -> None:
    # names come from outside: nothing in them is a style, or obeyed by a terminal
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)

    def say(text: str) -> None:
        console.print(printable(text))

    say(report.heading(answer))
    say("")
    for line in report.decided(answer):
        say(line)
    if answer.redecided.differing:
        say("")
        _table(console, report.COUNTED, report.counted(answer))
        say(report.LIMIT)
    say("")
    _table(console, report.HEADINGS, report.rows(answer))
    say("")
    for remark in report.remarks(answer):
        say(f"- {remark}")


def _table(console: Console, headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> None:
    table = Table(header_style="bold", box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place > 1 else "left", no_wrap=place < 2)
    for row in rows:
        table.add_row(*map(printable, row))
    console.print(table)
