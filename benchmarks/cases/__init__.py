"""The code that is measured, written once for both libraries: the library comes in as an argument.

Nothing here imports resilin or torch, so both sides measure the same thing by the same method.
"""
