"""The search: its index, kept by a process of its own, and what answers from it."""
