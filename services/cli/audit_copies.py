"""`leaseway audit export | import`: a copy of history in one file, and its check and keeping elsewhere."""

import asyncio
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from adapters.keys import Credentials, Signer, load_credentials
from adapters.log import bundle
from adapters.log.bundle import Bundle
from adapters.log.bundle_writer import sync
from adapters.log.checkpoints import CheckpointBook, Kept, fingerprint
from adapters.log.segments import vouched
from domain.errors import BadConfigError, HistoryError, NotYetError
from domain.subjects import LEDGER
from services.cli.audit_source import Opened, Source, opened
from services.cli.reach import Here
from services.cli.show import Output, Waiting, note
from services.data_directory import make_data
from services.lifecycle import EXIT_FAILED, EXIT_OK

_STATES_MAX: Final = 8
"""Stored states in a copy: where an audit of a part of it can begin, and processes their parts."""


def book_of(place: Here) -> CheckpointBook:
    """Return the signed checkpoints of a data directory."""
    return CheckpointBook(place.config.data / "checkpoints")


def damages_of(copy: Bundle) -> list[str]:
    """Return what of a copy is not as it was written."""
    places = (f"{name} {seq}" if seq else name for name, seq in copy.damaged)
    return [f"{place}: is not as it was exported" for place in places]


def false_signature(copy: Bundle, trusted: str) -> list[str]:
    """Return what is wrong with a copy's signature: it does not hold, or is not that of the key `trusted`, if one is."""
    try:
        signed_by = copy.signed_by()
    except BadConfigError as error:
        return [str(error)]
    if not trusted or signed_by == trusted:
        return []
    who = f"a key that this cluster never had, {signed_by}" if signed_by else "nobody"
    return [f"{bundle.MANIFEST}: signed by {who}; trusted is {trusted}"]


def unknown_signer(copy: Bundle, trusted: str, ours: str = "") -> str:
    """Return why nobody can tell who made a copy; empty if somebody can.

    `trusted`: the fingerprint that was given. `ours`: that of the cluster of this name whose operator's key is here.
    """
    with suppress(BadConfigError):  # a signature that does not hold is a difference
        signed_by = copy.signed_by()
        if not signed_by:
            return "who made the copy: it is signed by nobody"
        if not trusted and ours and signed_by != ours:
            return (
                f"who made the copy: it is signed by {signed_by}, a key that the cluster {copy.header.cluster} of this data "
                f"directory never had; that one's is {ours}"
            )
        if not trusted:
            return (
                f"who made the copy: it is signed by {signed_by}, whose key comes with the copy: anybody can make such a one. "
                f"Ask the cluster for its fingerprint by another way, and give it with --fingerprint"
            )
    return ""


def require_whole(copy: Bundle) -> None:
    """Check that every message of a copy is as it was exported, and that its signature, if it has one, holds.

    Raises:
        HistoryError: something is not.
    """
    wrong = [*damages_of(copy), *false_signature(copy, "")]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise HistoryError(f"audit copy {copy.path}: {wrong[0]}{more}; `leaseway audit verify --copy` names all of it")


def is_ours(header: bundle.Header, operator: Credentials) -> bool:
    """Tell whether a copy is of the cluster whose operator's key is here: many a cluster has the default name."""
    return header.cluster == operator.cluster and header.public in {"", operator.master_public}


# ---- export ----------------------------------------------------------------------------------------------------------


def export_copy(place: Here, source: Source, path: Path, waiting: Waiting, *, as_json: bool) -> int:
    """Write a copy and say how to check that it arrived whole. What is in doubt is copied as it stands: it is evidence."""
    header = asyncio.run(_export(place, source, path, waiting))
    waiting.done()
    for name, held in header.streams.items():
        for first, last in held.missing:
            note(f"not in the copy: messages {first} to {last} of {name}, which are not there")
    _tell_copy("export", header, path, as_json=as_json)
    return EXIT_OK


async def _export(place: Here, source: Source, path: Path, waiting: Waiting) -> bundle.Header:
    async with opened(source) as at:
        extra = bundle.Extra(
            software=version("leaseway"),
            states=await _states(at),
            checkpoints=await asyncio.to_thread(_checkpoints, place),
            signer=_signer(place),
            operator=_operator(place),
        )
        try:
            return await bundle.export(
                at.streams,
                source.cluster,
                path,
                extra=extra,
                progress=lambda done, total: waiting(f"export: message {done} of {total}"),
            )
        except OSError as error:
            raise BadConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _checkpoints(place: Here) -> list[Kept]:
    try:
        return book_of(place).read_all()
    except HistoryError as error:
        note(f"not in the copy: {error}")
        return []


def _signer(place: Here) -> Signer | None:
    """Return the master's key where this data directory has it."""
    path = place.config.data / "keys" / "master.json"
    return Signer(load_credentials(path).master_seed) if path.is_file() else None


