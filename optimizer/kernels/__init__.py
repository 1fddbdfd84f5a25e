"""Inner loops of the simulator, the search and the bounds, compiled by numba.

Loading numba takes longer than most commands run, so commands import these modules late. Compiled
code is kept beside these files, or in the user's cache folder where they cannot be written
(compiled.py).
"""
