"""Times as people write and read them: one rule wherever one may be said, whatever zone the machine is in, and one form back."""

import time
from collections.abc import Iterator

import pytest

from adapters.clickhouse.pages import BadQueryError
from adapters.times import BadMomentError, Moment, moment_of, utc
from services.cli.main import main
from services.cli.parser import build_parser
from services.projector.api_why import moment_asked
from services.projector.parameters import take_time
from services.projector.since import since_of

AT_NS = 1_796_001_600_000_000_000
NOW_NS = AT_NS + 10**12


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the machine be in a zone that is far from UTC: nothing may come of it."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


WRITTEN = {
    "2026-11-30T01:20:00Z": Moment(at_ns=AT_NS),
    "2026-11-30t01:20:00z": Moment(at_ns=AT_NS),
    "2026-11-30 01:20:00": Moment(at_ns=AT_NS),
    "2026-11-30T01:20": Moment(at_ns=AT_NS),
    "2026-11-29T20:20:00.000-05:00": Moment(at_ns=AT_NS),
    "2026-11-30T02:50:00+01:30": Moment(at_ns=AT_NS),
    "2026-11-30T02:50:00 01:30": Moment(at_ns=AT_NS),
    "2026-11-30T01:20:00.25Z": Moment(at_ns=AT_NS + 250_000_000),
    "2026-11-30": Moment(at_ns=AT_NS - 4800 * 10**9),
    "1796001600": Moment(at_ns=AT_NS),
    "1796001600.25": Moment(at_ns=AT_NS + 250_000_000),
    "90s": Moment(ago_ns=90 * 10**9),
    "-90s": Moment(ago_ns=90 * 10**9),
    "10m": Moment(ago_ns=600 * 10**9),
    "5 minutes ago": Moment(ago_ns=300 * 10**9),
    "2 h ago": Moment(ago_ns=7200 * 10**9),
    "7d": Moment(ago_ns=7 * 86_400 * 10**9),
    "now": Moment(),
}
NONE = ("yesterday", "", "10w", "2026-13-01", "2026-11-30T25:00Z", "0001-01-01", "99999999999999", "1.5", "1e9", "٣m")


@pytest.mark.parametrize("text", WRITTEN)
def test_a_time_is_read_by_one_rule_wherever_it_may_be_said(text: str):
    meant = WRITTEN[text]
    assert moment_of(text) == meant
    at_ns = meant.stamp_ns(NOW_NS)
    assert take_time({"from": text}, "from", NOW_NS, 0) == at_ns
    assert moment_asked("", text) == meant
    if text != "2026-11-30":  # which is a place of the feed as well: 2026 events, 11 control events, 30 decisions
        assert since_of(text).moment == meant
    parse = build_parser().parse_args
    assert parse(["at", text]).moment == meant
    assert parse(["events", "tail", "--since", text]).since == meant
    assert parse(["telemetry", "--since", text]).since == text
    assert parse(["plan", "--from-history", text]).from_history == meant
    verify = parse(["audit", "verify", "--from", text, "--to", text])
    asked = parse(["audit", "what-if", "--from", text, "--to", text])
    assert [verify.begin, verify.end, asked.since, asked.until] == [meant] * 4


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_time_is_refused_everywhere_with_what_it_may_be(text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BadMomentError, match=r"must be a time \(2026-11-30T01:20:00Z; without a zone it is UTC\), "):
        moment_of(text)
    for words in (
        ["at", text],
        ["events", "tail", "--since", text],
        ["telemetry", "--since", text],
        ["plan", "--from-history", text],
        ["audit", "verify", "--from", text],
        ["audit", "what-if", "--to", text],
    ):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert "a time (2026-11-30T01:20:00Z; without a zone it is UTC), seconds since 1970, how long ago" in err
        assert err.count("\n") == 1
    if text:
        with pytest.raises(BadQueryError, match="from: must be a time"):
            take_time({"from": text}, "from", NOW_NS, 0)
        with pytest.raises(BadQueryError, match="since: must be a place"):
            since_of(text)
        with pytest.raises(BadQueryError, match="time: must be a version"):
            moment_asked("", text)


def test_a_small_number_is_what_the_asker_counts_and_else_no_time():
    assert moment_of("812", "a version (812)") == Moment(number=812)
    assert moment_of("999999999", "a version (812)") == Moment(number=999_999_999)
    assert moment_of("1000000000", "a version (812)") == Moment(at_ns=10**18)
    assert build_parser().parse_args(["audit", "verify", "--from", "812"]).begin == Moment(number=812)
    with pytest.raises(BadMomentError, match="must be a time"):
        moment_of("812")
    with pytest.raises(BadQueryError, match="from: must be a time"):
        take_time({"from": "812"}, "from", NOW_NS, 0)


def test_how_long_ago_counts_back_from_an_end_and_never_before_the_beginning_of_time():
    assert moment_of("90s").stamp_ns(NOW_NS) == NOW_NS - 90 * 10**9
    assert moment_of("2h").stamp_ns(10**9) == 0
    assert moment_of("2026-11-30T01:20:00Z").stamp_ns(NOW_NS) == AT_NS


def test_a_stamp_is_shown_as_it_may_be_said_again():
    stamp_ns = AT_NS + 123_999_999
    assert utc(stamp_ns) == "2026-11-30T01:20:00.123Z"
    assert (utc(stamp_ns, "seconds"), utc(stamp_ns, "microseconds")) == (
        "2026-11-30T01:20:00Z",
        "2026-11-30T01:20:00.123999Z",
    )
    assert moment_of(utc(stamp_ns, "microseconds")) == Moment(at_ns=AT_NS + 123_999_000)
    assert (utc(10**30), utc(-(10**30))) == ("9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")
