"""What a placement file says, computed again in plain Python for `check`.

Nothing here is shared with the simulator or the engines: it is written from the same specification
(docs/architecture.md, "Sharing") by other means, so that one of the two being wrong shows.
"""
