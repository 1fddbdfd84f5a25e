"""All peers of a step: which are compared, and which are left out, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.compare import peers_of
from placewire.optimizer.peers.peer import PeerStep
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import captured, chain, gpus

NAMES = {"ddp", "fsdp", "gpipe", "1f1b", "interleaved-1f1b"}


def compared(
    graphs: Sequence[OperatorGraph], servers: Cluster
) -> tuple[dict[str, PeerStep], list[str]]:
    said: list[str] = []
    found = peers_of(graphs, servers, said.append)
    assert [one.step_seconds for one in found] == sorted(one.step_seconds for one in found)
    return {one.name: one for one in found}, said


def test_every_peer_is_as_good_as_its_variants_let_it_be() -> None:
    servers = cluster(4)
    few, many = chain(4), chain(8)
    both, said = compared([few, many], servers)
    assert set(both) == NAMES and not said
    alone = [compared([graph], servers)[0] for graph in (few, many)]
    for name in NAMES - {"ddp", "fsdp"}:
        assert both[name].step_seconds == min(one[name].step_seconds for one in alone)
    assert both["ddp"] == alone[0]["ddp"]


def test_of_several_graphs_in_the_same_number_the_best_counts() -> None:
    """As where layers may be recomputed."""
    servers, quick = cluster(4), chain(4)
    slow = quick.with_seconds(
        {name: quick.seconds[:, k] * 2 for k, name in enumerate(quick.device_types)}
    )
    expected, _ = compared([quick], servers)
    for both in ([quick, slow], [slow, quick]):
        found, _ = compared(both, servers)
        assert {n: s.step_seconds for n, s in found.items()} == {
            n: s.step_seconds for n, s in expected.items()
        }


def test_without_a_micro_batch_for_each_device_there_is_no_data_parallelism() -> None:
    found, said = compared([chain(8)], cluster(4))
    assert set(found) == NAMES - {"ddp", "fsdp"}
    (line,) = said
    assert "ddp and fsdp are left out" in line and "--accumulate 4)" in line


def test_without_micro_batches_there_is_no_peer() -> None:
    found, said = compared([chain(1)], cluster(2))
    assert not found and ["left out" in line for line in said] == [True, True]


def test_shards_are_no_variant_for_peers() -> None:
    graph = captured("gpt2", 4, shards=4)
    assert graph.notes["shards"] == 4
    found, said = compared([graph], gpus(4))
    assert not found and all("without shards" in line for line in said) and len(said) == 2
    with_whole, said = compared([graph, captured("gpt2", 4)], gpus(4))
    assert set(with_whole) == NAMES and not said


def test_on_one_device_there_is_nothing_to_compare() -> None:
    found, said = compared([chain(4)], cluster(1))
    assert not found and said == [
        "ddp, fsdp and pipelines are left out: the cluster has one device"
    ]


def test_a_peer_that_does_not_fit_is_left_out_with_what_it_needs() -> None:
    roomy, _ = compared([chain(4)], cluster(4))
    least = min(one.memory_bytes for one in roomy.values())
    assert least < roomy["ddp"].memory_bytes
    found, said = compared([chain(4)], cluster(4, memory=roomy["ddp"].memory_bytes - 1))
    assert "ddp" not in found and found
    assert any(line.startswith("ddp is left out: it needs ") for line in said)
    none, said = compared([chain(4)], cluster(4, memory=least - 1))
    assert not none and len(said) == len(NAMES)


def test_a_slower_variant_that_fits_is_taken() -> None:
    """GPipe holds the results of all micro-batches, so that more of them need more memory."""
    graphs = chain(4), chain(16)
    graphs[1].seconds[:] /= 8
    for graph in graphs:
        graph.activation_bytes[graph.activation_bytes > 0] = 1_000_000
    alone = [compared([graph], cluster(2, (1e17,)))[0]["gpipe"] for graph in graphs]
    few, many = alone
    tight = cluster(2, (1e17,), memory=many.memory_bytes - 1)
    assert few.memory_bytes < many.memory_bytes and few.step_seconds > many.step_seconds
    found, _ = compared(graphs, tight)
    assert found["gpipe"].words == few.words


def test_what_names_no_loss_has_no_peer_and_says_so() -> None:
    found, said = compared([chain(4, loss="")], cluster(4))
    assert not found and len(said) == 2
    assert all("does not say which operator makes the loss" in line for line in said)


def test_of_a_decomposed_step_fsdp_is_left_out_and_says_so() -> None:
    """Its state is no parameter, and most of what updates one reads no gradient: a copy that only
    has the parameters and the readers of gradients in shards would need more memory than DDP."""
    found, said = compared([captured("mlp", 4, decompose=True)], gpus(4))
    assert set(found) == NAMES - {"fsdp"}
    (line,) = said
    assert line.startswith("fsdp is left out: in a decomposed step")


def test_servers_that_cannot_send_to_each_other_have_no_peer() -> None:
    first, second = (cluster(1, rates=(1e9,) * rails).servers[0] for rails in (1, 2))
    other = second.model_copy(update={"name": "s2", "nics": second.nics[1:]})
    apart = cluster(2).model_copy(update={"servers": (first, other)})
    found, said = compared([chain(2)], apart)
    assert not found and len(said) == 5
    assert all("cannot reach each other" in line for line in said)
