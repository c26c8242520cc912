"""What JetStream's errors mean to whoever waits for a stream."""

import msgspec
import pytest

from adapters.nats.api import StreamMissingError, read_bounds
from domain.errors import BusError

STOPPED = {"code": 500, "err_code": 10194, "description": "stream is offline: stopped - unsupported consumer"}
MISSING = {"code": 404, "err_code": 10059, "description": "stream not found"}


@pytest.mark.parametrize("error", [STOPPED, MISSING], ids=["stopped", "missing"])
def test_a_stream_that_the_server_has_stopped_is_gone_as_one_that_is_not_there(error: dict[str, object]):
    with pytest.raises(StreamMissingError, match=str(error["err_code"])):
        read_bounds(b"", msgspec.json.encode({"error": error}))


def test_another_error_says_nothing_of_the_kind():
    with pytest.raises(BusError) as raised:
        read_bounds(b"", msgspec.json.encode({"error": {"code": 400, "err_code": 10003, "description": "bad request"}}))
    assert not isinstance(raised.value, StreamMissingError)
