"""Accepted counts and what exactness allows of them."""
