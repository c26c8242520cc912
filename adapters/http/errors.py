"""Answers that are our own: OpenAI's error shape, the status that goes with each code, and what clients may retry."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web

from domain.errors import LeasewayError

STATUS: Final[Mapping[str, int]] = {
    "invalid_json": 400,
    "invalid_body": 400,
    "invalid_model": 400,
    "bad_host": 400,
    "bad_request": 400,
    "origin_not_allowed": 403,
    "no_live_lease": 403,
    "bad_signature": 403,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "offload_returned": 409,
    "body_too_large": 413,
    "unsupported_content_type": 415,
    "unsupported_content_encoding": 415,
    "expectation_failed": 417,
    "host_not_allowed": 421,
    "rate_limited": 429,
    "internal_error": 500,
    "engine_failed": 502,
    "forward_failed": 502,
    "helper_failed": 502,
    "node_failed": 502,
    "helper_unreachable": 503,
    "model_unavailable": 503,
    "node_draining": 503,
    "offload_busy": 503,
    "queue_full": 503,
    "too_many_connections": 503,
    "queue_timeout": 504,
}
"""Every code of an own error and its status (docs/reference/http.md)."""
MAY_HAVE_RUN: Final = frozenset({"internal_error", "engine_failed", "helper_failed", "node_failed"})
"""Codes of requests that may have run: OpenAI's SDK would send them again by itself, so it is told not to."""
NOT_STARTED: Final = "leaseway-not-started"
"""The header by which a node says that a refused request has provably not started: a gateway may ask another node."""
_NOT_STARTED_CODES: Final = frozenset({"model_unavailable", "node_draining", "queue_full", "too_many_connections"})
_RETRY_AFTER_S: Final = 1
"""Where nobody measured a better one."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error object."""

    message: str
    type: str
    code: str
    param: str | None = None


class _ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


class ApiError(LeasewayError):
    """What a client is told instead of an answer: code, sentence, and the parameter it is about."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int = 0,
        retry_after_s: int | None = None,
        may_have_run: bool | None = None,
        close: bool = False,
    ) -> None:
        """Begin an answer with `code`; what is not given follows from the code."""
        self.code, self.message, self.param, self.close = code, message, param, close
        self.status = status or STATUS.get(code, 500)
        self.retry_after_s = _RETRY_AFTER_S if retry_after_s is None and self.status == 503 else retry_after_s
        self.may_have_run = code in MAY_HAVE_RUN if may_have_run is None else may_have_run
        super().__init__(f"{code}: {message}")

    @property
    def kind(self) -> str:
        """Return OpenAI's error type for the status."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def detail(self) -> ErrorDetail:
        """Return the error object of the answer's body."""
        return ErrorDetail(message=self.message, type=self.kind, code=self.code, param=self.param)

    def body(self) -> bytes:
        """Return the answer's body."""
        return msgspec.json.encode(_ErrorAnswer(error=self.detail()))

    def event(self) -> bytes:
        """Return the error as a server-sent event: for a stream that has begun already."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> dict[str, str]:
        """Return the headers that say whether and when to try again."""
        headers = {"Content-Type": "application/json"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, self.retry_after_s))
        if self.may_have_run:
            headers["x-should-retry"] = "false"
        elif self.code in _NOT_STARTED_CODES:
            headers[NOT_STARTED] = "true"
        return headers

    def response(self, extra: Mapping[str, str] | None = None) -> web.Response:
        """Return the whole answer, with the headers in `extra` besides its own."""
        response = web.Response(status=self.status, body=self.body(), headers={**self.headers(), **(extra or {})})
        if self.close:
            response.force_close()
        return response
