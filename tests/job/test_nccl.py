"""Tests of the NCCL transport, as far as one machine without several GPUs allows."""

from __future__ import annotations

import pytest
import torch

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.messages.receive_window import ReceiveWindow
from placewire.job.transport.backend import backend_notes, transport_of
from placewire.job.transport.nccl_environment import nccl_environment
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import Placement
from tests.free_port import free_port
from tests.placements import cluster_of, placement_of


def messages(*sizes: int) -> list[RankMessage]:
    return [
        RankMessage(index, f"p{index}", 0, size, 1, "s2/0", False, (), ())
        for index, size in enumerate(sizes)
    ]


def test_the_window_bounds_what_is_posted_ahead() -> None:
    first, second, third, fourth = messages(40, 40, 40, 30)
    window = ReceiveWindow([first, second, third, fourth], 100)
    assert window.begin() == [first, second]
    assert window.refill() == []
    assert window.needed(first) == []
    window.consumed(first)
    assert window.refill() == [third]
    window.consumed(second)
    assert window.refill() == [fourth]


def test_what_is_needed_is_posted_with_all_before_it() -> None:
    """NCCL matches by order: out of order, another message would be received in its place."""
    ours = messages(60, 60, 60, 60)
    window = ReceiveWindow(ours, 100)
    assert window.begin() == ours[:1]
    assert window.needed(ours[2]) == ours[1:3]
    window.consumed(ours[2])
    assert window.refill() == []


def test_a_message_above_the_limit_is_posted_alone() -> None:
    ours = messages(500, 10)
    window = ReceiveWindow(ours, 100)
    assert window.begin() == ours[:1]
    window.consumed(ours[0])
    assert window.refill() == ours[1:]


def test_every_step_begins_anew() -> None:
    ours = messages(60, 60)
    window = ReceiveWindow(ours, 100)
    window.begin()
    window.needed(ours[1])
    assert window.begin() == ours[:1]


def test_nccl_is_told_the_rails_and_the_sockets() -> None:
    told = nccl_environment(("eth0", "eth1", "eth2"), 100e9, 4)
    assert told["NCCL_SOCKET_IFNAME"] == "=eth0,eth1,eth2"
    assert told["NCCL_NSOCKS_PERTHREAD"] == "4" and told["NCCL_SOCKET_NTHREADS"] == "4"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in told, "CUDA has read it by then"
    assert told["NCCL_NCHANNELS_PER_NET_PEER"] == "3"
    assert told["NCCL_IB_DISABLE"] == "1", "RDMA would pass the queues by"
    assert nccl_environment(("eth0",), 1e9, 1)["NCCL_SOCKET_NTHREADS"] == "1"
    with pytest.raises(JobError, match="more than NCCL's 64") as refused:
        nccl_environment(("eth0",), 100e9, 17)
    assert "at most 16 sockets" in refused.value.remedy


def pair() -> Placement:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), 1000)])
    return placement_of(graph, cluster_of(2), {"p": "s1/0", "q": "s2/0"})


def spec() -> RankSpec:
    return RankSpec(
        kind="replay", rank=0, world_size=2, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file="", steps=1, backend="nccl",
    )  # fmt: skip


def test_a_placement_of_another_backend_is_refused() -> None:
    with pytest.raises(JobError, match="NCCL cuts them equally"):
        transport_of(spec(), pair(), RankMessages({}, ()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this server has a CUDA device")
def test_a_server_without_cuda_is_told() -> None:
    placement = pair().model_copy(update={"backend": "nccl"})
    with pytest.raises(JobError, match="needs a CUDA device") as refused:
        transport_of(spec(), placement, RankMessages({}, ()))
    assert "job.backend: gloo" in refused.value.remedy


def test_it_says_that_it_is_unverified() -> None:
    assert "unverified on several GPUs" in backend_notes(spec())[0]
    assert backend_notes(spec().model_copy(update={"backend": "gloo"})) == ()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_is_initialised_and_steps_pass_on_one_device() -> None:
    import torch.distributed as dist

    from placewire.job.transport.nccl import NcclTransport

    transport = NcclTransport(RankMessages({}, ()), torch.device("cuda", 0), 1e9)
    transport.connect(dist.HashStore(), 0, 1, ("lo",), 30)  # type: ignore[attr-defined]
    transport.begin_step()
    total = torch.ones(4, device="cuda")
    dist.all_reduce(total, group=transport._groups[True])
    transport.end_step()
    assert total.tolist() == [1.0] * 4
    transport.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_messages_pass_both_ways_between_two_devices() -> None:
    from torch import multiprocessing

    multiprocessing.spawn(_exchange, args=(free_port(),), nprocs=2)  # type: ignore[attr-defined]


def _exchange(rank: int, port: int) -> None:
    """Sends sixteen messages each way over a window of two, and takes them in another order."""
    from datetime import timedelta

    import torch.distributed as dist

    from placewire.job.transport.nccl import NcclTransport

    count, size = 16, 1 << 20
    out = [
        RankMessage(100 * rank + n, "p", 0, size, 1 - rank, f"s{2 - rank}/0", rank == 0, (), ())
        for n in range(count)
    ]
    back = [
        RankMessage(100 * (1 - rank) + n, "q", 0, size, 1 - rank, "s/0", rank == 1, (), ())
        for n in range(count)
    ]
    device = torch.device("cuda", rank)
    ours = RankMessages({"p": tuple(out)}, tuple(back))
    transport = NcclTransport(ours, device, 1e9, window_bytes=2 * size)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=30))  # type: ignore[attr-defined]
    transport.connect(store, rank, 2, ("lo",), 60)
    for step in range(3):
        transport.begin_step()
        for n, message in enumerate(out):
            wire = torch.full((size,), (rank + n + step) % 251, dtype=torch.uint8, device=device)
            transport.send(message, wire)
            transport.complete(message)
            wire.zero_()
        for n in (3, 0, 1, 2, *range(4, count)):
            arrived = transport.receive(back[n])
            assert bool((arrived == (1 - rank + n + step) % 251).all())
        transport.end_step()
    transport.close()
