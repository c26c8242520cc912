"""`python -m tests.mutations --n 1000`: change stored history in every way and count what is found."""

import argparse
import asyncio
import sys

from tests.mutations.campaign import campaign, line, table


def main() -> int:
    """Run it; 1 if a change was not found."""
    parser = argparse.ArgumentParser(prog="tests.mutations", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="changes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first (default: %(default)s)")
    parser.add_argument("--real", type=float, default=0.5, help="share on a real server's store (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="at once (default: %(default)s)")
    asked = parser.parse_args()

    def tell(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    outcomes = asyncio.run(campaign(asked.n, share_real=asked.real, seed=asked.seed, jobs=asked.jobs, tell=tell))
    for row in table(outcomes):
        tell(row)
    tell(f"mutations: {line(outcomes)}")
    return 0 if all(each.found for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
