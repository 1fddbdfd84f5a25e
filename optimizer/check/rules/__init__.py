"""The rules that a placement file must keep; check.py applies them in order."""
