import functools
import subprocess
import sys

import pytest

from domain.control.overrides import INITIAL, ChangeSettings, ClearSettings, StateFile, Stored, decide, evolve
from domain.control.settings import SETTINGS, checked_value, parse_value, parse_values, setting_of, show_value
from domain.errors import BadSettingError
from domain.events import SettingChanged, SettingCleared, SettingStated, SettingUnstated
from tests.support.tidy import ROOT

DEPTH, IDLE = SETTINGS["scheduling_backend_depth"], SETTINGS["offload_probe_idle"]
STREAMS = SETTINGS["offload_streams"]


def given(*events):
    return functools.reduce(evolve, events, INITIAL)


def changed(name, value):
    return SettingChanged(name=f"cluster.{name}", value=value)


def stated(name, value):
    return SettingStated(name=f"cluster.{name}", value=value)


def test_every_default_is_the_contracts():
    assert {name: show_value(setting, setting.default) for name, setting in SETTINGS.items()} == {
        "offload_decisions_retention": "30d",
        "offload_hold_for_faster_helper": "on",
        "offload_keep_while_likely": "on",
        "offload_lease_ttl": "30s",
        "offload_lent_stall_timeout": "3m",
        "offload_probe_idle": "5s",
        "offload_restore_delay": "1500ms",
        "offload_streams": "on",
        "scheduling_backend_depth": "2",
        "scheduling_context_reserve": "256",
        "scheduling_hard_switch": "off",
        "scheduling_min_samples": "20",
        "scheduling_refresh_interval": "1m",
        "scheduling_sample_window": "1d",
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_every_bound_of_a_setting_is_its_own_and_one_beyond_is_refused(name):
    setting = SETTINGS[name]
    for value in (setting.minimum, setting.default, setting.maximum):
        assert parse_value(setting, show_value(setting, value)) == value
    for value in (setting.minimum - 1, setting.maximum + 1):
        with pytest.raises(BadSettingError, match=f"setting {name}: must be"):
            checked_value(setting, value)


def test_a_batch_is_changed_in_order_of_name_with_or_without_the_prefix():
    when = ChangeSettings(values={"cluster.scheduling_backend_depth": 4, "offload_probe_idle": 0})
    assert decide(when, given()) == [changed("offload_probe_idle", 0), changed("scheduling_backend_depth", 4)]


def test_a_batch_with_one_bad_value_changes_nothing():
    when = ChangeSettings(values={"offload_probe_idle": 0, "scheduling_backend_depth": 65})
    with pytest.raises(BadSettingError, match="setting scheduling_backend_depth: must be 1 to 64, got 65"):
        decide(when, given())


def test_a_value_that_holds_already_is_not_said_again():
    history = changed("offload_probe_idle", 0)
    when = ChangeSettings(values={"offload_probe_idle": 0, "scheduling_backend_depth": 2})
    assert decide(when, given(history)) == [changed("scheduling_backend_depth", 2)]


def test_a_cleared_override_is_gone_and_clearing_it_again_is_nothing():
    clear = ClearSettings(names=("cluster.offload_probe_idle",))
    history = [changed("offload_probe_idle", 0)]
    cleared = SettingCleared(name="cluster.offload_probe_idle")
    assert decide(clear, given(*history)) == [cleared]
    assert decide(clear, given(*history, cleared)) == []


def test_what_the_file_states_replaces_what_it_stated_before_in_order_of_name():
    before = [stated("offload_probe_idle", 7), stated("offload_streams", 0), stated("scheduling_backend_depth", 3)]
    when = StateFile(
        values={"cluster.scheduling_backend_depth": 4, "offload_lease_ttl": 9_000_000, "offload_streams": 0}
    )
    then = decide(when, given(*before))
    assert then == [
        stated("offload_lease_ttl", 9_000_000),
        SettingUnstated(name="cluster.offload_probe_idle"),
        stated("scheduling_backend_depth", 4),
    ]
    assert decide(when, given(*before, *then)) == []


def test_a_file_with_one_bad_value_states_nothing():
    for bad in ({"offload_probe_idle": 7, "scheduling_backend_depth": 65}, {"offload_probe_idle": 7, "nope": 1}):
        with pytest.raises(BadSettingError):
            decide(StateFile(values=bad), given())


def test_the_file_and_the_operators_do_not_take_each_others_values_away():
    both = given(stated("offload_streams", 0), changed("offload_streams", 1))
    assert both == Stored(overrides={"offload_streams": 1}, stated={"offload_streams": 0})
    assert decide(ClearSettings(names=("offload_streams",)), both) == [SettingCleared(name="cluster.offload_streams")]
    assert decide(StateFile(values={}), both) == [SettingUnstated(name="cluster.offload_streams")]


def test_a_name_of_an_older_release_is_stated_no_more():
    assert decide(StateFile(values={}), given(stated("older", 1))) == [SettingUnstated(name="cluster.older")]


def test_clearing_with_one_unknown_name_clears_nothing():
    with pytest.raises(BadSettingError, match="'nope': unknown"):
        decide(ClearSettings(names=("offload_probe_idle", "nope")), given(changed("offload_probe_idle", 7)))


def test_an_unknown_name_is_refused_and_the_known_ones_listed():
    for command in (ChangeSettings(values={"nope": 1}), ClearSettings(names=("nope",)), StateFile(values={"nope": 1})):
        with pytest.raises(BadSettingError, match="'nope': unknown; known are offload_decisions_retention"):
            decide(command, given())


def test_an_override_of_an_older_release_can_still_be_cleared():
    assert decide(ClearSettings(names=("older",)), given(changed("older", 1))) == [SettingCleared(name="cluster.older")]


@pytest.mark.parametrize(
    ("setting", "written", "value"),
    [
        (IDLE, "5s", 5_000_000),
        (IDLE, "1.5s", 1_500_000),
        (IDLE, "0.25 m", 15_000_000),
        (IDLE, "7us", 7),
        (DEPTH, 3, 3),
        (DEPTH, "3", 3),
        (STREAMS, False, 0),
        (STREAMS, "On", 1),
    ],
)
def test_what_people_write_is_read_in_the_settings_unit(setting, written, value):
    assert parse_value(setting, written) == value


@pytest.mark.parametrize(
    ("setting", "written"),
    [
        (IDLE, 5),
        (IDLE, "5"),
        (IDLE, "-1s"),
        (IDLE, "0.5us"),
        (IDLE, "2d"),
        (IDLE, True),
        (DEPTH, 2.0),
        (DEPTH, "2s"),
        (DEPTH, True),
        (DEPTH, "²"),
        (STREAMS, "2"),
        (STREAMS, ""),
    ],
)
def test_what_could_be_read_two_ways_or_not_at_all_is_refused(setting, written):
    with pytest.raises(BadSettingError, match=f"setting {setting.name}: must be"):
        parse_value(setting, written)


def test_a_files_settings_are_read_all_or_none():
    assert parse_values({"cluster.offload_streams": False, "offload_probe_idle": "9s"}) == {
        "offload_probe_idle": 9_000_000,
        "offload_streams": 0,
    }
    with pytest.raises(BadSettingError):
        parse_values({"offload_streams": False, "offload_probe_idle": "soon"})


def test_a_stored_name_is_the_full_one_and_a_bare_one_means_the_same():
    assert given(changed("offload_streams", 0)) == Stored(overrides={"offload_streams": 0})
    assert given(changed("offload_streams", 0), SettingCleared(name="offload_streams")) == Stored()
    assert given(stated("offload_streams", 0)) == Stored(stated={"offload_streams": 0})
    assert given(stated("offload_streams", 0), SettingUnstated(name="offload_streams")) == Stored()


def test_a_setting_is_found_with_or_without_its_prefix():
    assert setting_of("cluster.offload_streams") is setting_of("offload_streams")


def test_the_reference_is_what_its_script_makes_of_the_table():
    made = subprocess.run(
        [sys.executable, "docs/reference/settings.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
