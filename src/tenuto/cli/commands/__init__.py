"""The commands: their names, arguments, options and help, and nothing else.

Each file has a Typer application named `commands`, which `app.py` joins into one. A command checks what it
was given, so that wrong usage is said before anything is loaded or touched, and imports what is heavy when it
runs, so that `tenuto --help` is there at once.
"""
