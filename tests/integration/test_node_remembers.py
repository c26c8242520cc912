"""What a node does not keep for ever: a cluster's helpers and links may come and go for months."""

from domain.actions import FORGET_US
from domain.events import LinkRemoved
from tests.support.lending_pair import pair
from tests.support.local_nodes import grant_of, signed
from tests.support.sessions import sessions


async def test_an_owner_whose_helper_goes_elsewhere_keeps_no_session_for_where_it_was():
    async with pair() as two:
        places = [
            two.helper.url.replace("127.0.0.1", host) for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]")
        ]
        held = []
        for place in places:
            two.grant(url=place)
            assert (await two.ask()).headers["leaseway-served-by"] == "n2"
            held.append(sessions())
        assert held == [held[0]] * len(places)


async def test_a_node_forgets_the_leases_of_a_link_that_was_removed_long_ago():
    async with pair() as two:
        node = two.owner.node
        known = node.reader.read(signed(grant_of(two.link, two.owner, two.helper.url)))
        assert known is not None
        assert node.copies.take(known, node.clock.monotonic_us() - FORGET_US)
        node.control_changed()
        assert len(node.copies) == 1
        node.view.apply(LinkRemoved(link=two.link.link, owner=two.link.owner, owner_model=two.link.owner_model))
        node.control_changed()
        assert len(node.copies) == 0
