"""Models with names of their own: a table says which weight is which of HookedTransformer's."""
