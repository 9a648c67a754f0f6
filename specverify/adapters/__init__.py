"""Engines of others as subjects: released decoders, each needing its own package, and processes in whatever language."""
