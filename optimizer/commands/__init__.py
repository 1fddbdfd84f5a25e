"""The subcommands of `optimizer`, one file each, loaded only when asked for.

Each has `parser(prog)` and `main(arguments, prog)`, which returns the exit code. Results go to
standard output, progress and errors to standard error.
"""
