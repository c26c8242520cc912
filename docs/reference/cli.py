# ruff: noqa: INP001  (a script beside what it makes, not a package)
"""Makes cli.md from the parser itself, or with --check tells whether it is current.

Run `.venv/bin/python docs/reference/cli.py` after changing a command or a flag.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from services.cli.main import teach_engine
from services.cli.parser import ABOUT, EPILOG, build_parser, subparsers_of
from services.config_file import environment_names

PAGE = Path(__file__).with_suffix(".md")


def main() -> int:
    """Write or check the page; return the exit code."""
    made = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != made:
            sys.stderr.write("docs/reference/cli.md is not current; run: .venv/bin/python docs/reference/cli.py\n")
            return 1
    else:
        PAGE.write_text(made)
    return 0


def page() -> str:
    """Return the whole page."""
    parser = build_parser()
    teach_engine(parser)
    parts = [
        "# Command line\n\nMade by `docs/reference/cli.py` from the parser; `leaseway COMMAND --help` says the same.\n"
    ]
    parts += [f"{ABOUT}\n\n```text\n{EPILOG}\n```\n"]
    parts += [section(words, command) for words, command in commands(parser, ("leaseway",))]
    variables = "\n".join(f"- `{name}`" for name in environment_names())
    parts += [f"## Environment\n\n{variables}\n"]
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield (command line, parser) of every command that does something, in order of statement."""
    below = subparsers_of(parser)
    if not below:
        yield " ".join(words), parser
    for name, deeper in below.items():
        yield from commands(deeper, (*words, name))


def section(words: str, parser: argparse.ArgumentParser) -> str:
    """Return the section of one command."""
    visible = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]  # noqa: SLF001
    places = "".join(
        f" [{action.metavar}]" if action.nargs == "?" else f" {action.metavar}"
        for action in visible
        if not action.option_strings
    )
    lines = [f"## {words}\n\n{parser.description}\n\n```text\n{words}{places} [flags]\n```\n"]
    if visible:
        lines += ["| argument | meaning |\n|---|---|\n" + "".join(row(action) for action in visible)]
    if parser.epilog:
        lines += [f"```text\n{parser.epilog}\n```\n"]
    return "\n".join(lines)


def row(action: argparse.Action) -> str:
    """Return one argument as a row."""
    name = ", ".join(action.option_strings) or str(action.metavar)
    value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    about = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")
    return f"| `{(name + value).replace('|', chr(92) + '|')}` | {about} |\n"


if __name__ == "__main__":
    sys.exit(main())
