"""The environment variables that would make NCCL or gloo use RDMA, which passes by every queue."""

from __future__ import annotations

from collections.abc import Mapping

# What keeps NCCL on sockets, whatever libraries and settings a server has.
NCCL_OVER_SOCKETS: Mapping[str, str] = {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}
_GLOO = "GLOO_DEVICE_TRANSPORT"
_GLOO_OVER_SOCKETS = "TCP"


def rdma_choices(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of this environment that choose RDMA, or a network of a plugin, with
    the values that choose sockets."""
    found = {
        name: instead
        for name, instead in NCCL_OVER_SOCKETS.items()
        if environment.get(name, instead).strip().lower() != instead.lower()
    }
    if "ibverbs" in environment.get(_GLOO, "").lower():
        found[_GLOO] = _GLOO_OVER_SOCKETS
    return found
