"""The agent's figures, on the servers and labs that its tests are made of."""
