"""HookedTransformer's surface on a decoder: its calls, its config and its weights, for TransformerLens' tools."""
