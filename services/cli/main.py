"""The entry point `leaseway`: parses, hands over to the command's module, and turns errors into one line and an exit code."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from domain.spelling import did_you_mean
from services.cli.parser import BadUsageError, build_parser, flags_of, subparsers_of
from services.lifecycle import EXIT_CALLER, EXIT_OK, explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` ask for and return its exit code."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except BadUsageError as error:
        sys.stderr.write(f"leaseway: {error}\n")
        return EXIT_CALLER
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `leaseway decisions | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    if arguments[:1] == ["engine"]:
        teach_engine(parser)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        of = getattr(parsed, "parser", parser)
        perhaps = did_you_mean(unknown[0].partition("=")[0], flags_of(of)) if unknown[0].startswith("--") else ""
        of.error(f"unknown argument {unknown[0]!r}{perhaps}")
    if parsed.version:
        parsed.module, parsed.command = "version", "version"
    if parsed.command is None:
        parser.print_help()
        return EXIT_OK
    try:
        code: int = importlib.import_module(f"services.cli.{parsed.module}").run(parsed)
    except (BadUsageError, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001  # a process' outermost point: one line, one exit code
        return explain(_name_of(parsed), error)
    return code


def _name_of(parsed: argparse.Namespace) -> str:
    deeper = getattr(parsed, f"{parsed.command}_command", None)
    return f"{parsed.command} {deeper}" if deeper else str(parsed.command)


def teach_engine(parser: argparse.ArgumentParser) -> None:
    """Add the launcher's own flags, which need a module that other commands do without."""
    importlib.import_module("adapters.engines.llama_server").add_arguments(subparsers_of(parser)["engine"])


if __name__ == "__main__":
    sys.exit(main())
