"""Training that stands still: what is seen of it, and who is to blame. Asks the kernel and files, ends nobody."""
