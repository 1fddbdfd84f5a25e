"""What a user is told to do about agents. On a server systemd runs the agent. A lab has no units:
its agents' logs are in its folder, and its own commands make all of it anew."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

AGENT_UNIT = "placewire-agent"
# What programs in a lab have in their environment: its name, and the folder of its controller.
LAB_VARIABLE = "PLACEWIRE_LAB"
STATE_VARIABLE = "PLACEWIRE_STATE_DIR"


def find_out_why() -> str:
    """Why an agent does not answer."""
    if _lab() is not None:
        return f"{look_into_log()}; where it has ended, {make_lab_anew()}"
    return (
        f"check that the agent runs there (`systemctl status {AGENT_UNIT}`) and reaches the "
        "controller"
    )


def look_into_log() -> str:
    if (lab := _lab()) is not None:
        return f"look into the server's agent.log, of {lab}/*/agent.log"
    return f"look into its agent's log: `journalctl -u {AGENT_UNIT}`"


def restore_by_hand(servers: Sequence[str]) -> str:
    """What a person must do on servers whose agent could not restore. The agent's daemon must be
    stopped, because it keeps the state locked; systemd would restart one that was only killed."""
    if _lab() is not None:
        return f"{look_into_log()}; then {make_lab_anew()}"
    return (
        f"on {', '.join(servers)}, as root: `systemctl stop {AGENT_UNIT}`, then `agent restore`; "
        f"`agent status` shows what is left; then `systemctl start {AGENT_UNIT}`"
    )


def make_lab_anew() -> str:
    lab = os.environ[LAB_VARIABLE]
    return f"`controller lab down {lab}` and then `controller lab up PLAN` make the lab anew"


def _lab() -> Path | None:
    """The folder of the lab that this command is in."""
    if LAB_VARIABLE not in os.environ or STATE_VARIABLE not in os.environ:
        return None
    return Path(os.environ[STATE_VARIABLE]).parent
