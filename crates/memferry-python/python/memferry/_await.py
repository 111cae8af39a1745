"""The end of transfers and queries in an event loop."""


def settle(future, value, error):
    """Sets the result of `future`, unless the task that awaited it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


async def query(session, text):
    """Runs a statement. However the coroutine ends, the statement ends with it."""
    running = session._start(text)
    try:
        return await running.future
    finally:
        running.cancel()
