# ruff: noqa: INP001  (a script beside what it indexes, not a package)
"""Makes the index of decision records in README.md, or with --check tells whether it is current.

Run `python docs/adr/index.py` after adding a record.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- index: made by index.py -->\n", "<!-- /index -->\n"
STATUSES = re.compile(r"proposed|accepted|replaced by \d{4}")


def main() -> int:
    """Write or check the index; return the exit code."""
    readme = HERE / "README.md"
    text = readme.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    current = before + BEGIN + index() + END + after
    if "--check" in sys.argv[1:]:
        if current != text:
            sys.stderr.write("docs/adr/README.md is not current; run: python docs/adr/index.py\n")
            return 1
    else:
        readme.write_text(current)
    return 0


def index() -> str:
    """Return the index table: one row for each record, in order."""
    rows = ["| record | status | date |", "|---|---|---|"]
    seen: set[str] = set()
    for path in sorted(HERE.glob("[0-9]*.md")):
        number = path.name[:4]
        if number == "0000":
            continue  # the template
        if number in seen:
            sys.exit(f"{path.name}:1: two records have the number {number}; give the later one the next free number")
        seen.add(number)
        title, status, date = read(path, number)
        rows.append(f"| [{title}]({path.name}) | {status} | {date} |")
    return "\n".join(rows) + "\n"


def read(path: Path, number: str) -> tuple[str, str, str]:
    """Return (title, status, date) of a record; ends the script if it breaks the form."""
    text = path.read_text()
    title = re.match(rf"# ({number}\. .+)\n", text)
    fields = dict(re.findall(r"^\| (date|status) \| (.+?) \|$", text, re.MULTILINE))
    if title is None:
        sys.exit(f"{path.name}:1: must begin with '# {number}. Title', the number of its name")
    if not STATUSES.fullmatch(fields.get("status", "")) or not re.fullmatch(r"\d{4}-\d\d-\d\d", fields.get("date", "")):
        sys.exit(f"{path.name}:3: needs a date (YYYY-MM-DD) and a status (proposed, accepted, replaced by NNNN)")
    return title[1], fields["status"], fields["date"]


if __name__ == "__main__":
    sys.exit(main())
