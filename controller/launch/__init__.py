"""Ranks and other programs: started on servers, followed, and ended."""
