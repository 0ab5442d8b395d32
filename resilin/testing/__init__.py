"""What tests of resilin, and of programs that use it, need: a clock to own, real etcd members, conformance suites.

At the top of the floors: nothing in the library imports it, and it may import everything.
"""
