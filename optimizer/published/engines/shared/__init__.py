"""What several of the published methods have in common."""
