"""Recompute (placeholder until complete)."""
