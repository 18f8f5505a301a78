"""The checker of certificates: `checks` and the `model` that they read, which nothing else here uses."""
