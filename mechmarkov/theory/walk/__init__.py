"""Closed forms of Shi & Cao's random walks (2025, arXiv 2511.23239)."""
