"""How much of a message is handed over at a time, where the most urgent message goes first.

What the kernel has been given leaves in the order in which it was given. A message that overtakes
others therefore waits for what was handed over before it, which is little: a window of chunks.
"""

from __future__ import annotations

# Parts of messages begin at multiples of this, so that no element is cut in two and every part is
# aligned.
CUT_BYTES = 64
# A chunk takes this long on a rail that carries nothing else, but is never so small that gloo's
# work for it (about 0.1 ms in sender and receiver together) shows, nor so large that a fast rail is
# left no choice of what goes next.
CHUNK_SECONDS = 0.003
LEAST_CHUNK_BYTES = 16 * 1024
MOST_CHUNK_BYTES = 2 * 1024 * 1024
# While one chunk is on its way the next lies ready, so that a connection never waits for the
# process.
WINDOW_CHUNKS = 2


def chunk_bytes(rate_bits_per_second: float) -> int:
    """Returns the largest piece that is sent at once on a rail of this payload rate."""
    exact = rate_bits_per_second / 8 * CHUNK_SECONDS
    return aligned(int(min(max(exact, LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES)))


def window_bytes(rate_bits_per_second: float) -> int:
    """Returns how much of messages to one receiver is handed over at most, on such a rail."""
    return WINDOW_CHUNKS * chunk_bytes(rate_bits_per_second)


def aligned(size_bytes: int) -> int:
    """Returns the multiple of CUT_BYTES from this size on."""
    return max(CUT_BYTES, -(-size_bytes // CUT_BYTES) * CUT_BYTES)
