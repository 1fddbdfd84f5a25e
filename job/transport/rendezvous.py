"""Lets ranks find each other, and a rank that cannot start tell the others at once.

Rank 0 hosts a key-value store. Every rank connects to it before it captures, and reports there that
it is ready, or that it failed, so that the others need not wait for their time limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.optimizer.device_names import server_of

_POLL = timedelta(seconds=1)
_LOADING = "loading"


def open_store(spec: RankSpec) -> TCPStore:
    """Raises JobError where rank 0 cannot be reached within the time limit."""
    try:
        return TCPStore(
            spec.master_address,
            spec.master_tcp_port,
            spec.world_size,
            is_master=spec.rank == 0,
            timeout=timedelta(seconds=spec.timeout_seconds),
            wait_for_workers=False,
        )
    except (RuntimeError, OSError) as error:
        place = f"{spec.master_address}:{spec.master_tcp_port}"
        doing = "listen on" if spec.rank == 0 else "reach rank 0 at"
        raise JobError(
            f"cannot {doing} {place}: {str(error).splitlines()[0]}",
            "name in job.rendezvous_port a port that is free there and that every server reaches",
        ) from error


def report_failure(store: TCPStore, rank: int, what: str) -> None:
    """Tells the ranks that wait in meet(); does nothing where the store is already gone."""
    with contextlib.suppress(RuntimeError):
        said = what.encode(errors="backslashreplace").decode()
        store.set("failed", f"rank {rank}: {said}")


def tell_loading(store: TCPStore, rank: int, total_bytes: int) -> None:
    """Lets the ranks wait that wait in await_key(); does nothing where the store is already gone.
    total_bytes: that this rank has loaded."""
    with contextlib.suppress(RuntimeError):
        store.set(_LOADING, f"{rank} {total_bytes}")


def meet(store: TCPStore, spec: RankSpec) -> dict[tuple[str, str], str]:
    """Waits until all ranks are ready. Returns the address of each of their servers, by (server,
    rail). Raises JobError as soon as a rank reports that it failed."""
    rails = ",".join(rail.rail for rail in spec.rail_interfaces)
    said = [server_of(spec.device), *(rail.address for rail in spec.rail_interfaces)]
    with _rank_0_there():
        store.set(f"ready/{spec.rank}", f"{rails} {' '.join(said)}")
    addresses: dict[tuple[str, str], str] = {}
    for peer in range(spec.world_size):
        key = f"ready/{peer}"
        answer = await_key(store, spec, key, f"rank {peer} was not ready")
        theirs, server, *places = answer.split(" ")
        names = (rail.rail for rail in spec.rail_interfaces)
        addresses |= {(server, rail): place for rail, place in zip(names, places, strict=False)}
        if theirs != rails:
            raise JobError(
                f"rank {peer} has interfaces on rails {theirs or 'none'}, rank {spec.rank} on "
                f"{rails or 'none'}",
                "give every server of the job one NIC on each rail that the job uses",
            )
    return addresses


def await_key(store: TCPStore, spec: RankSpec, key: str, otherwise: str) -> str:
    """Returns what some rank sets the key to. Raises JobError as soon as a rank reports that it
    failed, and with the message `otherwise` when the key is not set within the time limit, which
    begins anew whenever some rank has loaded more of what the job begins with."""
    deadline, loaded = time.monotonic() + spec.timeout_seconds, b""
    with _rank_0_there():
        while True:
            with contextlib.suppress(dist.DistStoreError):  # not set yet
                store.wait([key], _POLL)
                return str(store.get(key).decode())
            if store.check(["failed"]):
                raise JobError(
                    f"another rank could not start ({store.get('failed').decode()})",
                    "see what that rank reports",
                )
            if store.check([_LOADING]) and (now := store.get(_LOADING)) != loaded:
                deadline, loaded = time.monotonic() + spec.timeout_seconds, now
            if time.monotonic() > deadline:
                longer = (
                    f"; where its model's function takes longer, as to prepare data, give "
                    f"job.start_limit more than {spec.timeout_seconds:g}s, or prepare them before"
                )
                raise JobError(
                    f"{otherwise} after {spec.timeout_seconds:g} s",
                    "see what that rank reports" + (longer if spec.kind == "placed" else ""),
                )


@contextlib.contextmanager
def _rank_0_there() -> Iterator[None]:
    try:
        yield
    except dist.DistError as error:
        raise JobError(
            f"lost rank 0 before the first step: {str(error).splitlines()[0]}",
            "see what rank 0 reports",
        ) from error
