"""Steps on a time axis, for chrome://tracing and ui.perfetto.dev: predicted, measured, or both.

document   devices and their spans, as a Trace Event file and back
predicted  what the simulator says of a placement
merging    several files as one, every device beside its prediction
"""
