"""Inject faults on purpose, and judge whether a job stood them: what `resilin chaos` is made of.

    schedule   which faults, when, to whom; drawn from a seed, written to a file, read from one
    records    the files through which the workers and whoever disturbs them tell one another
    judge      what became of it: the same result, a whole ledger, reports that name who failed and how

`elastic.strike` carries out, in a worker, what is due at a moment of its step; `launcher.chaos` does the rest.
"""
