"""How the agent comes onto servers, and away from them: Ansible's playbooks, run for a plan."""
