"""The papers, claims against measurements: `python -m experiments.random_walks`."""
