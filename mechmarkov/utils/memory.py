"""Whether an allocation failed, on the CPU or on a GPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is out; on the CPU torch says so by a plain RuntimeError.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and ("allocate memory" in said or "out of memory" in said)
