"""`agent doctor`: looks for problems on this server and says what to do; changes nothing."""

from __future__ import annotations

import time
from importlib.metadata import version

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.diagnosis import Diagnosis
from placewire.agent.doctor.findings import exit_code, findings
from placewire.agent.doctor.gather import gather
from placewire.agent.doctor.show import document, print_findings


def diagnose(config: AgentConfig) -> Diagnosis:
    """What `doctor` finds, for the controller. Raises EffectError as `doctor` does."""
    found = findings(gather(config))
    return Diagnosis(findings=found, version=version("placewire"), clock_unix=time.time())


def doctor(config: AgentConfig, *, as_json: bool) -> int:
    """Returns the exit code. Raises EffectError where not even the interfaces can be read."""
    facts = gather(config)
    found = findings(facts)
    if as_json:
        print(document(facts, found))
    else:
        print_findings(facts, found)
    return exit_code(found)
