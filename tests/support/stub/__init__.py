"""A canned OpenAI-shaped engine in C, for load only: its answers prove nothing about an engine.

`async with stub_engine(slots=4, first_byte_us=20_000) as engine: ...`; /stub/stats tells how many requests it had at once.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.ports import free_port
from tests.support.engines import Engine
from tests.support.waiting import until

HERE = Path(__file__).parent
START_S = 10


def compiled(source: Path) -> Path:
    """Return the program made of `source` (C), compiled once for each version of it; skips the test without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler (cc): the stub engine and the load generator need one")
    digest = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest()
    directory = Path(tempfile.gettempdir()) / f"leaseway-tests-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    program = directory / f"{source.stem}-{digest}"
    if not program.exists():
        draft = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-w", "-o", draft, source], check=True, capture_output=True, timeout=60)
        draft.replace(program)
    return program


def stub_program() -> Path:
    """Return the compiled stub engine."""
    return compiled(HERE / "stub.c")


def stub_command(
    port: int | str, *, model: str = "stub", slots: int = 1, first_byte_us: int = 0, chunk_us: int = 0, chunks: int = 16
) -> tuple[str, ...]:
    """Return the stub's command: `slots` at once, the others wait inside it, as in a real engine."""
    flags = {"-p": port, "-m": model, "-l": slots, "-d": first_byte_us, "-i": chunk_us, "-n": chunks}
    return (str(stub_program()), *(text for flag, value in flags.items() for text in (flag, str(value))))


@contextlib.asynccontextmanager
async def stub_engine(
    *, port: int = 0, model: str = "stub", slots: int = 1, first_byte_us: int = 0, chunk_us: int = 0, chunks: int = 16
) -> AsyncIterator[Engine]:
    """Run a stub engine (at a free port if it is 0) while the block runs."""
    port = port or free_port()
    command = stub_command(
        port, model=model, slots=slots, first_byte_us=first_byte_us, chunk_us=chunk_us, chunks=chunks
    )
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await listening(port)
        yield Engine(url=f"http://127.0.0.1:{port}", alias=model, process=process, slots=slots)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def listening(port: int, *, timeout_s: float = START_S) -> None:
    """Return once something accepts connections at `port`."""

    async def accepts() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    await until(f"a listener at port {port}", accepts, timeout_s=timeout_s)
