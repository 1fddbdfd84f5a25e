"""The agent's figures, measured on the servers and labs of its tests."""
