"""Signed checkpoints: where the ledger stood at a moment, under the master's key, kept apart from the bus.

One a minute goes into a file of the data directory and, as an observation, into LW_EVENTS, from where it reaches the archive.
A ledger that is rewritten from any commit on, with every digest mended, disagrees with them.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from adapters.keys import Signer, Verifier
from adapters.log.report import MET_MAX, Difference, Met, Report
from domain.errors import BadConfigError, HistoryError
from domain.events import Checkpoint, codec
from domain.events.commit import Commit, digest_inputs
from domain.ids import Generation
from domain.ports import StoredMessage

FILE_BYTES_MAX: Final = 1024 * 1024
FILES_MAX: Final = 16
"""Together some four weeks of one a minute: longer than the ledger reaches back."""
JUMP_US: Final = 60_000_000
"""Clocks of two masters differ by less, and time that passes is told by another clock."""
_PURPOSE: Final = b"leaseway/checkpoint/1|"
_OURS: Final = re.compile(r"[0-9A-Za-z]+-[0-9]{6,}\.jsonl")
"""Names of files; a copy that somebody has laid beside them is none."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, and where it is kept."""

    checkpoint: Checkpoint
    source: str


def sign(checkpoint: Checkpoint, signer: Signer) -> Checkpoint:
    """Return `checkpoint` with the signer's public key and its signature."""
    named = msgspec.structs.replace(checkpoint, public=signer.public, signature="")
    return msgspec.structs.replace(named, signature=signer.sign(_covered(named)))


def is_signed(checkpoint: Checkpoint) -> bool:
    """Tell whether the signature is that of the key which the checkpoint names."""
    try:
        verifier = Verifier(checkpoint.public)
    except BadConfigError:
        return False
    return verifier.verifies(_covered(checkpoint), checkpoint.signature)


def _covered(checkpoint: Checkpoint) -> bytes:
    return _PURPOSE + codec.encode(msgspec.structs.replace(checkpoint, signature=""))


def fingerprint(public: str) -> str:
    """Return the short form of a public key by which people compare it: 16 hex digits in groups of four."""
    digest = hashlib.sha256(public.encode()).hexdigest()[:16]
    return "-".join(digest[at : at + 4] for at in range(0, 16, 4))


def dated_ahead(kept: Iterable[Kept]) -> list[str]:
    """Return, of checkpoints in order of version, where one is dated well after the next: a clock was ahead, or was set back.

    What they state is compared by version, whatever their dates are.
    """
    told: list[str] = []
    signed = sorted({each.checkpoint for each in kept}, key=lambda each: (each.generation, each.version, each.tail_hi))
    for one, following in pairwise(signed):
        if one.at_us > following.at_us + JUMP_US:
            told.append(
                f"dates of signed checkpoints: that of version {one.version} is {(one.at_us - following.at_us) // 1_000_000} s "
                f"after that of version {following.version}, which was signed later: a master's clock was ahead, or was set back"
            )
    return told


def tail_digest(inputs: Iterable[StoredMessage]) -> str:
    """Return blake2b-16 over the inputs that no commit has folded yet: control messages first, then facts."""
    hasher = hashlib.blake2b(digest_size=16)
    digest_inputs(hasher, inputs)
    return hasher.hexdigest()


def check_signed(kept: Sequence[Kept], trusted: str) -> None:
    """Check that every checkpoint is signed with the key `trusted`.

    Raises:
        HistoryError: one is not.
    """
    for each in kept:
        if each.checkpoint.public != trusted or not is_signed(each.checkpoint):
            raise HistoryError(
                f"checkpoint of version {each.checkpoint.version} in {each.source}: must be signed with the master's key "
                f"{fingerprint(trusted)}, it is not"
            )


def signed_by(kept: Iterable[Kept], public: str, cluster: str) -> list[Kept]:
    """Return those that the key `public` has signed for `cluster`: others may be anybody's word."""
    return [
        each
        for each in kept
        if (each.checkpoint.public, each.checkpoint.cluster) == (public, cluster) and is_signed(each.checkpoint)
    ]


