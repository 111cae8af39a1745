"""The end of a transfer in an event loop."""


def settle(future, value, error):
    """Sets the result of `future`, unless the task that awaited it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
