"""HookedTransformer's surface on a decoder, for TransformerLens' tools: calls, config and weights."""
