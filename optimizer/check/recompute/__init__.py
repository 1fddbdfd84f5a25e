"""Computes again, in plain Python, what a placement file claims; an oracle for `check`.

It shares no code with the simulator and the engines. Both are written from one specification
(docs/architecture.md, "How step time is modelled"), so that a mistake in either of them shows.
"""
