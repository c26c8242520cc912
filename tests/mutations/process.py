"""A master started as operators start it: `leaseway master`, over a data directory and a bus."""

import asyncio
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import aiohttp

from adapters.ports import HOST, free_port
from domain.errors import ChildFailedError
from services.data_directory import make_data
from tests.mutations.living import ANSWER_S, BOOK, WITNESS
from tests.support.processes import ROOT, leaseway
from tests.support.waiting import until

NOBODY = "http://127.0.0.1:9"
SETTLE = "it decides or doubts"


async def start_as_a_process(data: Path, bus: str, archive: str, settled: Collection[str]) -> str:
    """Start one, wait until /health says one of `settled`, and end it; return the doubt, empty if it decides."""
    own, port = data.parent / "master", free_port()
    make_data(own)
    shutil.copytree(data / "keys", own / "keys", dirs_exist_ok=True)
    shutil.copytree(data / BOOK, own / "checkpoints", dirs_exist_ok=True)
    shutil.copyfile(data / WITNESS, own / "checkpoint.json")
    config = own.parent / "leaseway.toml"
    config.write_text(f'[urls]\nprojector = "{archive or NOBODY}"\n')
    options = ("--config", str(config), "--data", str(own), "--bus", bus, "--port", str(port))
    log = (own.parent / "master.log").open("wb")
    child = await asyncio.create_subprocess_exec(*leaseway("master", *options), cwd=ROOT, stdout=log, stderr=log)
    try:
        status, doubt = await _settled(f"http://{HOST}:{port}/health", child, settled)
    except ChildFailedError as error:
        raise AssertionError(f"{error}: {(own.parent / 'master.log').read_text()[-500:]}") from None
    finally:
        with suppress(ProcessLookupError):
            child.terminate()
        await child.wait()
        log.close()
    return doubt if status == "safe_mode" else ""


async def _settled(url: str, child: asyncio.subprocess.Process, settled: Collection[str]) -> tuple[str, str]:
    """Return (status, doubt) of /health once it is one of `settled`."""
    async with aiohttp.ClientSession() as session:

        async def asked() -> tuple[str, str] | None:
            if child.returncode is not None:
                raise ChildFailedError(f"leaseway master: ended with {child.returncode}")
            with suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    said = await answer.json()
                    return (said["status"], said["doubt"]) if said["status"] in settled else None
            return None

        found: tuple[str, str] = await until(SETTLE, asked, timeout_s=ANSWER_S)
        return found
