"""Makkuva et al., Local to global: learning dynamics and effect of initialization (arXiv 2406.03072)."""
