"""The agent's command, as messages name it to people."""

from __future__ import annotations

# Where the playbook puts it. It is on no PATH.
AGENT = "/opt/placewire/.venv/bin/agent"
