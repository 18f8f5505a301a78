"""Edelman et al., the evolution of statistical induction heads (NeurIPS 2024, arXiv 2402.11004)."""
