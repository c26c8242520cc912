"""Which names a server answers to, by which no page in a browser can speak to it as its own."""

import logging
import socket

import pytest
from multidict import CIMultiDict

from adapters.http.errors import ApiError
from adapters.http.hosts import Hosts, name_of
from services.config import Config, HttpConfig, UrlsConfig
from services.hosts import SETTING, of_clients, of_operators

OWN = [
    "127.0.0.1",
    "127.0.0.1:8200",
    "10.1.2.3",
    "[::1]:8200",
    "[fe80::1]",
    "localhost",
    "LocalHost.:8200",
    "a.localhost",
]
FOREIGN = [
    "evil.example",
    "evil.example:8200",
    "localhost.evil.example",
    "127.0.0.1.nip.io",
    "xlocalhost",
    "2130706433",
    "",
]


def refused(hosts: Hosts, **headers: str) -> str:
    """Return the code with which a request is refused; empty if it is not."""
    said = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    try:
        hosts.check(said)
    except ApiError as error:
        return error.code
    return ""


@pytest.mark.parametrize("host", OWN)
def test_addresses_and_localhost_are_answered(host: str) -> None:
    assert refused(of_operators(Config()), Host=host) == ""


@pytest.mark.parametrize("host", FOREIGN)
def test_any_other_name_is_refused_with_the_setting_that_allows_it(host: str) -> None:
    with pytest.raises(ApiError) as raised:
        of_operators(Config()).check({"Host": host})
    assert (raised.value.code, raised.value.status) == ("host_not_allowed", 421)
    assert name_of(host) in str(raised.value)
    assert SETTING in str(raised.value)


def test_who_states_no_host_is_no_browser_and_is_answered() -> None:
    assert refused(of_operators(Config())) == ""


def test_names_of_the_configuration_and_of_the_machine_are_answered() -> None:
    urls = UrlsConfig(master="http://m-1:8300,http://m-2:8300", projector="http://rows.lan", gateway="https://ai.lan")
    http = HttpConfig(host="studio.lan", public_url="http://out.lan:81", allowed_hosts="a.example.org, .b.example.org")
    hosts = of_operators(Config(http=http, urls=urls))
    own = [
        "m-1",
        "M-2:8300",
        "rows.lan",
        "ai.lan",
        "studio.lan",
        "out.lan",
        "a.example.org",
        "b.example.org",
        "x.y.b.example.org",
    ]
    machine = socket.gethostname()
    names = (*own, machine, f"{machine.partition('.')[0]}.local:8300")
    assert [name for name in names if refused(hosts, Host=name)] == []
    for name in ("x.a.example.org", "xb.example.org", "example.org", "m-3", "another.local", "x.m-1"):
        assert refused(hosts, Host=name) == "host_not_allowed"


def test_a_machine_without_a_name_answers_to_no_more_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    hosts = of_operators(Config())
    assert refused(hosts, Host="evil.local") == refused(hosts, Host="local") == "host_not_allowed"


def test_a_star_lets_in_every_name_and_page() -> None:
    hosts = of_operators(Config(http=HttpConfig(allowed_hosts="*")))
    assert refused(hosts, Host="evil.example", Origin="https://evil.example") == ""
    assert refused(hosts, Host="evil.example", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors") == ""


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.nip.io:1", "moz-extension://0f-1a"]
)
def test_an_operators_server_is_for_no_page_of_a_foreign_name(origin: str) -> None:
    assert refused(of_operators(Config()), Host="127.0.0.1", Origin=origin) == "origin_not_allowed"


@pytest.mark.parametrize(
    "address", ["203.0.113.5", "192.168.1.66", "[2001:db8::5]:80", "[::ffff:203.0.113.5]", "0.0.0.0"]
)
def test_a_page_at_somebody_s_address_is_no_page_of_ours_unless_that_is_where_it_asks_or_is_stated(
    address: str,
) -> None:
    hosts = of_operators(Config())
    page = f"http://{address}"
    assert refused(hosts, Host="127.0.0.1:8200", Origin=page) == "origin_not_allowed"
    assert refused(hosts, Host="localhost", Origin=page) == "origin_not_allowed"
    assert refused(hosts, Host=address, Origin=page) == ""
    stated = of_operators(Config(http=HttpConfig(allowed_hosts=name_of(address))))
    assert refused(stated, Host="127.0.0.1:8200", Origin=page) == ""


def test_a_page_of_this_machine_is_one_of_ours_by_whichever_address_and_one_without_an_origin_is_not() -> None:
    hosts = of_operators(Config())
    for page in ("http://127.0.0.1:3000", "http://127.8.8.8", "http://[::1]:3000"):
        assert refused(hosts, Host="localhost:8200", Origin=page) == ""
    assert refused(hosts, Origin="null") == "origin_not_allowed"


def test_a_page_of_ours_and_a_link_are_answered_and_a_foreign_page_s_picture_is_not() -> None:
    hosts = of_operators(Config(http=HttpConfig(allowed_hosts="console.lan")))
    assert refused(hosts, Host="127.0.0.1:8200", Origin="http://localhost:3000") == ""
    assert refused(hosts, Host="127.0.0.1", Origin="https://console.lan", Sec_Fetch_Site="cross-site") == ""
    for mode, code in (("navigate", ""), ("no-cors", "origin_not_allowed")):
        assert refused(hosts, Host="127.0.0.1", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode=mode) == code


def test_clients_are_asked_for_no_page_since_theirs_may_come_through_a_proxy() -> None:
    hosts = of_clients(Config())
    assert hosts is not None
    assert refused(hosts, Host="127.0.0.1", Origin="https://chat.example.org") == ""
    assert refused(hosts, Host="evil.example") == "host_not_allowed"


def test_a_server_of_clients_beyond_loopback_answers_to_any_name_unless_some_are_stated() -> None:
    assert of_clients(Config(http=HttpConfig(host="0.0.0.0"))) is None
    hosts = of_clients(Config(http=HttpConfig(host="0.0.0.0", allowed_hosts="ai.lan")))
    assert hosts is not None
    assert (refused(hosts, Host="ai.lan"), refused(hosts, Host="evil.example")) == ("", "host_not_allowed")


def test_a_refusal_is_logged_once_of_each_name_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    hosts = of_operators(Config())
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            refused(hosts, Host=f"evil-{number % 50}.example")
    assert len(caplog.records) == 20
    assert caplog.records[0].setting == SETTING  # type: ignore[attr-defined]
