"""Negative controls: known-bad rules, which the same run must refute."""
