"""Read other systems' files and models."""
