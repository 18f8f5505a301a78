"""Tokenisers, dictionaries, and chains of symbols."""
