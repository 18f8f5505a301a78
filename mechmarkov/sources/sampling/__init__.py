"""How sources draw: one uniform number a step, `x_t = min {j : F[x_{t-1}, j] > u_t}`.

F are the cumulated rows of P. On a processor a compiled loop walks through the steps; on a device maps of
states are composed, in as many rounds as T has bits. Both give the same tokens for the same numbers. Sums
over all sequences a chain can give need no samples and are here too.
"""