def _operator(place: Here) -> str:
    """Return the operator's public key, with which an auditor elsewhere checks who began a generation."""
    return operator_of(load_credentials(place.operator_key()))


def operator_of(operator: Credentials) -> str:
    """Return the public key of an operator's credentials; empty if they have none."""
    return Signer(operator.nkey_seed).public if operator.nkey_seed else ""


async def _states(at: Opened) -> list[tuple[int, bytes]]:
    """Return stored states for which commits vouch, spread over the history, oldest first."""
    bounds = await at.streams.ledger.bounds()
    found: dict[int, bytes] = {}
    for number in range(1, _STATES_MAX + 1):
        upto = bounds.first - 1 + (bounds.last - bounds.first + 1) * number // _STATES_MAX
        with suppress(HistoryError):  # a ledger in doubt is copied all the same
            state = await vouched(at.streams.ledger, at.find, upto, after=max(found, default=0))
            if state is not None:
                found[state[0]] = state[1]
    return sorted(found.items())


# ---- import ----------------------------------------------------------------------------------------------------------


def newest_copy(data: Path, imported: list[Path]) -> Path:
    """Return which of the copies in a data directory is meant.

    Raises:
        NotYetError: there is none.
        BadConfigError: they are of several clusters.
    """
    if not imported:
        raise NotYetError(
            f"data directory {data}: holds no imported copy; `leaseway audit import FILE` keeps one, or name a file with --copy"
        )
    clusters = sorted({path.stem.rpartition("-")[0] for path in imported})
    if len(clusters) > 1:
        raise BadConfigError(
            f"data directory {data}: holds copies of clusters {', '.join(clusters)}; name the file with --copy"
        )
    return imported[-1]


def import_copy(place: Here, path: Path, waiting: Waiting, *, trusted: str, as_json: bool) -> int:
    """Check a copy and keep it in the data directory; 1 if it is not as it was exported.

    Raises:
        BadConfigError: it is no copy, it changed meanwhile, or another one of the same versions is kept already.
    """
    copy = bundle.load(path)
    digest = bundle.file_digest(path)
    waiting("import: checking every message")
    damages, false = damages_of(copy), false_signature(copy, trusted)
    waiting.done()
    for each in (*damages, *false):
        note(each)
    if damages or false:
        note(_what_next(path, digest, damaged=bool(damages)))
        return EXIT_FAILED
    folder = place.config.data / "audit"
    make_data(place.config.data)
    folder.mkdir(exist_ok=True, mode=0o700)
    held = copy.header.streams.get(LEDGER)
    kept = folder / f"{copy.header.cluster}-{held.last if held is not None else 0:012d}.zip"
    _keep(path, kept, digest)
    if doubt := unknown_signer(copy, trusted):
        note(f"not checked: {doubt}")
    _tell_copy("import", copy.header, kept, as_json=as_json)
    return EXIT_OK


def _what_next(path: Path, digest: str, *, damaged: bool) -> str:
    """Return what to do about a copy that is refused."""
    if damaged:
        todo = (
            f"It is not the file that was exported. Ask its sender for it again, and whether its SHA-256 is {digest}; what still "
            f"holds of this one is said by `leaseway audit verify --copy {path}`"
        )
    else:
        todo = (
            "Nothing says that it is from whom you think. Ask its sender, by another way than the file's, for the fingerprint "
            "that `leaseway audit export` printed, and for the file again if that is another one"
        )
    return f"audit import: refused, nothing is kept of {path}. {todo}"


def _keep(path: Path, kept: Path, digest: str) -> None:
    """Put the file of this SHA-256 in its place, whole or not at all, and never over another one."""
    if kept.exists():
        if bundle.file_digest(kept) != digest:
            raise BadConfigError(
                f"audit copy {kept}: another one of the same versions is kept there; move it away, or name another --data"
            )
        return
    draft = kept.with_name(kept.name + ".part")
    try:
        shutil.copyfile(path, draft)
        sync(draft)
        if bundle.file_digest(draft) != digest:
            raise BadConfigError(
                f"audit copy {path}: has changed while it was checked; import it again once it is whole"
            )
        draft.replace(kept)
    finally:
        draft.unlink(missing_ok=True)


def _tell_copy(action: str, header: bundle.Header, path: Path, *, as_json: bool) -> None:
    count = sum(header.counts.values())
    digest, key = bundle.file_digest(path), fingerprint(header.public) if header.public else ""
    lines = [f"audit {action}: {count} messages of cluster {header.cluster} in {path}", f"SHA-256 {digest}"]
    lines.append(f"signed by {key}" if key else "signed by nobody: the master's key is not in this data directory")
    lines.append(f"verify it with `leaseway audit verify --copy {path}`")
    row: dict[str, Any] = {"file": str(path), "sha256": digest, "fingerprint": key, "counts": header.counts}
    Output(as_json=as_json).say("\n".join(lines), {**row, "cluster": header.cluster, "format": header.format})
