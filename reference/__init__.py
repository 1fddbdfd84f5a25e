"""docs/reference, made from the code: `make reference` writes it, a test compares it.

models     the keys of a file, from its frozen types
commands   a command's arguments, from its parser
text       Markdown within 100 columns
pages      which page has what
"""
