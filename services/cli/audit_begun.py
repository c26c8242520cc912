"""Whom an audit takes for the operator, and for the master, where it looks who began a generation."""

from pathlib import Path

from adapters.keys import load_credentials
from adapters.log.generations import Beginners
from services.cli.audit_copies import operator_of
from services.cli.audit_source import Opened, Source


def beginners_of(source: Source, at: Opened) -> Beginners:
    """Return who may have begun one, by the operator's key that is here, else by the copy's manifest."""
    if source.key:
        operator = load_credentials(Path(source.key))
        master = operator.master_public if source.relaxed else ""
        return Beginners(cluster=source.cluster, operator=operator_of(operator), master=master)
    header = at.copy.header if at.copy is not None else None
    named = header.operator if header is not None and isinstance(header.operator, str) else ""
    return Beginners(cluster=source.cluster, operator=named, master=header.public if header is not None else "")
