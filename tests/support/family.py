"""Which processes a process has started, and how one is paused: from /proc where there is one, else from `ps`."""

import os
import signal
import subprocess
from pathlib import Path

PROC = Path("/proc")


def children(parent: int) -> list[tuple[int, list[str]]]:
    """Return (process id, command line) of every child of `parent` that runs, in order of their ids."""
    found = _from_proc(parent) if (PROC / "self" / "stat").exists() else _from_ps(parent)
    return sorted(found)


def _from_proc(parent: int) -> list[tuple[int, list[str]]]:
    found = []
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # the name in parentheses may hold anything; state and parent come after it
            state, ppid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        command = command_of(int(folder.name))
        if int(ppid) == parent and state != "Z" and command:
            found.append((int(folder.name), command))
    return found


def _from_ps(parent: int) -> list[tuple[int, list[str]]]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    rows = [line.split(maxsplit=3) for line in listing.splitlines()]
    return [
        (int(row[0]), row[3].split())
        for row in rows
        if len(row) == 4 and int(row[1]) == parent and not row[2].startswith("Z")
    ]


def command_of(pid: int) -> list[str] | None:
    """Return the command line of a running process; None if there is none."""
    if (PROC / "self" / "stat").exists():
        try:
            return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            return None
    listing = subprocess.run(
        ["ps", "-p", str(pid), "-o", "args="], capture_output=True, text=True, check=False, timeout=10
    )
    return listing.stdout.split() or None


def pause(pid: int) -> None:
    """Stop a process; when this returns none of its threads runs any more (a signal alone is only on its way)."""
    os.kill(pid, signal.SIGSTOP)
    while not _stands(pid):
        pass


def _stands(pid: int) -> bool:
    if not (PROC / "self" / "stat").exists():
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True, timeout=10
        )
        return state.stdout.strip()[:1] in {"T", "Z", ""}
    threads = (PROC / str(pid) / "task").glob("*/stat")
    return all(each.read_text().rpartition(")")[2].split()[0] in "TZ" for each in threads)
