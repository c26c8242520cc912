"""Which nodes a gateway believes can serve a model."""

from pathlib import Path

from domain.events import (
    Draining,
    Loaded,
    LoadFailed,
    ModelInfo,
    NodeHealthChanged,
    NodeRetired,
    Registered,
    Stopped,
)
from domain.ids import Incarnation, ModelId, NodeId
from services.gateway.catalogue import Catalogue

N1, N2 = NodeId("n1"), NodeId("n2")
LIFE, NEXT_LIFE, NOBODY = Incarnation("a" * 32), Incarnation("b" * 32), Incarnation("")
M, OTHER = ModelId("org/m"), ModelId("other")


def registered(*models: ModelId, url: str = "http://127.0.0.1:8101", ready: bool = True) -> Registered:
    infos = tuple(ModelInfo(id=model, local_id="x", ready=ready) for model in models)
    return Registered(url=url, models=infos, version="0", depth=2)


def able(catalogue: Catalogue, model: ModelId = M) -> list[NodeId]:
    return [holder.node for holder in catalogue.candidates(model)]


def with_two(path: Path) -> Catalogue:
    catalogue = Catalogue(path / "catalogue.json")
    catalogue.apply(N2, LIFE, registered(M))
    catalogue.apply(N1, LIFE, registered(M, OTHER))
    return catalogue


def test_the_nodes_that_hold_a_model_are_candidates_in_order_of_id(tmp_path: Path):
    catalogue = with_two(tmp_path)
    assert able(catalogue) == [N1, N2]
    assert able(catalogue, OTHER) == [N1]
    assert list(catalogue.models()) == [M, OTHER]
    assert not catalogue.knows(ModelId("none"))


def test_a_node_whose_engine_is_down_or_that_leaves_is_known_and_no_candidate(tmp_path: Path):
    for event in (LoadFailed(model=M, cause="own", reason="x"), Draining(), Stopped()):
        catalogue = with_two(tmp_path)
        catalogue.apply(N1, LIFE, event)
        assert able(catalogue) == [N2]
        catalogue.apply(N2, LIFE, event)
        assert able(catalogue) == []
        assert catalogue.knows(M)
        catalogue.apply(N2, NEXT_LIFE, registered(M))
        assert able(catalogue) == [N2]


def test_an_engine_that_comes_back_makes_its_node_a_candidate_again(tmp_path: Path):
    catalogue = Catalogue(tmp_path / "catalogue.json")
    catalogue.apply(N1, LIFE, registered(M, ready=False))
    assert able(catalogue) == []
    catalogue.apply(N1, LIFE, Loaded(model=M, load_us=1, cause="own"))
    assert able(catalogue) == [N1]


def test_a_model_that_shares_its_runtime_is_asked_of_where_it_is_loaded_and_else_of_who_can_load_it(tmp_path: Path):
    catalogue = Catalogue(tmp_path / "catalogue.json")
    info = ModelInfo(id=M, local_id="x", ready=False, runtime="gpu0")
    for node in (N1, N2):
        catalogue.apply(node, LIFE, Registered(url="http://127.0.0.1:1", models=(info,), version="0", depth=2))
    assert able(catalogue) == [N1, N2]
    catalogue.apply(N2, LIFE, Loaded(model=M, load_us=1, cause="own"))
    assert able(catalogue) == [N2]
    catalogue.apply(N2, NOBODY, NodeHealthChanged(node=N2, state="offline", reason="x"))
    assert able(catalogue) == [N1]
    catalogue.apply(N1, LIFE, Draining())
    assert able(catalogue) == [N2]


def test_what_an_older_life_of_a_node_said_changes_nothing(tmp_path: Path):
    catalogue = with_two(tmp_path)
    catalogue.apply(N1, NEXT_LIFE, registered(M, url="http://127.0.0.1:9"))
    for event in (LoadFailed(model=M, cause="own", reason="x"), Stopped()):
        catalogue.apply(N1, LIFE, event)
    assert able(catalogue) == [N1, N2]
    assert catalogue.candidates(M)[0].url == "http://127.0.0.1:9"


def test_a_node_of_bad_health_is_asked_only_when_there_is_no_other(tmp_path: Path):
    catalogue = with_two(tmp_path)
    catalogue.apply(N1, NOBODY, NodeHealthChanged(node=N1, state="offline", reason="x"))
    assert able(catalogue) == [N2]
    catalogue.apply(N2, NOBODY, NodeHealthChanged(node=N2, state="unhealthy", reason="x"))
    assert able(catalogue) == [N1, N2]
    catalogue.apply(N1, NOBODY, NodeHealthChanged(node=N1, state="recovered", reason="x"))
    assert able(catalogue) == [N1]
    catalogue.apply(N1, NOBODY, NodeHealthChanged(node=N1, state="stale", reason="x"))
    assert able(catalogue) == [N1]


def test_a_node_that_is_gone_is_not_said_to_be_able_to_serve_though_it_may_be_asked(tmp_path: Path):
    catalogue = with_two(tmp_path)
    assert catalogue.able(M) == 2
    for node, left in ((N1, 1), (N2, 0)):
        catalogue.apply(node, NOBODY, NodeHealthChanged(node=node, state="offline", reason="x"))
        assert catalogue.able(M) == left
    assert able(catalogue) == [N1, N2]
    catalogue.apply(N1, NOBODY, NodeHealthChanged(node=N1, state="recovered", reason="x"))
    assert catalogue.able(M) == 1


def test_a_node_that_the_master_found_gone_since_it_registered_is_gone_in_whatever_order_a_gateway_reads_that(
    tmp_path: Path,
):
    gone = NodeHealthChanged(node=N1, state="offline", reason="x")
    there = NodeHealthChanged(node=N1, state="recovered", reason="x")
    said: list[tuple[int, Incarnation, Registered | NodeHealthChanged]]
    said = [(10, LIFE, registered(M)), (20, NOBODY, gone), (30, NOBODY, there), (40, NOBODY, gone)]
    for facts_first in (True, False):
        catalogue = Catalogue(tmp_path / "catalogue.json")
        catalogue.apply(N2, LIFE, registered(M), at_ns=5)
        for at_ns, life, event in said if facts_first else [*said[1:], said[0]]:
            catalogue.apply(N1, life, event, at_ns=at_ns)
        assert able(catalogue) == [N2], facts_first
        catalogue.apply(N1, NEXT_LIFE, registered(M), at_ns=50)
        assert able(catalogue) == [N1, N2]


def test_a_retired_node_is_forgotten(tmp_path: Path):
    catalogue = with_two(tmp_path)
    catalogue.apply(N1, NOBODY, NodeRetired(node=N1))
    assert able(catalogue) == [N2]
    assert not catalogue.knows(OTHER)


async def test_the_catalogue_on_disk_is_the_catalogue(tmp_path: Path):
    catalogue = with_two(tmp_path)
    catalogue.apply(N1, LIFE, LoadFailed(model=M, cause="own", reason="x"))
    assert catalogue.changed
    await catalogue.save()
    again = Catalogue(tmp_path / "catalogue.json")
    assert again.models() == catalogue.models()
    assert able(again) == [N2]


def test_a_broken_file_is_left_out_with_a_warning(tmp_path: Path):
    (tmp_path / "catalogue.json").write_bytes(b'{"holders":7}')
    assert Catalogue(tmp_path / "catalogue.json").models() == {}
