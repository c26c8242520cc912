"""The examples of docs/how-to/subscribe.md, as they stand there."""

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "subscribe.md"
_SCRIPT: Final = re.compile(r"^```python name=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONSOLE: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(name: str, folder: Path) -> Path:
    """Write the script `name` of the page into `folder` and return its path."""
    text = dict(_SCRIPT.findall(PAGE.read_text()))[name]
    path = folder / name
    path.write_text(text)
    return path


def lines_of(name: str) -> int:
    """Return how many lines of the script say something."""
    return len([line for line in dict(_SCRIPT.findall(PAGE.read_text()))[name].splitlines() if line.strip()])


def commands(word: str) -> list[str]:
    """Return the page's command lines that begin with `word`."""
    lines = [line for block in _CONSOLE.findall(PAGE.read_text()) for line in block.splitlines()]
    return [line for line in lines if line.startswith(word)]


def toml() -> str:
    """Return the page's configuration of a webhook."""
    [text] = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)
