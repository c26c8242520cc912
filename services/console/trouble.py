"""What every page says first: that history is in doubt, that nobody decides, that something cannot be asked."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from services.console.peers import Said

Weight = Literal["alarm", "notice"]


class Trouble(NamedTuple):
    """One thing that an operator has to know."""

    weight: Weight
    text: str
    more: str = ""
    """What to do about it."""


NO_NEW_LEASES: Final = "no new leases; every node serves its own requests"
NOTHING_NEW: Final = "nothing is decided, and what is shown here stands still; every node serves its own requests"
_OF_THE_BUS: Final = (
    "`leaseway status` asks the NATS servers. What happens meanwhile is told once they answer: nothing is lost."
)


def troubles(said: Sequence[Said]) -> list[Trouble]:
    """Return what is to be said of these processes, the worst first."""
    return sorted(_found(said), key=lambda trouble: trouble.weight != "alarm")


def _found(said: Sequence[Said]) -> Iterator[Trouble]:
    masters = [each for each in said if each.name == "master"]
    doubting = [each for each in masters if each.state == "safe_mode"]
    decides = any(each.state == "active" for each in masters)
    for each in doubting:
        yield _doubts(each, another_decides=decides)
    if not doubting and not decides:
        yield _nobody_decides(masters)
    for each in said:
        if each.name == "master":
            if each.state == "active" and each.body.get("bus_connected") is False:
                yield Trouble("alarm", f"The master has no connection to the bus: {NOTHING_NEW}.", _OF_THE_BUS)
            if each.body.get("feed"):
                yield Trouble("notice", f"Decisions are not told on the feed: {each.body['feed']}")
            if each.problem and (decides or doubting):
                yield Trouble("notice", each.problem, "Another master decides." if decides else "")
        elif each.problem:
            yield Trouble("notice", f"{each.problem}", _WITHOUT[each.name])
        elif each.state != "ok":
            yield Trouble("notice", f"{each.name}: {each.state.replace('_', ' ')}", str(each.body.get("error") or ""))


def _doubts(master: Said, *, another_decides: bool) -> Trouble:
    doubt = master.body.get("doubt", "")
    if another_decides:  # then a new generation would take away what that one stands on
        return Trouble(
            "alarm",
            f"SAFE MODE of one master: it grants nothing, since stored history is in doubt: {doubt}",
            f"Look at it with `leaseway audit verify`. Said by the master at {master.url}; another one decides.",
        )
    return Trouble(
        "alarm",
        f"SAFE MODE: nothing is lent, since stored history is in doubt: {doubt}",
        "Look at it with `leaseway audit verify`. `leaseway provision --new-generation --reason TEXT` goes on without what "
        f"is lost, and keeps it. Said by the master at {master.url}; every node serves its own requests.",
    )


def _nobody_decides(masters: Sequence[Said]) -> Trouble:
    if any(each.state == "starting" for each in masters):
        return Trouble("notice", f"The master is still checking stored history: until then {NO_NEW_LEASES}.")
    if any(each.state == "standby" for each in masters):
        return Trouble("alarm", f"No master decides, one stands by: {NO_NEW_LEASES}.")
    return Trouble("alarm", f"No master answers: {NO_NEW_LEASES}.", " ".join(each.problem for each in masters))


_WITHOUT: Final = {
    "projector": "History cannot be asked; nothing of it is lost, its rows come later from the streams.",
    "gateway": "Clients of this gateway are not served; nodes serve those who ask them.",
}
