"""The operations. Each is declared once with `registry.op`; see README.md in the folder above."""
