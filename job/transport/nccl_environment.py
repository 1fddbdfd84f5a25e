"""The environment variables that NCCL reads when its first communicator is made."""

from __future__ import annotations

from collections.abc import Sequence

from placewire.job.contract.rdma import NCCL_OVER_SOCKETS
from placewire.job.errors import JobError

# NCCL refuses more sockets than this between two ranks on one NIC (threads x sockets per thread).
MOST_SOCKETS = 64
# One helper thread of NCCL copies about this much; NCCL has one unless told otherwise.
BITS_PER_SECOND_A_THREAD = 25e9
MOST_THREADS = 16


# A waiting receive must not hold up what another stream launches after it. CUDA reads this when a
# process uses its first device.
BEFORE_CUDA = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def nccl_environment(
    interfaces: Sequence[str], rate_bits_per_second: float, sockets_per_rail: int
) -> dict[str, str]:
    """interfaces: of all rails. rate_bits_per_second: of the fastest rail. Raises JobError where
    NCCL would refuse the number of sockets.

    Source: NCCL's documentation of its environment variables (2.23 and later).
    """
    threads = min(max(round(rate_bits_per_second / BITS_PER_SECOND_A_THREAD), 1), MOST_THREADS)
    if threads * sockets_per_rail > MOST_SOCKETS:
        raise JobError(
            f"{sockets_per_rail} sockets for each of {threads} threads are more than NCCL's "
            f"{MOST_SOCKETS}",
            f"use at most {MOST_SOCKETS // threads} sockets per rail",
        )
    return {
        # In `NAME==a,b` the second "=" asks for exactly these names; without it they are prefixes.
        "NCCL_SOCKET_IFNAME": "=" + ",".join(interfaces),
        "NCCL_SOCKET_NTHREADS": str(threads),
        "NCCL_NSOCKS_PERTHREAD": str(sockets_per_rail),
        # Queues and policing apply to IP packets; RDMA would bypass them.
        **NCCL_OVER_SOCKETS,
        # Rails are separate networks: a NIC of one rail cannot reach a NIC of another.
        "NCCL_CROSS_NIC": "0",
        # At least one channel per NIC, or a send between two ranks would use one NIC only.
        "NCCL_NCHANNELS_PER_NET_PEER": str(max(2, len(interfaces))),
    }
