"""Families that draw a chain or a kernel for every sequence, so that its law must be read from the context.

Where the rows are Dirichlet(alpha), the Bayes-optimal law after n(i, j) moves from i to j is
`p(j | i) = (n(i, j) + alpha_j) / (n(i) + sum(alpha))`.
"""
