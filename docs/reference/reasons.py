# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes docs/reference/reasons.md from the table of codes: `python docs/reference/reasons.py [--check]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from domain.master.reasons import REASONS  # the project's root has to be on the path first

HEAD = """# Why a helper got a lease, or did not

Every plan of the master has a verdict for each candidate: `granted`, or `skipped` with one code. Of several that apply, the
one that stands first here is shown. The numbers beside it (first answer, time per job, switch, quota, gain) are in
microseconds; how they come about is in [why a lease is priced as it is](../discussions/pricing.md). This page is made from
`domain/master/reasons.py`.

| code | meaning |
|---|---|
"""


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"| `{code}` | {sentence} |\n" for code, sentence in REASONS.items())


def main() -> int:
    """Write the page, or with --check tell whether it is current."""
    path = Path(__file__).with_suffix(".md")
    if "--check" in sys.argv:
        return int(path.read_text() != page())
    path.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
