"""Lets all ranks of a group learn what each of them says, by tensors of a fixed size."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from placewire.job.errors import JobError

# What is longer is cut: the message of an error from the operating system is much shorter.
_LONGEST_BYTES = 1024
# Another rank's part may be much larger, or its disk much slower. One that is lost is noticed by
# its closed connection, and by the heartbeat.
_LONGEST = timedelta(days=1)


def failures(group: dist.ProcessGroup | None, own: str) -> dict[int, str]:
    """Returns why ranks failed, by rank of the group, as said_by_all() does. own: why this rank
    failed; "" where it did not."""
    return {rank: why for rank, why in enumerate(said_by_all(group, own)) if why}


def said_by_all(group: dist.ProcessGroup | None, own: str) -> list[str]:
    """Returns what each rank says, by rank of the group; the same on all of them. To be called by
    all at once. group: None where this rank is alone. Raises JobError where a rank is lost."""
    if group is None:
        return [own]
    said = torch.zeros(_LONGEST_BYTES, dtype=torch.uint8)
    text = own.encode()[:_LONGEST_BYTES]
    said[: len(text)] = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)[: len(text)]
    everybody = [torch.empty_like(said) for _ in range(group.size())]
    options = AllgatherOptions()
    options.timeout = _LONGEST
    try:
        group.allgather([everybody], [said], options).wait()
    except RuntimeError as error:
        raise JobError(
            f"lost a peer while a checkpoint was saved: {str(error).splitlines()[0]}",
            "look at the rank that failed first",
        ) from error
    return [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in everybody]
