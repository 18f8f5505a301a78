"""Shi & Cao, random walks on a circle (NeurIPS 2025, arXiv 2511.23239): figures 4, 5, 8 and 9."""
