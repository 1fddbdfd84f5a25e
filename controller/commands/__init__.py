"""The subcommands of `controller`, one file each.

Each has PURPOSE, a line; `add_arguments(parser)`; and `run(arguments) -> exit code`. What is heavy
is loaded when it runs. Results go to standard output; where `--json` makes them one document,
everything else goes to standard error.
"""
