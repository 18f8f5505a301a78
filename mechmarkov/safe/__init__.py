"""Reading files that are not trusted; threats and layers are in `docs/reading-untrusted-files.md`.

A file is first scanned into a plan, plain values and for each tensor a dtype, a shape and where its bytes
lie, and the plan is checked; only then are the bytes of wanted tensors read. Nothing in a file is executed.
"""
