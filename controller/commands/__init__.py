"""The subcommands of `controller`, one file each.

Each has PURPOSE (a line of help), `add_arguments(parser)` and `run(arguments) -> exit code`, and
imports heavy modules only when it runs. Results go to standard output; with `--json` they are one
JSON document, and everything else goes to standard error.
"""
