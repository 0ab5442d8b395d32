"""Find out why training stands still: what is seen of it, who is to blame. Asks the kernel and files, ends nobody."""
