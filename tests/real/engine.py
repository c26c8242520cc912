"""A stub engine as a process of its own: it takes one request at a time, in order, and sleeps as long as each is stated to take.

`python -m tests.real.engine --port P --models m0,m1 --loaded m1 --load-s 3 --speed 2 --times times.json --journal journal.jsonl`

How long a request takes on speed 1 stands in `times.json`, by the key in its message (`[[17]]`): no router can know it. One
model is loaded at a time; POST /load {"model": "m0"} sleeps and changes it. GET /v1/models answers 503 until one is loaded.
The journal gets a line for each run and each load, with times of the machine's monotonic clock in seconds.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.support.moments import elapsed, moment

_KEY: Final = re.compile(r"\[\[([^\]]+)\]\]")
_BYTES_PER_TOKEN: Final = 4
_FAILS_S: Final = 0.02


class StubEngine:
    """One runtime: at most one model loaded, at most one request running."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._models = tuple(options.models.split(","))
        self._loaded: str | None = None
        self._load_s, self._speed, self._fails = options.load_s, options.speed, options.fails
        self._times: dict[str, float] = json.loads(Path(options.times).read_text())
        self._journal = Path(options.journal).open("a", buffering=1)  # noqa: SIM115  # as long as the process
        self._turn = asyncio.Lock()
        self._free_at = 0.0
        self._first = options.loaded
        self._first_s = options.first_load_s

    async def begin(self) -> None:
        """Load the first model."""
        await elapsed(self._first_s)
        self._loaded = self._first

    def app(self) -> web.Application:
        """Return its HTTP surface."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self.listing),
                web.post("/v1/chat/completions", self.complete),
                web.post("/load", self.load),
            ]
        )
        return app

    async def listing(self, _request: web.Request) -> web.Response:
        """List the models once one is loaded."""
        rows = [{"id": model, "object": "model"} for model in self._models]
        return web.json_response({"data": rows}, status=200 if self._loaded else 503)

    async def load(self, request: web.Request) -> web.Response:
        """Change the model; what runs is finished first."""
        model = (await request.json())["model"]
        if model not in self._models:
            return _error(404, f"no model {model}")
        async with self._turn:
            began = time.monotonic()
            if model != self._loaded:
                self._loaded = None
                await elapsed(self._load_s)
                self._loaded = model
            self._write(what="load", key=model, arrived=began, began=began, ended=time.monotonic())
        return web.json_response({"loaded": model})

    async def complete(self, request: web.Request) -> web.Response:
        """Sleep as long as the request takes."""
        arrived = time.monotonic()
        body = await request.read()
        asked = json.loads(body)
        key = _key(asked)
        if self._fails and not key.startswith("warm"):
            await elapsed(_FAILS_S)
            self._write(what="failed", key=key, arrived=arrived, began=arrived, ended=time.monotonic())
            return _error(500, "this engine fails")
        async with self._turn:
            if asked["model"] != self._loaded:
                self._write(what="not_loaded", key=key, arrived=arrived, began=arrived, ended=arrived)
                return _error(503, f"{asked['model']} is not loaded, {self._loaded} is")
            # what waited inside begins when the one before it ended by plan: a late wake-up is the stub's fault, not work
            began = max(arrived, self._free_at)
            self._free_at = began + self._times[key] / self._speed
            try:
                await moment(self._free_at)
            except asyncio.CancelledError:
                self._free_at = time.monotonic()
                self._write(what="cancelled", key=key, arrived=arrived, began=began, ended=self._free_at)
                raise
            self._write(what="run", key=key, arrived=arrived, began=began, ended=time.monotonic())
        return web.json_response(_answer(asked, len(body)))

    def _write(self, **line: Any) -> None:
        self._journal.write(json.dumps(line) + "\n")


def _key(asked: dict[str, Any]) -> str:
    found = _KEY.search(asked["messages"][-1]["content"])
    assert found is not None, "every message names its key"
    return found[1]


def _answer(asked: dict[str, Any], size_bytes: int) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "done"}}
    given, made = size_bytes // _BYTES_PER_TOKEN, asked["max_tokens"]
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return {"id": "stub", "object": "chat.completion", "model": asked["model"], "choices": [choice], "usage": usage}


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "stub"}}, status=status)


async def serve(options: argparse.Namespace) -> None:
    """Listen, then load the first model, and serve until killed, or until standard input ends: who started this one is gone."""
    engine = StubEngine(options)
    runner = web.AppRunner(engine.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", options.port).start()
    await engine.begin()
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Run by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--loaded", required=True, help="the model that is loaded first")
    parser.add_argument("--first-load-s", type=float, default=0.0)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--times", required=True)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--fails", action="store_true", help="answer 500 to all but warm-up requests")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
