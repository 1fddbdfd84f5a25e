"""Placewire: where every operator of a training step runs, and the network that carries it.

The folders beside this file are links to the rooms at the top of the repository, so that every tool
sees one ordinary package (docs/decisions/one-namespace.md).
"""
