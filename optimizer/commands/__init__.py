"""The subcommands of `optimizer`, one file each, loaded only when asked for.

Each has `main(arguments, prog) -> exit code`. Results go to standard output, progress and errors to
standard error.
"""
