"""The commands: their names, arguments, options and help, and nothing else.

Each file has a Typer application named `commands`, which `app.py` joins into one. A command checks what it
was given and imports what it does when it runs, so that `tenuto --help` is there at once and wrong usage is
said before anything is loaded or touched.
"""
