"""Reading files that are not trusted; threats and layers are in `docs/reading-untrusted-files.md`."""
