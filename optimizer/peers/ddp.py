"""DistributedDataParallel: a whole copy of the model on every device.

As torch.nn.parallel.DistributedDataParallel does it (Li et al. 2020, "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", section 3.2): gradients are summed in buckets
of 25 MiB, in the order in which the backward half makes them, the first bucket being 1 MiB; each
sum is a ring over all devices, beside the backward half; updates begin when all sums are there.
Buckets are there all the time, and gradients are views of them (gradient_as_bucket_view). With
zero_grad(set_to_none=True), the default, autograd makes each gradient anew, and DDP copies it into
its bucket by one kernel, which divides it by the number of devices, too (torch 2.13,
csrc/distributed/c10d/reducer.cpp, Reducer::mark_variable_ready_dense; that the view does not save
this copy is said in nn/parallel/distributed.py, under batched_grad_copy, which is off by default).
"""

from __future__ import annotations

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import WITHOUT_SHAPING
from placewire.optimizer.peers.collectives import all_reduce
from placewire.optimizer.peers.peer import PeerStep, peer_step
from placewire.optimizer.peers.replicas import copy_seconds, name_on, replicas, sum_seconds
from placewire.optimizer.peers.step_parts import Gradient, StepParts

_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20


def ddp_step(parts: StepParts, cluster: Cluster) -> PeerStep:
    """parts: of a step with a micro-batch for each device of the cluster. Raises ValueError where
    a device cannot run its part."""
    made = replicas(parts, cluster)
    devices = range(parts.micro_batches)
    done = {d: made.collective(f"all gradients@{d}", d) for d in devices}
    for d in devices:
        readers = {name_on(parts, c, d) for one in parts.gradients for c in one.readers}
        made.then(done[d], sorted(readers))
    for gradient in parts.gradients:
        copied = copy_seconds(parts, cluster, gradient)
        for d in devices:
            made.occupy(parts.graph.ids[gradient.leaves[d]], float(copied[d]))
    for number, bucket in enumerate(_buckets(parts)):
        size = sum(gradient.bytes for gradient in bucket)
        ready = {d: made.collective(f"bucket {number}@{d}", d) for d in devices}
        moved, sums = 4 * size * (1 - 1 / len(devices)), sum_seconds(parts, cluster, bucket)
        for d in devices:
            made.hold(d, size)
            leaves = [gradient.leaves[d] for gradient in bucket]
            for i in leaves:
                made.then(parts.graph.ids[i], [ready[d]])
            made.call(parts.graph.ids[parts.latest(leaves)], moved, float(sums[d]))
        all_reduce(made, f"bucket {number}", ready, size, done)
    problem, timeline, held = made.simulated(WITHOUT_SHAPING)
    words = f"{len(devices)} replicas"
    return peer_step("ddp", words, problem, timeline, held)


def _buckets(parts: StepParts) -> list[list[Gradient]]:
    """In the order in which the first micro-batch makes its gradients."""
    graph = parts.graph
    found: list[list[Gradient]] = []
    room = 0
    for gradient in sorted(parts.gradients, key=lambda one: int(graph.position[one.leaves[0]])):
        if room <= 0:
            found.append([])
            room = _BUCKET_BYTES if len(found) > 1 else _FIRST_BUCKET_BYTES
        found[-1].append(gradient)
        room -= gradient.bytes
    return found
