"""How every process of Leaseway lives: its log, its signals, its way from an error to one line and an exit code."""

import asyncio
import errno
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TextIO

from adapters.times import utc
from domain.errors import CallerError, LeasewayError, PortInUseError
from services.config import Config

EXIT_OK, EXIT_FAILED, EXIT_CALLER = 0, 1, 2
"""Done; something of ours or of the machine failed (trying again may help); what was asked can never be right."""
LIFELINE: Final = "--supervised"
"""The flag of a supervised process: its standard input is open as long as its supervisor lives, its standard output tells it
when it is ready."""

Ready = Callable[[str], None]
Run = Callable[[Config, Ready, asyncio.Event], Awaitable[None]]

_LOG = logging.getLogger(__name__)
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, event, process, then the fields given as `extra`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        at = utc(int(record.created * 1e9))
        line = {"at": at, "level": record.levelname.lower(), "event": record.getMessage(), "process": self._process}
        line |= _fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_shown, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """The same for a person at a terminal: time, level, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of `record`."""
        at = utc(int(record.created * 1e9))
        fields = " ".join(f"{name}={_shown(value)}" for name, value in _fields(record).items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{at} {record.levelname.lower():<7} {record.getMessage()} {fields}".rstrip() + trace


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _ORDINARY}


def _shown(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def configure_logging(process: str, stream: TextIO | None = None, level: str = "") -> None:
    """Send every log line of this process to `stream` (standard error): JSON, or plain text if a person looks at it.

    Log with the event's name as the message and its ids as fields: `LOG.info("lease_taken", extra={"lease": lease})`.
    """
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(PlainLines() if out.isatty() else JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper() or logging.INFO)
    for chatty in ("asyncio", "aiohttp.access", "nats", "clickhouse_connect"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def run_service(process: str, run: Run, config: Config, *, supervised: bool = False, level: str = "") -> int:
    """Run one process until it ends or is asked to, and return its exit code.

    SIGTERM and SIGINT ask it to drain; a second one ends it at once. When supervised, the end of standard input asks it to
    drain as well: the supervisor is gone.
    """
    configure_logging(process, level=level)
    try:
        return asyncio.run(_until_stopped(process, run, config, supervised=supervised))
    except Exception as error:  # noqa: BLE001  # a process' outermost point: one line, one exit code
        return explain(process, error)


async def _until_stopped(process: str, run: Run, config: Config, *, supervised: bool) -> int:
    stop = asyncio.Event()
    task = asyncio.ensure_future(run(config, lambda url: _say_ready(process, url, supervised=supervised), stop))
    asked = _watch_signals(stop, task)
    if supervised:
        _watch_lifeline(stop)
    try:
        await task
    except asyncio.CancelledError:
        if len(asked) < 2:
            raise
        _LOG.warning("stopped_fast")
        return 128 + asked[-1]
    return EXIT_OK


def _say_ready(process: str, url: str, *, supervised: bool) -> None:
    _LOG.info("ready", extra={"url": url})
    if supervised or not sys.stderr.isatty():
        line = json.dumps({"ready": process, "url": url})
    else:
        line = f"leaseway {process} serves at {url}"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _watch_signals(stop: asyncio.Event, task: "asyncio.Future[None]") -> list[int]:
    """Set `stop` on the first SIGTERM or SIGINT, cancel `task` on the second; return the list of what came."""
    asked: list[int] = []

    def came(number: int) -> None:
        asked.append(number)
        if len(asked) == 1:
            _LOG.info("draining", extra={"signal": signal.Signals(number).name})
            stop.set()
        else:
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, came, number)
    return asked


def _watch_lifeline(stop: asyncio.Event) -> None:
    """Set `stop` once standard input ends."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    os.set_blocking(descriptor, False)

    def readable() -> None:
        try:
            if os.read(descriptor, 4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        loop.remove_reader(descriptor)
        _LOG.warning("supervisor_gone")
        stop.set()

    try:
        loop.add_reader(descriptor, readable)
    except PermissionError:  # a regular file or /dev/null cannot be watched: then it was no lifeline
        _LOG.warning("no_lifeline")


def explain(process: str, error: BaseException) -> int:
    """Say `error` in one line on standard error and return the exit code that goes with it."""
    known = translate(error)
    if isinstance(known, LeasewayError | OSError):
        sys.stderr.write(f"leaseway {process}: {one_line(str(known))}\n")
    else:
        _LOG.critical("crashed", exc_info=error)
        sys.stderr.write(
            f"leaseway {process}: {type(error).__name__}: {one_line(str(error))}; this is a fault of ours\n"
        )
    sys.stderr.flush()
    return EXIT_CALLER if isinstance(known, CallerError) else EXIT_FAILED


def translate(error: BaseException) -> BaseException:
    """Return what `error` is about: the first error of a group, and a taken port by its own type."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        found = re.search(r"\('([^']*)', (\d+)", str(error))
        where = f"{found[1]}:{found[2]}" if found else "its port"
        return PortInUseError(
            f"address {where}: must be free, another process listens there; stop it or choose another port"
        )
    return error


def one_line(text: str) -> str:
    """Return `text` without line breaks and control characters, since it may quote what came from outside."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
