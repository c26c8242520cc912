"""`python -m tests.mutations --n 1000`: change stored history in every way until a thousand changes changed something."""

import argparse
import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import msgspec

from tests.mutations.attackers import attempt_all, backups
from tests.mutations.campaign import FEED_KINDS, FEED_SHARE, KINDS, Campaign, Run
from tests.mutations.living import Store, served, server_on
from tests.mutations.outcomes import Outcome, line, table


def main() -> int:
    """Run it; 1 if a change was not found."""
    parser = argparse.ArgumentParser(prog="tests.mutations", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="changes that count (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the dice (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="at once (default: %(default)s)")
    parser.add_argument("--kind", action="append", default=[], help="these kinds alone")
    parser.add_argument("--journal", type=Path, help="a file of outcomes: what is in it already is not done again")
    return asyncio.run(_run(parser.parse_args()))


def tell(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _run(asked: argparse.Namespace) -> int:
    began = monotonic()
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        store = Store(Path(name) / "life")
        tell("living through the history once")
        await store.make()
        await backups(store)
        tell(", ".join(f"{stream} {len(held)}" for stream, held in store.served.items()))
        touched = await _attempts(store)
        async with Run(store, Path(name)).with_archive() as run:
            outcomes = await _changes(run, asked)
    for row in table(outcomes):
        tell(row)
    history, feed = [each for each in outcomes if not each.of_feed], [each for each in outcomes if each.of_feed]
    tell(f"mutations of the feed: {line(feed)}")
    tell(f"mutations of history: {line(history)}; {int(monotonic() - began)} s")
    missed = [each for each in outcomes if each.counts and not each.found]
    short = len([each for each in history if each.counts]) < asked.n
    return 1 if missed or touched or short else 0


async def _attempts(store: Store) -> bool:
    """Let every member try what it may not; tell whether anything was changed by it."""
    async with server_on(store.data) as cluster:
        tried = await attempt_all(cluster, store)
        touched = await served(cluster) != store.served
    told = ", ".join(f"{member} {count}" for member, count in tried.items())
    tell(f"attempts through the API without the right: {told}: {'SOMETHING CHANGED' if touched else 'nothing changed'}")
    return touched


async def _changes(run: Run, asked: argparse.Namespace) -> list[Outcome]:
    journal = asked.journal.open("ab") if asked.journal is not None else None

    def keep(made: Outcome) -> None:
        if journal is not None:
            journal.write(msgspec.json.encode(made) + b"\n")
            journal.flush()

    campaign = Campaign(run, seed=asked.seed, tell=tell, keep=keep)
    for done in _done(asked.journal):
        campaign.take(done, kept_before=True)
    chosen = [kind for kind in KINDS if not asked.kind or kind.name in asked.kind]
    of_feed = [kind for kind in FEED_KINDS if not asked.kind or kind.name in asked.kind]
    try:
        if chosen:
            await campaign.until_counted(chosen, asked.n, jobs=asked.jobs)
        if of_feed:
            await campaign.until_counted(of_feed, max(1, asked.n // FEED_SHARE), jobs=asked.jobs)
    finally:
        if journal is not None:
            journal.close()
    return campaign.outcomes


def _done(journal: Path | None) -> list[Outcome]:
    if journal is None or not journal.is_file():
        return []
    *lines, _ = journal.read_bytes().split(b"\n")
    return [msgspec.json.decode(each, type=Outcome) for each in lines]


if __name__ == "__main__":
    sys.exit(main())
