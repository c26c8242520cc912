"""A tool that asks one thing without end, as a process: `python -m tests.support.asker URL CREDENTIALS PUBLIC_KEY NAME ASKED`.

It writes to plain sockets, as many as a tool may have, as fast as the server takes it, and reads what comes back and forgets it.
"""

import asyncio
import base64
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

import nkeys

from adapters.keys import load_credentials
from adapters.nats.outside import CONNECTIONS_MAX

_PIECE_BYTES = 60_000


async def ask_without_end(url: str, seed: str, public_key: str, name: str, asked: bytes) -> None:
    """Ask over one connection until it is cut."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    nonce = json.loads((await reader.readline()).split(b" ", 1)[1])["nonce"]
    signed = base64.b64encode(nkeys.from_seed(seed.encode()).sign(nonce.encode())).decode()
    hello = {"verbose": False, "nkey": public_key, "sig": signed, "lang": "none", "version": "0", "headers": True}
    writer.write(b"CONNECT %b\r\nSUB _INBOX_%b.> 1\r\n" % (json.dumps(hello).encode(), name.encode()))
    request = b"PUB %b _INBOX_%b.x 0\r\n\r\n" % (asked, name.encode())
    piece = request * (_PIECE_BYTES // len(request))
    forgetting = asyncio.create_task(_forget(reader))
    while not forgetting.done():
        writer.write(piece)
        await writer.drain()


async def _forget(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


async def main(url: str, credentials: str, public_key: str, name: str, asked: str) -> None:
    """Ask over as many connections as a tool may have."""
    seed = load_credentials(Path(credentials)).nkey_seed
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS_MAX):
            group.create_task(ask_without_end(url, seed, public_key, name, asked.encode()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
