"""A free port stays free until the one who asked for it listens."""

import socket

import pytest

from adapters import ports
from adapters.ports import HOST, free_port, require_free
from domain.errors import PortInUseError


def test_ports_of_one_process_differ_and_none_is_of_those_that_the_system_hands_out():
    drawn = [free_port() for _ in range(200)]
    assert len(set(drawn)) == 200
    with socket.create_server((HOST, 0)) as handed_out:
        assert max(drawn) < handed_out.getsockname()[1]


def test_a_port_that_somebody_listens_on_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    taken = free_port()
    free = free_port()
    monkeypatch.setattr(ports, "_RANGE", (taken, free))
    with socket.create_server((HOST, taken)):
        assert {free_port() for _ in range(4)} == {free}


def test_when_all_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch):
    taken = free_port()
    monkeypatch.setattr(ports, "_RANGE", range(taken, taken + 1))
    with socket.create_server((HOST, taken)), pytest.raises(PortInUseError, match=f"from {taken} to {taken}"):
        free_port()


def test_a_taken_port_is_named_with_what_wants_it_and_what_to_do():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"the bus port {port}: must be free on {HOST}: .*; stop it"):
            require_free(port, "the bus", hint="stop it")
