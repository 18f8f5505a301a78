"""Makkuva et al. (ICLR 2025): one-layer transformers on Markov chains, and the unigram they stop at."""
