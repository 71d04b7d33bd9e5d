"""Statistics or ranks -> named numbers."""