def compared(checkpoints: Sequence[Kept], report: Report, *, signatures_hold: bool = False) -> Callable[[Commit], None]:
    """Return what compares each commit with the checkpoints of its version, and notes in the report which were met.

    Raises (what is returned):
        HistoryError: a signed checkpoint states another commit of that version.
    """
    at: dict[tuple[str, int], list[Kept]] = {}
    for kept in checkpoints:
        signed = kept.checkpoint
        if signatures_hold or is_signed(signed):
            at.setdefault((signed.generation, signed.version), []).append(kept)
            report.keys.setdefault(fingerprint(signed.public), signed.public)
        else:
            detail = f"checkpoint of version {signed.version} in {kept.source}: its signature is not that of its key"
            report.differences.append(Difference(signed.version, "checkpoint", detail))

    def compare(stored: Commit) -> None:
        for kept in at.get((stored.generation, stored.version), ()):
            check_agrees(kept, stored)
            signed = kept.checkpoint
            report.checkpoints_met += 1
            met = Met(
                version=signed.version,
                digest=signed.digest,
                at_us=signed.at_us,
                fingerprint=fingerprint(signed.public),
                source=kept.source,
            )
            report.checkpoints = [*report.checkpoints, met][-MET_MAX:]

    return compare


def check_agrees(kept: Kept, stored: Commit) -> None:
    """Check that a checkpoint states the commit that is stored.

    Raises:
        HistoryError: it states another one.
    """
    signed = kept.checkpoint
    stated = (signed.digest, signed.hi, signed.chi, signed.state or stored.state)
    if stated != (stored.digest, stored.hi, stored.chi, stored.state):
        raise HistoryError(
            f"commit {stored.version}: has digest {stored.digest}, but a checkpoint in {kept.source} was signed for "
            f"digest {signed.digest}"
        )


class CheckpointBook:
    """Checkpoints in files of the data directory: appended, synced, in new files by size, the oldest dropped.

    Each generation of the ledger has files of its own: a history that an operator has ended binds nobody.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = asyncio.Lock()

    async def add(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint`; it is on disk once this returns."""
        async with self._lock:
            await asyncio.to_thread(self._append, checkpoint)

    def _append(self, checkpoint: Checkpoint) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self._files(checkpoint.generation)
        newest = files[-1] if files else None
        if newest is None or newest.stat().st_size >= FILE_BYTES_MAX:
            number = int(newest.stem.rpartition("-")[2]) + 1 if newest is not None else 1
            newest = self.folder / f"{checkpoint.generation}-{number:06d}.jsonl"
        with newest.open("ab") as file:
            if file.tell():
                _end_torn_line(newest, file.tell())
            file.write(codec.encode(checkpoint) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        for old in self._files("")[:-FILES_MAX]:
            old.unlink()

    def generations(self) -> list[Generation]:
        """Return the generations of which anything is kept, in order."""
        return sorted({_generation_of(path) for path in self._files("")})

    def _files(self, generation: str) -> list[Path]:
        """Return the files of a generation, or of all, oldest first."""
        found = self.folder.glob(f"{generation or '*'}-*.jsonl") if self.folder.is_dir() else ()
        return sorted(path for path in found if _OURS.fullmatch(path.name))

    async def read(self, generation: Generation | None = None) -> list[Kept]:
        """Return what is kept of a generation, or of all, in the order in which it was signed.

        Raises:
            HistoryError: a line is no checkpoint: nobody can say that the ledger agrees with it.
        """
        return await asyncio.to_thread(self._read, generation or "")

    def read_all(self) -> list[Kept]:
        """Return what is kept of all generations, without an event loop.

        Raises:
            HistoryError: as of `read`.
        """
        return self._read("")

    def _read(self, generation: str) -> list[Kept]:
        found: list[Kept] = []
        files = self._files(generation)
        newest = {_generation_of(path): path for path in files}
        for path in files:
            *lines, torn = path.read_bytes().split(b"\n")
            for number, line in enumerate(lines, start=1):
                try:
                    checkpoint = codec.decode_input(line)
                except (msgspec.DecodeError, RecursionError):
                    checkpoint = None
                if not isinstance(checkpoint, Checkpoint):
                    raise HistoryError(f"checkpoints {path}: line {number} must be a checkpoint, it is none")
                found.append(Kept(checkpoint=checkpoint, source=f"checkpoints/{path.name}"))
            if torn and path != newest[_generation_of(path)]:  # in the newest of each, a power cut may have done that
                raise HistoryError(f"checkpoints {path}: the last line is cut off")
        return found


def _generation_of(path: Path) -> Generation:
    return Generation(path.stem.rpartition("-")[0])


def _end_torn_line(path: Path, size: int) -> None:
    """Cut off what a power cut has left of a line."""
    with path.open("rb+") as file:
        file.seek(max(0, size - 8192))
        rest = file.read()
        if not rest.endswith(b"\n"):
            file.truncate(size - len(rest) + rest.rfind(b"\n") + 1)
