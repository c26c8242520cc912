"""A stream that is only read: it has what a publisher expects, and takes nothing."""

from collections.abc import Mapping

from domain.errors import PublishRefusedError
from domain.ports import Stored


class ReadOnly:
    """The half of domain.ports.Stream that writes, refused."""

    name: str
    what: str = "a copy"
    """What it is, for whoever tries."""

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str = "",
        expected_last: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Refuse.

        Raises:
            PublishRefusedError: always.
        """
        del subject, body, message_id, expected_last, headers
        raise PublishRefusedError(f"{self.name}: this is {self.what}; it takes no messages")
