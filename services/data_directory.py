"""The data directory: its version, its lock, its places, and where the running processes can be reached."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import BadConfigError, DataInUseError
from services.config import Config

DATA_VERSION: Final = "1"
"""Layout of the directory. Another one is refused, never changed."""
_ENDPOINTS: Final = "endpoints.json"


class Endpoints(msgspec.Struct, kw_only=True):
    """Where the processes of this data directory listen; `leaseway up` writes it, the command line reads it."""

    nats: str = "nats://127.0.0.1:4222"
    monitor: str = "http://127.0.0.1:8222"
    gateway: str = "http://127.0.0.1:8000"
    projector: str = "http://127.0.0.1:8200"
    master: str = "http://127.0.0.1:8300"
    console: str = "http://127.0.0.1:8500"
    nodes: dict[str, str] = {}
    """Node id -> url."""
    engines: dict[str, tuple[str, ...]] = {}
    """Node id -> urls of the engines that it starts."""


def check_data(path: Path) -> None:
    """Return if `path` is a data directory of this version, or can become one. Changes nothing.

    Raises:
        BadConfigError: it is of another version, is not a directory, or holds something else.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise BadConfigError(f"data directory {path}: must be a directory")
    version = path / "VERSION"
    try:
        found = version.read_text(encoding="utf-8").strip() if version.is_file() else ""
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name != "LOCK")
    except OSError as error:
        raise BadConfigError(f"data directory {path}: cannot be read: {error.strerror}") from None
    if found and found != DATA_VERSION:
        raise BadConfigError(
            f"data directory {path}: must be of version {DATA_VERSION}, is of version {found[:20]!r}; nothing was changed"
        )
    if not found and strangers:
        raise BadConfigError(
            f"data directory {path}: must be empty or hold a VERSION file, holds {strangers[0]!r}; nothing was changed"
        )


def make_data(path: Path) -> None:
    """Make `path` a data directory (mode 0700) if it is not one yet.

    Raises:
        BadConfigError: it is of another version, holds something else, or cannot be made.
    """
    check_data(path)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (path / "VERSION").is_file():
            path.chmod(0o700)
            _write_whole(path / "VERSION", f"{DATA_VERSION}\n".encode())
        for name in ("keys", "logs"):
            (path / name).mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadConfigError(f"data directory {path}: cannot be made: {error.strerror}") from None


@contextmanager
def held_data(path: Path) -> Iterator[Path]:
    """Make `path` a data directory and hold it against other processes as long as the context lasts.

    Raises:
        BadConfigError: it is of another version, holds something else, or cannot be made.
        DataInUseError: another process holds it.
    """
    check_data(path)
    make_data(path)
    descriptor = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _in_use(path, _pid_in(descriptor)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield path
    finally:
        os.close(descriptor)  # ends the lock; the file stays, since removing it would let two processes hold one name


def write_endpoints(path: Path, endpoints: Endpoints) -> None:
    """Keep `endpoints` in the data directory `path`."""
    _write_whole(path / _ENDPOINTS, msgspec.json.format(msgspec.json.encode(endpoints)))


def is_standalone(path: Path) -> bool:
    """Tell whether `leaseway up` made what is in the data directory `path`."""
    return (path / _ENDPOINTS).is_file()


def read_endpoints(path: Path) -> Endpoints:
    """Return where the processes of the data directory `path` listen: as last written, else the defaults."""
    try:
        return msgspec.json.decode((path / _ENDPOINTS).read_bytes(), type=Endpoints)
    except (OSError, msgspec.DecodeError):
        return Endpoints()


def known_endpoints(config: Config) -> Endpoints:
    """Return where the processes are that belong to `config`: as its `[urls]` say, else as the data directory does."""
    stated = {name: url for name, url in msgspec.structs.asdict(config.urls).items() if url}
    return msgspec.structs.replace(read_endpoints(config.data), **stated)


def holder_of(path: Path) -> int | None:
    """Return the pid that holds the data directory `path` now; None if nobody does."""
    try:
        descriptor = os.open(path / "LOCK", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return _pid_in(descriptor)
    finally:
        os.close(descriptor)
    return None


def require_unheld(path: Path) -> None:
    """Return if nobody holds the data directory `path`.

    Raises:
        DataInUseError: somebody does.
    """
    holder = holder_of(path)
    if holder is not None:
        raise _in_use(path, holder)


def _pid_in(descriptor: int) -> int:
    """Return the pid in a lock's file; 0 if its holder has not written it yet."""
    text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else 0


def _in_use(path: Path, holder: int) -> DataInUseError:
    return DataInUseError(f"data directory {path}: is in use by pid {holder}; stop it or name another with --data")


def _write_whole(path: Path, body: bytes) -> None:
    """Write `body` whole or not at all."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(body)
    draft.replace(path)
