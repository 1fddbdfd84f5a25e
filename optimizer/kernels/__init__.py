"""Compiled inner loops of the simulator and of the annealer.

Imported only inside functions: loading numba takes longer than most commands. Compiled code is
kept beside these files, or in the user's cache folder where they cannot be written (compiled.py).
"""
