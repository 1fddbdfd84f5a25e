"""Finds what each operator of a captured step costs.

Times are measured on this machine (`measure`, kept by `cache`), on servers (`exchange`, `joining`),
taken from the traces of ranks (`recorded`), estimated from small batches (`rough`), or modelled for
a named device (`modelled`, `devices`).

Nothing is imported here, so that only a process that measures loads torch.
"""
