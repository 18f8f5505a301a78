"""Where the bigram is: Bietti et al., Birth of a Transformer (NeurIPS 2023, arXiv 2306.00802), and after."""
