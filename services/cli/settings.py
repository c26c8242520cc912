"""`leaseway settings list | set | clear`: the settings of the whole cluster."""

import argparse

from domain.control.settings import SETTINGS, setting_of, show_value
from services.cli.desk import desk_of
from services.cli.reach import here
from services.cli.show import Output, Row
from services.lifecycle import EXIT_OK


def run(parsed: argparse.Namespace) -> int:
    """Do what is asked and print the setting or the settings."""
    out = Output(as_json=parsed.json)
    if parsed.action == "list":
        with desk_of(here(parsed)) as desk:
            _list(desk.view().overrides(), out)
        return EXIT_OK
    setting = setting_of(parsed.name)
    with desk_of(here(parsed)) as desk:
        if parsed.action == "set":
            changed = desk.set_setting(setting.name, parsed.value) is not None
        else:
            changed = desk.clear_setting(setting.name) is not None
        value = desk.settings()[setting.name]
    row: Row = {"name": setting.name, "value": value, "unit": setting.unit, "changed": changed}
    out.say(f"{setting.name} is {show_value(setting, value)}{'' if changed else ', as before'}", row)
    return EXIT_OK


def _list(overrides: dict[str, int], out: Output) -> None:
    rows: list[Row] = [
        {
            "name": name,
            "value": overrides.get(name, setting.default),
            "unit": setting.unit,
            "shown": show_value(setting, overrides.get(name, setting.default)),
            "source": "set" if name in overrides else "default",
            "range": f"{show_value(setting, setting.minimum)} to {show_value(setting, setting.maximum)}",
            "about": setting.about,
        }
        for name, setting in SETTINGS.items()
    ]
    columns = {"name": "setting", "shown": "value", "source": "from", "range": "range", "about": "what it is"}
    out.rows("Settings", rows, columns)
