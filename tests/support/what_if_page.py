"""The commands of docs/how-to/what-if.md with what they print: `python -m tests.support.what_if_page` writes the outputs anew."""

import asyncio
import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from adapters.log import bundle
from services.cli.main import main as leaseway
from tests.support.history import CLUSTER
from tests.support.stored_scenario import two_bursts
from tests.support.tidy import ROOT

PAGE: Final = ROOT / "docs" / "how-to" / "what-if.md"
_SHOWN: Final = re.compile(r"```bash\nleaseway (audit what-if [^\n]+)\n```\n\n```text\n(.*?)```\n", re.DOTALL)


def shown() -> list[tuple[str, str]]:
    """Return (command, output) of the page, without the program's name."""
    return [(found[1], found[2]) for found in _SHOWN.finditer(PAGE.read_text())]


@contextlib.contextmanager
def beside_a_copy(folder: Path) -> Iterator[None]:
    """Be in a folder that holds the page's `history.zip`, and no data directory."""
    asyncio.run(bundle.export(two_bursts(), CLUSTER, folder / "history.zip"))
    with contextlib.chdir(folder):
        yield


def output_of(command: str) -> str:
    """Return what a command of the page prints, here."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = leaseway([*command.split(), "--data", "data"])
    assert code == 0, f"leaseway {command}: exit code {code}"
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def main() -> None:
    """Write the page anew."""
    with tempfile.TemporaryDirectory() as folder, beside_a_copy(Path(folder)):
        text = _SHOWN.sub(lambda found: _block(found[1]), PAGE.read_text())
    PAGE.write_text(text)


def _block(command: str) -> str:
    return f"```bash\nleaseway {command}\n```\n\n```text\n{output_of(command)}```\n"


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    main()
