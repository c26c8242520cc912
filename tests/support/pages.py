"""The blocks of a page of the docs: files that it shows and commands that it runs, machine by machine."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the page shows: its first line is `# <machine>:<path>`."""

    machine: str
    path: str
    text: str


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """Commands that the page runs: their first line is `# on <machine>`, or `# on <machine>, kept running`."""

    machine: str
    kept: bool
    lines: tuple[str, ...]


def blocks(page: Path) -> Iterator[File | Commands]:
    """Yield the blocks of `page` that say where they belong, in order."""
    for _, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        head, _, rest = text.partition("\n")
        if found := re.fullmatch(r"# (\w+):(/\S+)", head):
            yield File(machine=found[1], path=found[2], text=rest)
        elif found := re.fullmatch(r"# on (\w+)(, kept running)?", head):
            lines = tuple(line for line in rest.splitlines() if line and not line.startswith("#"))
            yield Commands(machine=found[1], kept=bool(found[2]), lines=lines)
