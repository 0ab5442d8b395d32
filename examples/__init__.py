"""Examples, numbered; each folder has a README. `python -m examples.demo` runs the first one and kills a worker."""
