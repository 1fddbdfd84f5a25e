"""The sharings by name. A new one needs a file here, a name in names.py and a row below."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.optimizer.names import SharingName
from placewire.optimizer.network.even import Even
from placewire.optimizer.network.guarantee import Guarantee
from placewire.optimizer.network.job import Job
from placewire.optimizer.network.sharing import SharingPolicy
from placewire.optimizer.network.strict import Strict
from placewire.optimizer.network.unshaped import Unshaped

SHARINGS: Mapping[SharingName, SharingPolicy] = {
    policy.name: policy for policy in (Strict(), Guarantee(), Job(), Even(), Unshaped())
}
