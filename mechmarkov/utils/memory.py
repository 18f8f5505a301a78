"""Whether an allocation failed, on the CPU or on a GPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation, which torch reports on the CPU by a plain RuntimeError.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes differ"))
        (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    message = str(error)
    return isinstance(error, RuntimeError) and ("allocate memory" in message or "out of memory" in message)
