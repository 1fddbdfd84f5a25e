"""Placewire decides where every operator of a training step runs, and shapes the network for it.

The folders beside this file are links to the folders at the top of the repository, so that every
tool sees one ordinary package.
"""
