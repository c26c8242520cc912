# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes docs/reference/reasons.md from the table of codes: `python docs/reference/reasons.py [--check]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from domain.master.reasons import OUTCOMES, REASONS, TRIGGERS  # the project's root has to be on the path first
from projections import decision_log, health, loads
from projections.codes import CODES

HEAD = """# Why a helper got a lease, or did not

Every plan of the master has a verdict for each candidate: an outcome, and a code that says why. The numbers beside it (first
answer, ready, time per job, switch, way back, idle, quota, gain) are in microseconds; how they come about is in
[why a lease is priced as it is](../discussions/pricing.md). This page is made from `domain/master/reasons.py` and
`projections/codes.py`; a test lets each code, outcome and trigger of a plan come out of a history.

"""
CODES_HEAD = """
## Codes of a plan
Of several that apply, the one that stands first here is shown.

"""
TRIGGERS_HEAD = """
## Triggers of a plan
What made the master look at an owner. Of several since its last plan the strongest is shown: the owner's own queue and timers
before links and settings, these before what other nodes did.

"""

KINDS_HEAD = """
## Kinds of rows

`leaseway decisions` shows the decision log, `leaseway loads` what nodes loaded. Every column is in [tables](tables.md).
A plan row has outcome `left_out` where it stands for candidates beyond the first 16, by code, and `none` where a plan had
no candidate. That history is in doubt is in no row: a master in safe mode adds nothing to it. `leaseway status` says it, and
so does the master's log.
"""
CODES_OF_ROWS = """
## Reasons in other rows than plans
A lease is `cleared`, or `changed` to fewer slots, for the code of the plan that did it.

| kind | code | meaning |
|---|---|---|
"""
KINDS = {"Decisions": decision_log.KINDS, "Loads": loads.KINDS, "Health": health.KINDS}


def page() -> str:
    """Return the page."""
    return (
        HEAD
        + "## Outcomes of a plan\n\n"
        + _words("outcome", OUTCOMES)
        + CODES_HEAD
        + _words("code", REASONS)
        + TRIGGERS_HEAD
        + _words("trigger", TRIGGERS)
        + kinds_of_rows()
    )


def _words(name: str, table: dict[str, str]) -> str:
    return f"| {name} | meaning |\n|---|---|\n" + "".join(f"| `{word}` | {about} |\n" for word, about in table.items())


def kinds_of_rows() -> str:
    """Return what each kind of row says, and what its reasons mean where they are no plan's."""
    kinds = "".join(_table(about, found) for about, found in KINDS.items())
    codes = "".join(
        f"| {kind} | `{code}` | {said} |\n" for kind, found in CODES.items() for code, said in found.items()
    )
    return f"{KINDS_HEAD}{kinds}{CODES_OF_ROWS}{codes}"


def _table(about: str, kinds: dict[str, str]) -> str:
    rows = "".join(f"| `{kind}` | {said} |\n" for kind, said in kinds.items())
    return f"\n### {about}\n\n| kind | who says what |\n|---|---|\n{rows}"


def main() -> int:
    """Write the page, or with --check tell whether it is current."""
    path = Path(__file__).with_suffix(".md")
    if "--check" in sys.argv:
        return int(path.read_text() != page())
    path.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
