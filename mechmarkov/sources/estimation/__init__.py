"""Sequences of somebody's own become a source: states are numbered, histories counted, a law is estimated.

The data structure is a list of integer arrays, one a sequence, and the states' names. The law of order k
draws the counts `n(h, j)` of state j after each history h of k states towards the law of order k - 1, after
h without its oldest state, `P(j | h) = (n(h, j) + a P(j | h')) / (n(h) + a)`, or adds one to each count; the
order is the one that predicts held-out blocks best.
"""
