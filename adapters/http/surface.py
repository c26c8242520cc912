"""The client's surface as far as node and gateway share it: paths, the list of models, what an unknown model is told."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import unquote

import msgspec
from aiohttp import web

from adapters.http.errors import ApiError
from adapters.http.server import Call
from domain.errors import BadIdError
from domain.ids import ModelId, model_id

PICTURES_PATH: Final = "/v1/images/generations"
WORK_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", PICTURES_PATH})
_MODELS: Final = "/v1/models"

Listing = Callable[[], Mapping[ModelId, object]]
"""The models to list now, each with its entry, in the order of the list."""
Complete = Callable[[Call], Awaitable[web.StreamResponse]]


async def serve(call: Call, served_by: str, listing: Listing, complete: Complete) -> web.StreamResponse:
    """Answer one request of a client: work, or the list of models.

    Raises:
        ApiError: what the client is told instead; not_found for any other path.
    """
    if call.path in WORK_PATHS:
        allow(call, "POST")
        return await complete(call)
    if call.path == _MODELS or call.path.startswith(_MODELS + "/"):
        allow(call, "GET")
        return document(call, served_by, _listed(call, listing()))
    raise ApiError("not_found", f"no such path: {call.path[:200]}")


def _listed(call: Call, entries: Mapping[ModelId, object]) -> object:
    wanted = unquote(call.path[len(_MODELS) + 1 :])
    if not wanted:
        return {"object": "list", "data": list(entries.values())}
    try:
        return entries[model_id(wanted)]
    except (KeyError, BadIdError):
        raise unknown_model(wanted) from None


def document(call: Call, served_by: str, body: object, *, status: int = 200) -> web.Response:
    """Return `body` as a JSON answer with the headers that every answer has."""
    headers = {"Content-Type": "application/json", "leaseway-served-by": served_by, **call.id_headers()}
    return web.Response(status=status, body=msgspec.json.encode(body), headers=headers)


def allow(call: Call, method: str) -> None:
    """Refuse any other method.

    Raises:
        ApiError: method_not_allowed.
    """
    if call.request.method != method:
        found = call.request.method[:20]
        raise ApiError("method_not_allowed", f"method must be {method}, got {found}", close=True)


def unknown_model(model: str) -> ApiError:
    """Return the error for a model that nobody asked serves."""
    return ApiError("model_not_found", f"model {model[:256]!r}: no node serves a model of this id", param="model")
