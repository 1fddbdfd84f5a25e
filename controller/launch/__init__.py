"""How ranks are started on servers, followed, and ended."""
