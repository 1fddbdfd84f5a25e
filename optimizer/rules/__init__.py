"""What a placement file must hold, rule by rule; `optimizer.check` applies them in order."""
