"""Tokenised Markov data: a source's symbols, read by a tokeniser."""
