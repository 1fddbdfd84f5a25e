"""The program of one rank: `python -m agent.job SPEC.json`.

messages    which messages a rank sends and receives, cut over the rails (pure)
transport   gloo: posting, sending, waiting, counting
rendezvous  how ranks find each other, and learn early that one of them failed
lower       a captured step and a placement -> one straight-line module for this rank
replay      a graph and a placement -> the same messages around operators that only take time
runtime     the step loop of both
events      JSON lines on standard output; signals
"""
