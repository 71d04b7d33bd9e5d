"""Other systems' files and models -> what the numerics take."""
