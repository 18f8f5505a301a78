"""What tokens are made by: tokenisers, dictionaries, and chains of symbols."""
