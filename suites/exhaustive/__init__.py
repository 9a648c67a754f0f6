"""Laws computed exactly, by walking every outcome of the randomness."""
