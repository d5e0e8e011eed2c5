"""A page for the browser that shows an open store; needs the extra `page`.

    server.py  the thread that serves it, and how it ends
    guard.py   who may look, who may change
    views.py   what each address shows, what each form does
    listing.py one page of what is pending
    history.py rates and lateness of the last hour, as curves

It uses public calls of a store alone; `templates/` has the HTML.
"""

try:
    from timerstore.page.server import PageServer
except ModuleNotFoundError as e:
    if (e.name or "").startswith("timerstore"):
        raise
    told = f"The page needs {e.name}, of the extra page: pip install 'timerstore[page]'"
    raise ModuleNotFoundError(told, name=e.name) from e

__all__ = ["PageServer"]
