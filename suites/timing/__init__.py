"""What speculation is worth on this machine."""
