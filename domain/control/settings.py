"""Every `cluster.*` setting: its default, its range and its unit, in one table. Values are integers.

In code a name is bare; stored events carry it with its prefix `cluster.`, and people may write either. Durations are
microseconds, switches are 0 or 1. People and files write them as text (`90s`, `1.5s`, `30d`, `on`): `parse_value` and
`show_value` translate.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from domain.errors import BadSettingError
from domain.spelling import did_you_mean

Unit = Literal["us", "tokens", "count", "bool"]
PREFIX: Final = "cluster."
_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SWITCH: Final = {"on": 1, "true": 1, "yes": 1, "off": 0, "false": 0, "no": 0}
_DURATION: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))? *(us|ms|s|m|h|d)")
_WHOLE: Final = re.compile(r"[0-9]{1,15}")


class Setting(msgspec.Struct, frozen=True):
    """One setting. Its value is an integer from `minimum` to `maximum` in `unit`."""

    name: str
    default: int
    minimum: int
    maximum: int
    unit: Unit
    about: str


def _seconds(count: int) -> int:
    return count * _US["s"]


def _days(count: int) -> int:
    return count * _US["d"]


SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("offload_decisions_retention", _days(30), _days(1), _days(3650), "us", "how long decisions are kept"),
        Setting("offload_hold_for_faster_helper", 1, 0, 1, "bool", "keep a request for a helper that ends it sooner"),
        Setting("offload_keep_while_likely", 1, 0, 1, "bool", "keep a borrowed model while its next visit is likelier"),
        Setting("offload_lease_ttl", _seconds(30), _seconds(3), _seconds(600), "us", "lifetime of a lease"),
        Setting(
            "offload_lent_stall_timeout",
            _seconds(180),
            _seconds(10),
            _days(1),
            "us",
            "silence of a helper until the master asks it what it still runs",
        ),
        Setting("offload_probe_idle", _seconds(5), 0, _days(1), "us", "idle time of a helper until it gets a probe"),
        Setting(
            "offload_restore_delay", 1_500_000, 0, _seconds(3600), "us", "quiet time until a displaced model is loaded"
        ),
        Setting("offload_streams", 1, 0, 1, "bool", "lend held streaming requests too"),
        Setting("scheduling_backend_depth", 2, 1, 64, "count", "requests of a linked model in its engine at once"),
        Setting("scheduling_context_reserve", 256, 0, 1_000_000, "tokens", "window kept for the answer, at least"),
        Setting(
            "scheduling_hard_switch",
            0,
            0,
            1,
            "bool",
            "price a helper by the owner's samples alone until it has min_samples of its own",
        ),
        Setting(
            "scheduling_min_samples", 20, 2, 50, "count", "samples from when on a price is called the helper's own"
        ),  # a model's last 50 are kept
        Setting(
            "scheduling_refresh_interval",
            _seconds(60),
            _seconds(1),
            _seconds(3600),
            "us",
            "longest time without a plan",
        ),
        Setting("scheduling_sample_window", _days(1), _seconds(60), _days(30), "us", "age up to which samples count"),
    )
}
"""By name, in order of name."""


def setting_of(name: str) -> Setting:
    """Return the setting `name`, which may carry the prefix `cluster.`.

    Raises:
        BadSettingError: there is no such setting.
    """
    setting = SETTINGS.get(name.removeprefix(PREFIX))
    if setting is None:
        perhaps = did_you_mean(name.removeprefix(PREFIX), SETTINGS)
        raise BadSettingError(f"setting {name[:80]!r}: unknown; known are {', '.join(sorted(SETTINGS))}{perhaps}")
    return setting


def checked_value(setting: Setting, value: int) -> int:
    """Return `value`, which is in the setting's own unit.

    Raises:
        BadSettingError: it is outside the setting's range.
    """
    if not setting.minimum <= value <= setting.maximum:
        low, high = show_value(setting, setting.minimum), show_value(setting, setting.maximum)
        raise BadSettingError(f"setting {setting.name}: must be {low} to {high}, got {show_value(setting, value)}")
    return value


def parse_value(setting: Setting, value: float | bool | str) -> int:  # noqa: FBT001  # a file's own boolean
    """Return what a person or a file wrote, in the setting's own unit and within its range.

    A duration needs its unit (`5s`): a bare number would leave open which one was meant.

    Raises:
        BadSettingError: it is not of the setting's kind, or outside its range.
    """
    text = ("on" if value else "off") if isinstance(value, bool) else str(value).strip().lower()
    parsed = _READERS[setting.unit](text)
    if parsed is None:
        raise BadSettingError(f"setting {setting.name}: must be {_RULES[setting.unit]}, got {str(value)[:80]!r}")
    return checked_value(setting, parsed)


def parse_values(values: Mapping[str, float | bool | str]) -> dict[str, int]:
    """Return a file's settings by bare name, in their own units.

    Raises:
        BadSettingError: one of them is unknown, of another kind, or outside its range.
    """
    settings = [(setting_of(name), value) for name, value in sorted(values.items())]
    return {setting.name: parse_value(setting, value) for setting, value in settings}


def show_value(setting: Setting, value: int) -> str:
    """Return `value` as people write it: in the largest unit that leaves no rest: `1500ms`, `1d`, `on`, `256`."""
    if setting.unit == "bool":
        return {0: "off", 1: "on"}.get(value, str(value))
    if setting.unit != "us":
        return str(value)
    if value == 0:
        return "0s"
    unit = next(unit for unit in ("d", "h", "m", "s", "ms", "us") if value % _US[unit] == 0)
    return f"{value // _US[unit]}{unit}"


def _duration_us(text: str) -> int | None:
    """Return a duration's microseconds; None if `text` is no duration or holds a part of a microsecond."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    whole, part, unit = found.group(1), found.group(2) or "", found.group(3)
    scaled = int(whole + part) * _US[unit]
    microseconds, rest = divmod(scaled, 10 ** len(part))
    return None if rest else microseconds


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


_READERS: Final[Mapping[Unit, Callable[[str], int | None]]] = {
    "us": _duration_us,
    "tokens": _whole,
    "count": _whole,
    "bool": _SWITCH.get,
}
_RULES: Final[Mapping[Unit, str]] = {
    "us": "a duration with its unit (us, ms, s, m, h or d), such as 90s",
    "tokens": "a whole number of tokens",
    "count": "a whole number",
    "bool": "on or off",
}
