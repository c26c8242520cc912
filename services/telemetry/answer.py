"""The answer to `GET /metrics`, wherever `/health` is answered: loopback by default, for operators and not for clients."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from aiohttp import web

from adapters.http.server import Call
from services.telemetry.instruments import Instruments
from services.telemetry.table import Process

PATH: Final = "/metrics"


def instruments(process: Process) -> Instruments:
    """Return the instruments of `process`, of the installed version."""
    return Instruments(process, installed_version())


def installed_version() -> str:
    """Return the version of Leaseway that is installed."""
    try:
        return version("leaseway")
    except PackageNotFoundError:
        return "unknown"


def answer(measured: Instruments, request: web.BaseRequest, call: Call | None = None) -> web.Response:
    """Return every metric as text; `Accept` chooses between OpenMetrics and Prometheus' own form."""
    content_type, text = measured.exposition(request.headers.get("Accept", ""))
    headers = {"Content-Type": content_type, **(call.id_headers() if call is not None else {})}
    return web.Response(body=text, headers=headers)
