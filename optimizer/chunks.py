"""How much of a message is handed over at a time, where the most urgent message goes first.

The operating system sends what it has for one receiver in the order in which it was given, and
shares the NIC between receivers. A message that overtakes others therefore waits for what was
handed over of them, or shares the NIC with it. So little is handed over: a window of chunks for
each receiver.
"""

from __future__ import annotations

import math

from placewire.optimizer.cluster import Cluster, Nic

# Parts of messages begin at multiples of this, so that no element is cut in two and every part is
# aligned.
CUT_BYTES = 64
# A chunk takes this long on a rail that carries nothing else, but is never so small that gloo's
# work for it (about 0.1 ms in sender and receiver together) shows, nor larger than gloo needs to
# copy as many bytes a second as it can: with 256 KiB it reaches nine tenths of that, with this all.
# More would only let the most urgent message wait for longer.
CHUNK_SECONDS = 0.003
LEAST_CHUNK_BYTES = 16 * 1024
MOST_CHUNK_BYTES = 512 * 1024
# While one chunk is on its way the next lies ready, so that a connection never waits for the
# process.
WINDOW_CHUNKS = 2
# The next message, to another receiver, begins to leave when the NIC needs only so long for what is
# left of the more urgent one; it is handed over when the NIC needs twice as long, as much as a
# process takes to hear that something has left and to hand over a chunk. Sooner it would only be in
# the way of what becomes urgent meanwhile, later the NIC would idle.
LOW_WATER_SECONDS = 0.0001


def chunk_bytes(rate_bits_per_second: float) -> int:
    """Returns the largest piece that is sent at once on a rail of this payload rate."""
    exact = rate_bits_per_second / 8 * CHUNK_SECONDS
    return aligned(int(min(max(exact, LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES)))


def window_bytes(rate_bits_per_second: float) -> int:
    """Returns how much of messages to one receiver is handed over at most, on such a rail."""
    return WINDOW_CHUNKS * chunk_bytes(rate_bits_per_second)


def low_water_bytes(rate_bits_per_second: float) -> int:
    """Returns how little is left of a message, on such a rail, when the next one begins to leave to
    another receiver. When twice as much is left, and that one is handed over, this is the last
    chunk, so that its window has room."""
    exact = rate_bits_per_second / 8 * LOW_WATER_SECONDS
    return min(math.ceil(exact), chunk_bytes(rate_bits_per_second) // 2)


def low_water_of(nic: Nic) -> int:
    """Returns that of this NIC in bytes. One that states none has that of its rate."""
    return nic.low_water_bytes or low_water_bytes(nic.rate_bits_per_second)


def pair_window_bytes(one: Nic, other: Nic) -> int:
    """Returns what is handed over at most from one of these NICs to the other, in whole chunks. A
    NIC that states no window has that of its rate; less than the smallest chunks cannot be had."""
    return min(
        _whole_chunks(nic.window_bytes)
        if nic.window_bytes
        else window_bytes(nic.rate_bits_per_second)
        for nic in (one, other)
    )


def with_windows(cluster: Cluster, faster: float = 1.0, fewer_bytes: float = 1.0) -> Cluster:
    """Returns the cluster whose NICs state what they hand over. In slow motion these stand for NICs
    that are so many times faster, and tensors are smaller by fewer_bytes; so is what is stated."""

    def changed(nic: Nic) -> Nic:
        rate = nic.rate_bits_per_second * faster
        window = _whole_chunks(window_bytes(rate) / fewer_bytes)
        least, most = math.ceil(low_water_bytes(rate) / fewer_bytes), window // WINDOW_CHUNKS // 2
        low_water = min(least, most)
        return nic.model_copy(update={"window_bytes": window, "low_water_bytes": low_water})

    servers = (
        server.model_copy(update={"nics": tuple(map(changed, server.nics))})
        for server in cluster.servers
    )
    return cluster.model_copy(update={"servers": tuple(servers)})


def _whole_chunks(window: float) -> int:
    """window: in bytes."""
    chunk = int(window / WINDOW_CHUNKS) // CUT_BYTES * CUT_BYTES
    return WINDOW_CHUNKS * max(chunk, LEAST_CHUNK_BYTES)


def aligned(size_bytes: int) -> int:
    """Returns the multiple of CUT_BYTES from this size on."""
    return max(CUT_BYTES, -(-size_bytes // CUT_BYTES) * CUT_BYTES)
