"""What a family of sources is made of: a frozen model of its parameters that draws sequences.

Every source gives two things. Tokens `x_{1..T}`, integers below K with axes `(sequence, position)`: a
function of its parameters and of a generator only. And its law: for a prefix, the row
`p(x_{t+1} = . | x_{1..t})` in float64, from which entropies, Bayes-optimal predictors and losses in nats
follow. What a file or an argument says is checked once, where the model is made.
"""
