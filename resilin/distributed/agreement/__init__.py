"""How ranks agree, and what they hear when one of them cannot go on: an error of the same class, with rank and reason.

    refuse.py     before a collective: the others raise it there, and the group stays usable
    guard.py      in the middle of things: the group is aborted with it
    exchange.py   every rank's objects, and work that all ranks do or none
    compare.py    what must be equal on all ranks: facts, parameters, options
    broadcast.py  one rank's tensors for all, packed
    checksum.py   whether tensors are equal without moving them

The table of who hears what is in docs/design/collectives.md, and its cases in `resilin.testing.check_group.agreement`.
"""
