"""Closed forms of Shi & Cao's random walks (2025, arXiv 2511.23239).

The model scores labels by `f(X) = V X softmax(w X)`, trained by gradient descent on `E[-log(f_y + eps)]`;
symmetry reduces it to a few numbers, whose first step, traps and growth rates are exact.
"""
