"""Installs the agent on a plan's servers, or removes it, by running Ansible playbooks."""
