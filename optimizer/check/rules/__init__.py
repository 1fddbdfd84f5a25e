"""What a placement file must hold, rule by rule; check.py applies them in order."""
