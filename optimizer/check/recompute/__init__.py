"""Computes again, in plain Python, what a placement file claims; an oracle for `check`.

It shares no code with the simulator and the engines. Both are written from one specification
(docs/design/network-model.md), so that a mistake in either of them shows.
"""
