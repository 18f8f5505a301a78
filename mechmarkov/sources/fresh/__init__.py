"""Families that draw a chain or a kernel for every sequence."""
