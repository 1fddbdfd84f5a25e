"""Traces of steps for chrome://tracing and ui.perfetto.dev: predicted, measured, or both.

document   devices and their spans, written to a Trace Event file and read back
predicted  the trace of a placement's simulated step
merging    merges several traces, every device beside its prediction
"""
