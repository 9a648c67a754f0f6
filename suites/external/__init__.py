"""Decoders from outside, judged beside the subject."""
