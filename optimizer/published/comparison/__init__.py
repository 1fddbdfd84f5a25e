"""Compares placement methods: graphs × clusters × engines × reductions × cost models × seeds.

Each case is solved in a process of its own, scored under one yardstick (`contended`, `strict`), and
kept as a row under a key of all that decides it, so that an interrupted comparison goes on where it
ended.
"""
