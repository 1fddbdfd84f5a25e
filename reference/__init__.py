"""Makes docs/reference from the code: `make reference` writes it, and a test compares it.

models     the keys of a file, from its frozen types
commands   the arguments of a command, from its parser
text       Markdown within 100 columns
pages      the text of each page
"""
